"""docs/deviations: every deviation says what is stated, done and undone by which setting that exists."""

import re

from support.tiny import REPOSITORY

from fairseq_lrpe.experiments.definition.config_files import experiments
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.method_flags import flag_names

INDEX = REPOSITORY / "docs/deviations.md"
PAGES = sorted(REPOSITORY.glob("docs/deviations/*.md"))
DEVIATION = re.compile(r"^### ([^\n]+)\n\n(.+?)\n\nUndone by: (.+?)(?=\n\n|\s*\Z)", re.MULTILINE | re.DOTALL)
TEXT = re.compile(r"\*\*(.+?)\.\*\* (.+) \*\*Here:\*\* (.+) \*\*Why:\*\* (.+)")


def deviations():
    """Returns [(title, text, what undoes it)] of all pages."""
    return [found for page in PAGES for found in DEVIATION.findall(page.read_text())]


def test_every_deviation_is_complete():
    headings = [title for page in PAGES for title in re.findall("^### (.+)$", page.read_text(), re.MULTILINE)]
    assert [title for title, *_ in deviations()] == headings
    assert len(headings) >= 144 and len(set(headings)) == len(headings)
    texts = [TEXT.fullmatch(text.replace("\n", " ")) for _, text, _ in deviations()]
    assert all(texts), [title for title, text in zip(headings, texts, strict=True) if not text]
    stated = [text.groups()[:3] for text in texts]
    assert len(set(stated)) == len(stated)


def test_every_page_is_in_the_index():
    linked = re.findall(r"^- \[.+\]\(deviations/(.+?)\)", INDEX.read_text(), re.MULTILINE)
    assert sorted(linked) == [page.name for page in PAGES]


def test_every_override_is_a_setting():
    keys = {key for *_, undone in deviations() for key in re.findall(r"([a-z][a-z\d_.]*)=", undone)}
    known = {f"train.{flag}" for flag in flag_names()}
    for name in experiments():
        cfg = Experiment.load(name).cfg
        known |= {*cfg, *(f"{part}.{key}" for part in ("train", "batch", "evaluate") for key in cfg[part])}
        known |= {f"evaluate.flags.{key}" for key in cfg.evaluate.flags}
    assert len(keys) > 20 and keys <= known, keys - known
