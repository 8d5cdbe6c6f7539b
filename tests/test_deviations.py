"""docs/deviations.md: every override in its table is accepted, and every row says what undoes it."""

import re

from support.tiny import REPOSITORY

from fairseq_lrpe.experiments.definition.config_files import experiments
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.method_flags import flag_names

PAGE = (REPOSITORY / "docs/deviations.md").read_text()
ROWS = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("|")][2:]


def test_every_row_is_complete():
    assert len(ROWS) > 50
    for row in ROWS:
        assert len(row) == 5 and all(cell.strip() for cell in row), row
    stated = [(paper, what, here) for paper, what, here, *_ in ROWS]
    assert len(set(stated)) == len(stated)


def test_every_override_is_a_setting():
    keys = {key for *_, undone in ROWS for key in re.findall(r"([a-z][a-z\d_.]*)=", undone)}
    known = {f"train.{flag}" for flag in flag_names()}
    for name in experiments():
        cfg = Experiment.load(name).cfg
        known |= {*cfg, *(f"{part}.{key}" for part in ("train", "batch", "evaluate") for key in cfg[part])}
        known |= {f"evaluate.flags.{key}" for key in cfg.evaluate.flags}
    assert len(keys) > 20 and keys <= known, keys - known
