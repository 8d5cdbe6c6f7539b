"""The cause of a failed command is the last line of its error."""

import subprocess
import sys

import pytest
from support.small_disk import can_mount, on_small_disk
from support.tiny import BIN, FLAGS, PLUGIN, REPOSITORY, SMALL_LM

from fairseq_lrpe.utils.failure_cause import failure_cause, rejection
from fairseq_lrpe.utils.subprocesses import CommandFailed, CommandRejected, run_command

TRACEBACK = "Traceback (most recent call last):"
FRAMES = ['  File "x.py", line 1, in <module>', "    f()", "    ^^^"]
SUMMARY = [
    "E1129 7404 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {}) local_rank: 0",
    TRACEBACK,
    *FRAMES,
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "=====",
    "Root Cause (first observed failure):",
    "[0]:",
    "  exitcode  : {} (pid: 7404)",
    "=====",
]
"""End of the output of torchrun after a process has failed."""


def raised(error, prefix="", start=""):
    return [f"{prefix}{start}{TRACEBACK}", *(f"{prefix}{line}" for line in FRAMES), f"{prefix}{error}"]


def torchrun(*lines, code=1):
    return [*lines, *(line.format(code) for line in SUMMARY)]


FULL = "OSError: [Errno 28] No space left on device"
POSITION = "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"
CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:10156"
NAN = "FloatingPointError: gradients are Nan/Inf"
MISSING = "FileNotFoundError: [Errno 2] No such file or directory: 'dict.txt'"
CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
FILES = "RuntimeError: Too many open files. Communication with the workers is no longer possible."
KILLED = "RuntimeError: DataLoader worker (pid 7226) is killed by signal: Killed. "
BUS = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. "
CAUSES = [
    ([*raised(MISSING), "later"], 1, MISSING),
    (raised(NAN), 1, NAN),
    (torchrun(*raised(NAN, "[rank0]: "), *raised(NAN, "[rank1]: ")), 1, NAN),
    (torchrun(*raised(MISSING, "[rank0]: "), *raised(CLOSED, "[rank1]: ")), 1, MISSING),
    ([*raised(FULL, start="x | ERROR | "), "During handling", *raised(POSITION)], 1, FULL),
    (torchrun(*raised(FULL, "[rank0]: "), *raised(POSITION, "[rank0]: "), *raised(CLOSED)), 1, FULL),
    ([*raised(FILES), "Exception ignored in atexit callback: x", *raised(KILLED)], 1, FILES),
    (raised(CUDA), 1, f"{CUDA}: reduce batch.per_gpu"),
    (["RuntimeError: printed", *raised("MemoryError")], 1, "MemoryError"),
    ([*raised("torch.multiprocessing.spawn.ProcessRaisedException: "), *raised(CUDA)], 1, CUDA),
    ([*raised("RuntimeError: Error(s) in loading x:"), "\tMissing w"], 1, "loading x: Missing w"),
    (raised(BUS), 1, "/dev/shm is too small for the processes that load data"),
    (torchrun(code=-9), 1, "a process was killed by SIGKILL, as by the kernel or a cluster when the memory"),
    (torchrun(*raised(CLOSED), code=-7), 1, "SIGBUS, as if the shared memory in /dev/shm, or the disk"),
    (["done"], -9, "killed by SIGKILL"),
    (["done"], -11, "killed by SIGSEGV"),
    (["Fatal glibc error: out of memory"], -6, "Fatal glibc error: out of memory"),
    (["terminate called after …", "  what():  std::bad_alloc"], -6, "what():  std::bad_alloc"),
    (torchrun(*raised(CLOSED)), 1, CLOSED),
    ([TRACEBACK, "    _multiprocessing.SemLock(", FULL], 1, "/dev/shm cannot hold a semaphore: enlarge it"),
    (["bye"], 1, None),
]


@pytest.mark.parametrize(("lines", "code", "cause"), CAUSES)
def test_cause(lines, code, cause, tmp_path):
    found = failure_cause(lines, code, tmp_path / "log")
    assert found is cause is None or cause in found
    assert "\n" not in str(found)


REJECTED = "train.py: error: argument --dropout: invalid float value: 'x'"


def test_rejection_by_processes_of_torchrun():
    assert rejection(torchrun("usage", REJECTED, "W1129 closing", code=2), 1) == REJECTED
    assert rejection(torchrun(REJECTED, code=-9), 1) is None
    assert rejection(torchrun(REJECTED, *raised(NAN)), 1) is None
    assert rejection([REJECTED, "x"], 1) is None


def last_line(command, log):
    with pytest.raises(CommandFailed) as error:
        run_command(command, log)
    assert not isinstance(error.value, CommandRejected)
    return str(error.value).splitlines()[-1]


def test_real_failures(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(BIN / "python"))  # a new process instead of a fork
    opened = "files = [open('/dev/null') for _ in range(99999)]"
    assert "Too many open files" in last_line(["python", "-c", opened], tmp_path / "files")
    program = "import sys, os\ntry: open('/nosuch')\nfinally:\n  for i in range(99): print(i, flush=True)"
    assert "No such file or directory: '/nosuch'" in last_line(["python", "-c", program], tmp_path / "long")
    killed = "import os; os.kill(os.getpid(), 9)"
    assert "killed by SIGKILL" in last_line(["python", "-c", killed], tmp_path / "killed")


def test_log_that_must_not_grow(tmp_path):
    """A quota cuts the log, so that it does not name the quota."""
    ours = f"""
import resource
from pathlib import Path
from fairseq_lrpe.utils.subprocesses import CommandFailed, run_command
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    program = "for _ in range(9999): print('x' * 99, flush=True)"
    run_command(["python", "-c", program], Path({str(tmp_path / "log")!r}))
except CommandFailed as error:
    print(str(error).splitlines()[-1])
"""
    done = subprocess.run([BIN / "python", "-c", ours], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.stdout == f"cause: {tmp_path} cannot be written (File too large)\n", done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="needs a mount namespace")
def test_training_on_a_full_disk(data_bin, tmp_path):
    words = ["lm/mini", "rope", "--cpu", "--seeds", "1", *SMALL_LM, f"data={data_bin}", "updates=4"]
    words += ["--results", tmp_path]
    command = [BIN / "python", "-m", "fairseq_lrpe", "train", *words]
    done = subprocess.run(on_small_disk(tmp_path, "16k", command), capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.endswith("seed-1 cannot be written (No space left on device)"), last


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="needs a mount namespace")
@pytest.mark.parametrize(("size", "cause"), [("64k", "--num-workers 0"), ("4k", "cannot hold a semaphore")])
def test_small_shared_memory_ends_a_training(size, cause, data_bin, tmp_path):
    """Without the patch of fairseq_ext.data_workers, the training waits forever."""
    flags = [data_bin, "--user-dir", PLUGIN, *FLAGS, "--arch", "linear_lm_base", "--num-workers", 2]
    flags += ["--max-update", 4, "--save-dir", tmp_path / "save"]
    command = on_small_disk("/dev/shm", size, [BIN / "fairseq-train", *flags])
    last = last_line(command, tmp_path / "log")
    assert "No space left on device" in last and "/dev/shm" in last and cause in last
