"""Errors of models and tasks: exceptions in Python, and one line in fairseq's commands."""

import re
import sys

import pytest
from support.tiny import PLUGIN

from fairseq_lrpe.fairseq_ext.one_line_errors import run
from fairseq_lrpe.utils.errors import UserError


@pytest.mark.parametrize("package", ["models", "tasks", "ops", "encodings", "positions", "attention"])
def test_only_commands_end_the_process(package):
    """A task's own command has a function ``main``."""
    for path in (PLUGIN / package).glob("*.py"):
        library, *_ = path.read_text().split("\ndef main(")
        assert not re.search(r"SystemExit|exit_on_error\(|sys\.exit", library), path


def fail(error, cause=None, explicit=False):
    try:
        if cause is not None:
            raise cause
    except Exception as other:
        if explicit:
            raise error from other
        raise error  # noqa: B904  (as fairseq does)
    raise error


@pytest.fixture
def command(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fairseq-train"])


@pytest.mark.usefixtures("command")
@pytest.mark.parametrize("explicit", [False, True])
def test_user_errors_end_with_one_line(explicit):
    for arguments in ((UserError("omit it"),), (Exception("Cannot load"), UserError("omit it"), explicit)):
        with pytest.raises(SystemExit, match=r"^fairseq_lrpe: omit it$"):
            run(fail, *arguments)


@pytest.mark.usefixtures("command")
def test_other_errors_keep_their_traceback():
    with pytest.raises(ValueError, match="a bug"):
        run(fail, ValueError("a bug"))
    with pytest.raises(KeyError):
        run(fail, KeyError("x"), ValueError("y"))
    assert run(max, 1, 2) == 2


def test_errors_in_python_are_exceptions():
    with pytest.raises(UserError):
        run(fail, UserError("omit it"))
