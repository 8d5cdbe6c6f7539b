"""Commands of this environment as subprocesses."""

import os
import signal
import subprocess
import sys
import time

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
    program = "print(1); print(2); import os; os.write(1, b'no end \\xff')"
    commands.run_command(["python", "-c", program], tmp_path / "log", lines.append)
    assert lines == ["1\n", "2\n", "no end \ufffd\n"]
    assert (tmp_path / "log").read_bytes().endswith(b"\n1\n2\nno end \xff")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone ends a process with its parent")
def test_a_command_ends_with_its_program_that_is_killed_and_all_it_printed_is_logged(tmp_path):
    sleeps = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    ours = f"""
from pathlib import Path
from fairseq_lrpe.commands import run_command
log = Path({str(tmp_path / "log")!r})
run_command(["python", "-c", {sleeps!r}], log, lambda line: print(line, flush=True))
"""
    with subprocess.Popen([sys.executable, "-c", ours], stdout=subprocess.PIPE, text=True) as process:
        command = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    while alive(command):
        time.sleep(0.01)
    assert (tmp_path / "log").read_text().endswith(f"\n{command}\n")


def alive(pid):
    """Whether a process runs; one that nobody waits for is a zombie."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_flags_are_written_as_fairseq_takes_them():
    flags = {"max_update": 5, "cpu": True, "x": None, "y": False, "lr": 0.1}
    assert commands.as_flags(flags) == ["--max-update", 5, "--cpu", "--lr", 0.1]
