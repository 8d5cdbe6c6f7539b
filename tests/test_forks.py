"""Tests that commands that run as forks (see forks.py) behave like new processes."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.tiny import BIN, run_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are only used on Linux")

REPORT = """
import os, sys
print(sys.argv, os.getcwd(), sorted(os.environ), sys.path, sys.stdin.read(), __name__)
print("to stderr", file=sys.stderr)
sys.exit(sys.argv[1] if sys.argv[2:] else int(sys.argv[1]))
"""


def start(program, *arguments, **settings):
    words = [Path(sys.executable), "-c", program, *arguments]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **settings)


@pytest.mark.parametrize("words", [["3"], ["a sentence", "ä\n"]])
def test_arguments_folder_and_environment(words):
    fork, process = (
        run_command(python, "-c", REPORT, *words, text="ö") for python in ("python", BIN / "python")
    )
    assert (fork.returncode, fork.stdout, fork.stderr) == (process.returncode, process.stdout, process.stderr)
    assert fork.returncode and fork.stdout.endswith("ö __main__\n")


@pytest.mark.parametrize("answer, code", [("signal.SIG_DFL", -signal.SIGTERM), ("lambda *_: exit(3)", 3)])
def test_signals_are_forwarded(answer, code):
    program = f"import signal, time; signal.signal(signal.SIGTERM, {answer}); print('here', flush=True)"
    # The handler of a signal that comes just before a blocking call, such as input(), would not run.
    program += "\nwhile True: time.sleep(0.01)"
    with start(program, stderr=subprocess.DEVNULL) as fork:
        assert fork.stdout.readline() == "here\n"
        fork.terminate()
        assert fork.wait() == code


def test_killing_the_client_ends_the_fork_and_closes_its_files():
    reading, writing = os.pipe()
    with start("input('here\\n')", pass_fds=[writing]) as fork:
        os.close(writing)
        assert fork.stdout.readline() == "here\n"
        assert not select.select([reading], [], [], 0)[0]
        fork.kill()
        assert os.read(reading, 1) == b""
    os.close(reading)
