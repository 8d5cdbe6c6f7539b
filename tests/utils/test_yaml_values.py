"""Short YAML that would exhaust the stack or the memory, and values that no setting takes."""

import pytest

from fairseq_lrpe.experiments.definition import experiment
from fairseq_lrpe.experiments.definition.run import as_value
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.yaml_values import MAX_DEPTH, check_yaml

LAUGHS = "\n".join(["a0: &a0 [1, 1]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))])
WRONG = [
    ("[" * 2000 + "]" * 2000, "nested more than 20 levels deep"),
    ("{a: " * 60_000, "nested more than 20 levels deep"),
    ("&a [*a]", "the alias \\*a is inside of the value"),
    ("&a {b: [1, *a]}", "the alias \\*a is inside of the value"),
    ("9" * 5000, "not a valid value"),
    ("0x" + "f" * 5000, "an integer exceeds 64 bits"),
    ("[1, {a: 9223372036854775808}]", "an integer exceeds 64 bits"),
    ("!!int x", "not a valid value"),
    ("!!bool x", "not a valid value"),
    ("!!timestamp x", "not a valid value"),
    ("[\udcff]", "a text is not UTF-8"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_invalid_values(text, message, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=message) as error:
        as_value(text)
    assert len(str(error.value)) < 200
    (tmp_path / "x.yaml").write_bytes(f"a: {text}\n".encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=r"x\.yaml is not valid YAML: "):
        experiment.read_yaml(tmp_path / "x.yaml")


def test_aliases_that_multiply():
    with pytest.raises(UserError, match="aliases repeat more than 100,000 values"):
        check_yaml(LAUGHS)


def test_valid_values():
    nested = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert str(as_value(nested)).replace(" ", "") == nested
    assert as_value("{a: &x [1, 2], b: *x}") == {"a": [1, 2], "b": [1, 2]}
    assert as_value("9223372036854775807") == 2**63 - 1
    assert as_value("a: b: c") == "a: b: c" and as_value("*x") == "*x"
