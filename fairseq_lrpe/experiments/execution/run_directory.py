"""The folder of a run: its lock, its checkpoints, and the settings with which it can be resumed."""

import fcntl
import importlib.metadata
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.setting_differences import setting_differences
from fairseq_lrpe.experiments.execution.run_extension import extension_differences
from fairseq_lrpe.experiments.execution.run_files import read_settings
from fairseq_lrpe.method_flags import foreign_encoding
from fairseq_lrpe.utils.cpu import cpu_name
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import REPOSITORY, atomic_file
from fairseq_lrpe.utils.subprocesses import threads_in

LAST = "checkpoint_last.pt"


def installed_versions() -> dict[str, str | None]:
    import torch  # this import takes seconds

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "fairseq": _installed_version("fairseq-fixed"),
        "fairseq_lrpe": _installed_version("fairseq-lrpe"),
    }


def _installed_version(package):
    distribution = next(iter(importlib.metadata.distributions(name=package)), None)
    return distribution.version if distribution else None


def processor(environment: Mapping[str, str], processes: int = 1) -> dict[str, str | int]:
    """Returns "name", "instructions" and "threads" of the CPU; the latter two are those of torch's processes.

    CPUs with the same name can have different instruction sets, so that results differ by rounding.

    Args:
        environment: the environment variables of the processes, such as OMP_NUM_THREADS.
        processes: the number of processes.
    """
    import torch  # this import takes seconds

    threads = threads_in(environment)
    if threads is None:  # torchrun gives each of several processes one thread
        threads = torch.get_num_threads() if processes == 1 else 1
    instructions = torch.backends.cpu.get_cpu_capability()
    return {"name": cpu_name(), "instructions": instructions, "threads": threads}


def git_revision() -> dict[str, str | bool | None]:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        text = subprocess.check_output(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return {"revision": None, "dirty": None}
    return {"revision": text.removesuffix("-dirty"), "dirty": text.endswith("-dirty")}


def timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class InUse(UserError):
    """Raised if another process holds the lock of a run's folder."""


class LocksUnsupported(UserError):
    """Raised if the file system of a run's folder has no locks."""


@contextmanager
def locked(folder: Path, timeout: float = 0) -> Iterator[IO]:
    """Creates the folder if necessary and holds its lock during the block.

    Yields the open lock file. Subprocesses that inherit this file hold the lock until they end, even if this
    process is killed.

    Raises:
        InUse: if another process still holds the lock after ``timeout`` seconds.
        LocksUnsupported: if the file system has no locks.
        UserError: if this user may not write to the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + timeout
    with _open_lock(folder) as lock:
        while not _try_lock(lock, fcntl.LOCK_EX):
            if time.monotonic() > end:
                raise InUse(f"{folder} is in use by another process: wait until it ends")
            time.sleep(0.1)
        yield lock


def is_locked(folder: Path) -> bool:
    """Returns whether a process holds a folder's lock; False if the lock cannot be read or cannot exist."""
    path = folder / "lock"
    if not path.is_file():  # opening a named pipe would wait for a writer
        return False
    with suppress(FileNotFoundError, PermissionError, LocksUnsupported), path.open() as lock:
        return not _try_lock(lock, fcntl.LOCK_SH)
    return False


def _open_lock(folder):
    path = folder / "lock"
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file: remove it")
    try:
        return path.open("w")
    except PermissionError as error:
        remedy = "make the folder and its files writable for this user, or use another results folder"
        raise UserError(f"{folder} cannot be written ({error.strerror}): {remedy}") from None


def _try_lock(lock, operation):
    try:
        fcntl.flock(lock, operation | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError as error:
        wrong = f"{Path(lock.name).parent} cannot be locked ({error.strerror})"
        if lock.writable():  # without locks, no process holds it
            os.unlink(lock.name)
        raise LocksUnsupported(f"{wrong}: use a results folder whose file system supports flock") from None


def check_settings(folder: Path, settings: dict) -> None:
    """Raises UserError if the run in a folder has another initial checkpoint, other settings or other data.

    The machine, except for its precision, and the versions may differ, since the total batch stays the same.

    Args:
        folder: the folder of the run.
        settings: the content that its run.json would have now.
    """
    before = read_settings(folder)
    if not any((folder / name).exists() for name in ("checkpoints", "evaluation.json")):
        return
    if not before:
        wrong = f"{folder} contains a trained or evaluated model, but no settings (run.json)"
        raise UserError(f"{wrong}: remove the folder")
    other = Run.of(settings).other_run(before)
    if other:
        wrong = f"contains a copy of the run with {other} (run.json)"
        raise UserError(f"{folder} {wrong}: use another --results, or remove the folder")
    differences = run_differences(before, settings)
    if differences:
        raise UserError(
            f"{folder} contains a run with other settings ({'; '.join(differences)}): use those settings, "
            "use another --results, or remove the folder"
        )


def run_differences(before: dict, now: dict) -> list[str]:
    """Returns a text for each difference of two run.json files that can change the result of a run."""
    method = now["method"]
    differences = setting_differences(of_method(before["config"], method), of_method(now["config"], method))
    for name in ("flags", "precision"):
        differences += setting_differences(before[name], now[name], name)
    differences += extension_differences(before, now)
    differences += data_differences(before["data"], now["data"])
    if _start_digest(before) != _start_digest(now):
        differences.append(f"starts_from was {_start_text(before)}, now {_start_text(now)}")
    if _chooses(before) and not _chooses(now):
        differences.append("the run chose among trials, but this command does not")
    if _chooses(now) and not _chooses(before):
        differences.append("the run did not choose among trials, but this command does")
    return differences


def data_differences(before: dict[str, int], now: dict[str, int]) -> list[str]:
    """Returns texts about the files with other sizes than before; files for evaluations may be added.

    Args:
        before: {file: bytes} of the data, as recorded.
        now: {file: bytes} of the data now.
    """
    differences = []
    for name in dict.fromkeys([*before, *now]):
        is_compared = "train" in name or (name in before and name in now)
        if is_compared and before.get(name) != now.get(name):
            differences.append(f"data.{name} was {before.get(name)} bytes, now {now.get(name)}")
    return differences


def _start_digest(settings):
    start = settings["starts_from"]
    return start["sha256"] if start else ""


def _start_text(settings):
    start = settings["starts_from"]
    if not start or not start["path"]:
        return None
    return f"{start['path']} (SHA-256 {start['sha256'][:8]}…)"


def _chooses(settings: dict) -> bool:
    """Returns whether the run with these settings chooses among trials, and is not itself a trial."""
    config = settings["config"]
    flags = {**config.get("train", {}), **config.get("by_method", {}).get(settings["method"], {})}
    for key in config["choose"]:
        if key not in settings["changes"] and not foreign_encoding(key, settings["method"], flags):
            return True
    return False


def of_method(config: dict, method: str) -> dict:
    """Returns the settings of an experiment without the flags of methods other than ``method``."""
    flags = config.get("by_method", {})
    own_flags = {method: flags[method]} if method in flags else {}
    return {**config, "by_method": own_flags}


def completed_updates(checkpoints: Path) -> int:
    return checkpoint_updates(checkpoints / LAST) or 0


def read_checkpoint(path: Path, remedy: str) -> dict:
    from fairseq_lrpe.fairseq_ext import checkpoint  # imports torch, which takes seconds

    return checkpoint.read_checkpoint(path, remedy)


def checkpoint_updates(checkpoint: Path) -> int | None:
    if not checkpoint.exists():
        return None
    with suppress(UserError):
        return read_checkpoint(checkpoint, "")["optimizer_history"][-1]["num_updates"]


def repair_checkpoints(checkpoints: Path) -> None:
    """Replaces unreadable best and last checkpoints, or removes them if no checkpoint is complete.

    fairseq writes a checkpoint atomically, and then copies it to checkpoint_best.pt and checkpoint_last.pt.
    If fairseq was killed during a copy, the newest complete checkpoint replaces truncated copies and a
    missing checkpoint_last.pt.
    """
    if not checkpoints.exists():
        return
    from fairseq_lrpe.fairseq_ext.checkpoint import newest_readable  # imports torch, which takes seconds

    newest = newest_readable(checkpoints)
    last = checkpoints / LAST
    for path in (checkpoints / "checkpoint_best.pt", last):
        if newest is None:
            path.unlink(missing_ok=True)
        elif (path.exists() or path == last) and checkpoint_updates(path) is None:
            with atomic_file(path) as part:
                shutil.copyfile(newest, part)
