"""Tests of the README: its table of methods, and its length."""

import re

import pytest
from support.tiny import REPOSITORY

from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.experiments.reporting.encoding_descriptions import RULES
from fairseq_lrpe.methods import METHODS, canonical
from fairseq_lrpe.positions import POSITIONS

README = (REPOSITORY / "README.md").read_text("utf-8")
HEADER = (
    "| `--encoding` | linear | softmax | what it does, and methods with other names |\n|---|:-:|:-:|---|\n"
)
POSITION_HEADER = "| `--token-positions` | what it does |\n|---|---|\n"
DELTA = "fairseq_lrpe/attention/delta.py"


def first_sentence(cls):
    """Returns the first sentence of a class's docstring without its period and reST's marks."""
    sentence = " ".join(cls.__doc__.split("\n\n")[0].split())
    return sentence.removesuffix(".").replace("``", "`").replace("|", "\\|")


def path(cls):
    return cls.__module__.replace(".", "/") + ".py"


def check_mark(condition):
    return "✓" if condition else ""


def encoding_row(name, cls):
    others = [
        method
        for method, row in METHODS.items()
        if row.encoding == name and method != name and "linear_rule" not in row.flags
    ]
    methods = f": {', '.join(f'`{method}`' for method in others)}" if others else ""
    causal = "" if cls.bidirectional else "; causal"
    text = f"{first_sentence(cls)}{causal}{methods}"
    return f"| [`{name}`]({path(cls)}) | {check_mark(cls.decomposable)} | ✓ | {text} |\n"


def methods_table():
    rows = [encoding_row(name, cls) for name, cls in sorted(ENCODINGS.items())]
    for name, method in METHODS.items():
        if "linear_rule" in method.flags:
            effect = RULES[method.flags["linear_rule"]].removesuffix(".")
            rows.append(f"| [`{name}`]({DELTA}) (a rule) | ✓ | | {effect} ({method.source}); causal |\n")
    return HEADER + "".join(rows)


def positions_table():
    rows = [
        f"| [`{name}`]({path(cls)}) | {first_sentence(cls)} |\n" for name, cls in sorted(POSITIONS.items())
    ]
    return POSITION_HEADER + "".join(rows)


def test_numbers_of_methods_and_positions():
    methods = len(set(map(canonical, METHODS)))
    assert f"<summary>{methods} methods with {len(METHODS)} names: encodings in attention</summary>" in README
    assert f"| fairseq-lrpe | {methods} methods, and {len(POSITIONS)} kinds of token positions |" in README


@pytest.mark.parametrize("table", [methods_table, positions_table])
def test_readme_has_the_registered_methods(table):
    expected = table()
    assert expected in README, f"README.md needs this table:\n{expected}"


def test_every_method_is_named():
    assert not [name for name in METHODS if f"`{name}`" not in README]


def test_length():
    assert len(README.splitlines()) <= 200
    assert not [line for line in README.splitlines() if len(line) > 132 and not re.match(r"\||!", line)]
