"""Commands of this environment as subprocesses."""

import sys

import pytest
from tiny import BIN

from fairseq_lrpe import commands


def test_a_failing_command_is_named_with_the_end_of_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(BIN / "python"))  # a process of its own, no fork
    with pytest.raises(
        commands.CommandFailed, match=r"(?s)^fairseq-train ended with exit code 2; .*log ends so:.*--arch"
    ):
        commands.run_command(["fairseq-train", "--arch"], tmp_path / "log")


def test_each_line_is_given_on_and_all_is_logged(tmp_path):
    lines = []
    commands.run_command(["python", "-c", "print(1); print(2)"], tmp_path / "log", lines.append)
    assert lines == ["1\n", "2\n"]
    assert (tmp_path / "log").read_text().splitlines()[1:] == ["1", "2"]


def test_flags_are_written_as_fairseq_takes_them():
    flags = {"max_update": 5, "cpu": True, "x": None, "y": False, "lr": 0.1}
    assert commands.as_flags(flags) == ["--max-update", 5, "--cpu", "--lr", 0.1]
