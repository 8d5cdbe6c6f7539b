"""docs/upgrading.md: its example runs, and the new names in its tables exist."""

import re

from support.documents import block
from support.tiny import PLUGIN, REPOSITORY

from fairseq_lrpe.cli import COMMANDS
from fairseq_lrpe.experiments.definition.kinds import KINDS

PAGE = (REPOSITORY / "docs/upgrading.md").read_text()


def rows(heading):
    """Returns the rows [old form, new form] of the table below a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [re.split(r" ?\| ?", line)[1:3] for line in lines[1:]]


def test_example():
    names = {}
    exec(block("python", "class Mine(ScoresMixin, Encoding)"), names)
    assert names["ShiftMixin"] in names["Mine"].__mro__


def test_new_modules_exist_and_old_ones_do_not():
    for old, new in rows("Modules of the package"):
        folder = PLUGIN
        for name in re.findall(r"`([\w/]+(?:/|\.py))`", new):
            assert (folder / name).exists(), name
            folder = folder if name.endswith("/") or "/" not in name else (folder / name).parent
        for name in re.findall(r"`([a-z]\w*/[\w/]*(?:/|\.py))`", old):
            assert not (PLUGIN / name).exists(), name


def test_new_kinds_and_commands_exist():
    kinds = [re.search(r"`(\w+)`", new)[1] for _, new in rows("Experiments")[:5]]
    assert set(kinds) <= set(KINDS) and len(set(kinds)) == 5
    commands = set(re.findall(r"`lrpe ([\w-]+)", PAGE))
    assert {"evaluate", "generate", "glue-submission"} <= commands <= set(COMMANDS)
