"""Commands of this environment as subprocesses."""

import os
import signal
import subprocess
import sys
import time

import pytest
from support.small_disk import full_disk
from support.tiny import BIN, REPOSITORY

from fairseq_lrpe.utils import subprocesses
from fairseq_lrpe.utils.errors import UserError


def test_error_of_a_failing_command(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(BIN / "python"))  # a new process instead of a fork
    message = "^fairseq-train rejects its arguments: argument --arch/-a: expected one argument$"
    with pytest.raises(subprocesses.CommandRejected, match=message):
        subprocesses.run_command(["fairseq-train", "--arch"], tmp_path / "log")
    assert "tensorboardX" not in (tmp_path / "log").read_text()
    with pytest.raises(subprocesses.CommandFailed, match=r"(?s) exit code 1; end of .*/bug:.*no: error: x$"):
        subprocesses.run_command(["python", "-c", "raise SystemExit('no: error: x')"], tmp_path / "bug")


def test_lines_are_passed_on_and_logged(tmp_path):
    lines = []
    program = "print(1); print(2); import os; os.write(1, b'no end \\xff')"
    subprocesses.run_command(["python", "-c", program], tmp_path / "log", lines.append)
    assert lines == ["1\n", "2\n", "no end \ufffd\n"]
    assert (tmp_path / "log").read_bytes().endswith(b"\n1\n2\nno end \xff")


def test_commands_write_utf8_in_every_locale(tmp_path):
    environment = {"LC_ALL": "en_US.ISO-8859-1", "PYTHONIOENCODING": ""}
    subprocesses.run_command(["python", "-c", "print('ρ')"], tmp_path / "log", environment=environment)
    assert (tmp_path / "log").read_bytes().endswith("ρ\n".encode())


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_command_ends_when_its_parent_is_killed(tmp_path):
    sleeps = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    ours = f"""
from pathlib import Path
from fairseq_lrpe.utils.subprocesses import run_command
log = Path({str(tmp_path / "log")!r})
run_command(["python", "-c", {sleeps!r}], log, lambda line: print(line, flush=True))
"""
    with subprocess.Popen([sys.executable, "-c", ours], stdout=subprocess.PIPE, text=True) as process:
        command = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    while alive(command):
        time.sleep(0.01)
    assert (tmp_path / "log").read_text().endswith(f"\n{command}\n")


@pytest.mark.parametrize("number, is_saved", [(signal.SIGUSR2, True), (signal.SIGTERM, False)])
def test_slurm_decides_how_long_a_command_may_take_to_end(number, is_saved, tmp_path):
    """A training saves a checkpoint after its update, which may take longer than the grace period."""
    saves = "import signal, sys, time; from pathlib import Path\n"
    saves += "def save(*_): time.sleep(2); Path('saved').touch(); sys.exit()\n"
    saves += "signal.signal(signal.SIGTERM, save); print('started', flush=True); time.sleep(600)"
    ours = f"""
from pathlib import Path
from fairseq_lrpe.utils import subprocesses
from fairseq_lrpe.utils.errors import UserError
subprocesses.GRACE_PERIOD = 0.5
with subprocesses.exit_on_signals():
    subprocesses.run_command(["python", "-c", {saves!r}], Path("log"), lambda line: print(line, flush=True))
"""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    environment["SLURM_JOB_END_TIME"] = str(int(time.time()) + 600)
    given = {"stdout": subprocess.PIPE, "text": True, "cwd": tmp_path, "env": environment}
    with subprocess.Popen([BIN / "python", "-c", ours], **given) as process:
        assert process.stdout.readline() == "started\n"
        process.send_signal(number)
        assert process.wait() == 128 + number and (tmp_path / "saved").exists() == is_saved


def test_commands_outside_of_the_environment(tmp_path, monkeypatch):
    (tmp_path / "fairseq-train").write_text("#!/bin/sh\necho from PATH\n")
    (tmp_path / "fairseq-train").chmod(0o755)
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    subprocesses.run_command(["fairseq-train"], tmp_path / "log")
    assert (tmp_path / "log").read_text().endswith("from PATH\n")
    with pytest.raises(subprocesses.CommandFailed, match=r"^fairseq-none was not found: install "):
        subprocesses.run_command(["fairseq-none"], tmp_path / "log")


WORKER = """
import os, time
def work(_=None):
    print(os.getpid(), flush=True)
    time.sleep(600)
"""
POOL = "from worker import work; from data_prep.parallel import ordered_map; list(ordered_map(work, [1], 1))"
FORK = "def cli_main():\n    import os\n    if os.fork() == 0: work()\n    os.wait()\n"


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_available_cores_where_processes_are_not_restricted(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    assert subprocesses.available_cores() == os.cpu_count()


@pytest.mark.slow
@pytest.mark.parametrize("words", [["-c", POOL], ["-m", "data_prep.preprocess"]])
def test_workers_end_when_their_parent_is_killed(words, tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "fairseq_cli").mkdir()  # instead of fairseq's, which takes seconds to import
    (tmp_path / "fairseq_cli/__init__.py").touch()
    (tmp_path / "fairseq_cli/preprocess.py").write_text(WORKER + FORK)
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    given = {"stdout": subprocess.PIPE, "text": True, "env": {**os.environ, "PYTHONPATH": path}}
    with subprocess.Popen([BIN / "python", *words], **given) as process:
        worker = int(process.stdout.readline())
        process.kill()
    while alive(worker):
        time.sleep(0.01)


def alive(pid):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_as_flags():
    flags = {"max_update": 5, "cpu": True, "x": None, "y": False, "lr": 0.1}
    assert subprocesses.as_flags(flags) == ["--max-update", "5", "--cpu", "--lr", "0.1"]


def test_assertions_of_commands_are_evaluated(tmp_path, monkeypatch):
    """fairseq validates its data and flags by them."""
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    program = "import sys; sys.exit(sys.flags.optimize)"
    subprocesses.run_command([str(BIN / "python"), "-c", program], tmp_path / "log")


@pytest.mark.parametrize(("value", "threads"), [("", None), ("3", 3), (" 2 ", 2), ("4,1", 4)])
def test_number_of_threads(value, threads):
    assert subprocesses.threads_in({"OMP_NUM_THREADS": value}) == threads
    assert subprocesses.threads_in({}) is None


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", ","])
def test_invalid_numbers_of_threads_are_errors(value):
    with pytest.raises(UserError, match=f"OMP_NUM_THREADS is '{value}': set it to a number of threads, or"):
        subprocesses.threads_in({"OMP_NUM_THREADS": value})


def test_the_log_is_named_if_its_disk_is_full(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(bytes(2000))
    with full_disk(2000), pytest.raises(OSError) as error:
        subprocesses.run_command(["python", "-c", "pass"], log)
    assert error.value.filename == str(log)


def test_commands_do_not_import_another_checkout_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(BIN / "python"))  # a new process instead of a fork
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for package in ("fairseq_lrpe", "data_prep"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('another checkout')\n")
    lines = []
    program = "import data_prep, fairseq_lrpe; print(fairseq_lrpe.__file__)"
    command = ["python", "-c", program]
    subprocesses.run_command(command, tmp_path / "log", lines.append, cwd=tmp_path)
    assert lines == [f"{REPOSITORY / 'fairseq_lrpe' / '__init__.py'}\n"]
