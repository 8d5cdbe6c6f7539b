"""A run's folder: its lock, settings, checkpoints and log, and whether it can be resumed."""

import fcntl
import importlib.metadata
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from fairseq_lrpe.experiments.definition.experiment import foreign_encoding, is_non_identifying
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import REPOSITORY, atomic_file, named_write_errors, write_atomic
from fairseq_lrpe.utils.subprocesses import threads_in

LAST = "checkpoint_last.pt"
SETTINGS = (
    "experiment attention method seed changes kind updates precision flags data started starts_from "
    "config.choose config.data config.evaluate.checkpoint"
).split()
"""Keys of run.json without which a run can be neither resumed nor evaluated."""
REMEDY = "restore it, or remove the run's folder"


def installed_versions() -> dict[str, str | None]:
    import torch  # this import takes seconds

    packages = {"fairseq": "fairseq-fixed", "fairseq_lrpe": "fairseq-lrpe"}
    found = {name: [*importlib.metadata.distributions(name=package)] for name, package in packages.items()}
    versions = {name: installed[0].version if installed else None for name, installed in found.items()}
    return {"python": platform.python_version(), "torch": str(torch.__version__), **versions}


def processor(environment: Mapping[str, str], processes: int = 1) -> dict[str, str | int]:
    """Returns the name of the CPU, and the instruction set and threads of each of torch's processes on it.

    CPUs of one name can have different instruction sets, with which results differ by rounding.
    """
    import torch  # this import takes seconds

    info = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*: (.+)$", info.read_text() if info.exists() else "", re.MULTILINE)
    # torchrun gives each of several processes one thread.
    threads = threads_in(environment) or (torch.get_num_threads() if processes == 1 else 1)
    name = match[1] if match else platform.machine()
    instructions = torch.backends.cpu.get_cpu_capability()
    return {"name": name, "instructions": instructions, "threads": threads}


def git_revision() -> dict[str, str | bool | None]:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        text = subprocess.check_output(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return {"revision": None, "dirty": None}
    return {"revision": text.removesuffix("-dirty"), "dirty": text.endswith("-dirty")}


def timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_json(path: Path, content: object) -> None:
    write_atomic(path, json.dumps(content, indent=2) + "\n")


def read_json(path: Path) -> dict:
    try:
        return object_in(path)
    except ValueError as error:
        remedy = REMEDY if path.name == "run.json" else "restore or remove it"
        raise UserError(f"{path} is damaged ({error}): {remedy}") from None


def read_settings(folder: Path, keys: Iterable[str] = SETTINGS) -> dict:
    """Returns the content of run.json, or {} without the file; raises UserError if a key is missing."""
    settings = read_json(folder / "run.json")
    for key in keys if settings else ():
        value = settings
        for name in key.split("."):
            if not isinstance(value, dict) or name not in value:
                raise UserError(f"{folder / 'run.json'} lacks the key {key}: {REMEDY}")
            value = value[name]
    return settings


def object_in(path: Path) -> dict:
    """Returns the JSON object in a file, {} without a file; raises ValueError for other content."""
    content = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return content


def read_lines(path: Path) -> list[dict]:
    """Returns the objects in a JSON lines file; an incomplete last line is ignored."""
    lines, objects = path.read_text("utf-8").splitlines() if path.exists() else [], []
    for number, line in enumerate(lines, 1):
        try:
            objects.append({**json.loads(line)})
        except (ValueError, TypeError):
            if number < len(lines):
                wrong = f"is damaged (line {number} is not a JSON object)"
                raise UserError(f"{path} {wrong}: remove the run's folder") from None
    return objects


class InUse(UserError):
    """Raised if another process holds the lock of a run's folder."""


class LocksUnsupported(UserError):
    """Raised if the file system of a run's folder has no locks."""


@contextmanager
def locked(folder: Path, timeout: float = 0) -> Iterator[IO]:
    """Creates the folder if necessary and holds its lock during the block.

    Yields the open lock file; subprocesses that inherit it hold the lock until they end, even if this process
    is killed.

    Raises:
        InUse: if another process still holds the lock after ``timeout`` seconds.
        LocksUnsupported: if the file system has no locks.
        UserError: if another user's permissions forbid to write into the folder.
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
    """Returns whether a process holds the lock; False if the lock cannot be read, or cannot exist."""
    unknown = (FileNotFoundError, PermissionError, LocksUnsupported)
    with suppress(*unknown), (folder / "lock").open() as lock:
        return not _try_lock(lock, fcntl.LOCK_SH)
    return False


def _open_lock(folder):
    try:
        return (folder / "lock").open("w")
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
    """Raises UserError if the run in the folder was trained with other settings, data or initial checkpoint.

    The machine, except for the precision, and the versions may differ, since the total batch stays the same.
    run.json lists the versions of the last start.
    """
    before = read_settings(folder)
    if not any((folder / name).exists() for name in ("checkpoints", "evaluation.json")):
        return
    if not before:
        wrong = f"{folder} contains a trained or evaluated model, but no settings (run.json)"
        raise UserError(f"{wrong}: remove the folder")
    if found := Run.of(settings).other_run(before):
        wrong = f"contains a copy of the run with {found} (run.json)"
        raise UserError(f"{folder} {wrong}: use another --results, or remove the folder")
    configs = [of_method(config, settings["method"]) for config in (before["config"], settings["config"])]
    different = setting_differences(*configs)
    for name in ("flags", "precision"):
        different += setting_differences(before[name], settings[name], name)
    different += data_differences(before["data"], settings["data"])
    starts = [x["starts_from"] or {"path": None, "sha256": ""} for x in (before, settings)]
    if starts[0]["sha256"] != starts[1]["sha256"]:
        texts = [start["path"] and f"{start['path']} (SHA-256 {start['sha256'][:8]}…)" for start in starts]
        different.append(f"starts_from was {texts[0]}, now {texts[1]}")
    if _chooses(before) != _chooses(settings):
        choice = (
            "chose among trials, but this command does not",
            "did not choose among trials, as this command",
        )
        different.append(f"it {choice[not _chooses(before)]}")
    if different:
        raise UserError(
            f"{folder} contains a run with other settings ({'; '.join(different)}): use those settings, "
            "use another --results, or remove the folder"
        )


def data_differences(before: dict[str, int], now: dict[str, int]) -> list[str]:
    """Returns the files that have other sizes now; files for evaluations may be added."""
    return [
        f"data.{name} was {before.get(name)} bytes, now {now.get(name)}"
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name) and ("train" in name or (name in before and name in now))
    ]


def _chooses(settings: dict) -> bool:
    choose, method = settings["config"]["choose"], settings["method"]
    return any(key not in settings["changes"] and not foreign_encoding(key, method) for key in choose)


def of_method(config: dict, method: str) -> dict:
    """Returns the settings of an experiment without the flags of other methods."""
    flags = config.get("by_method", {})
    return {**config, "by_method": {name: of for name, of in flags.items() if name == method}}


def setting_differences(before: object, after: object, key: str = "") -> list[str]:
    """Returns the differences of settings as "key was x, now y"; NON_IDENTIFYING ones are ignored."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [] if before == after else [f"{key} was {before}, now {after}"]
    found = []
    for name in dict.fromkeys([*before, *after]):
        full = f"{key}.{name}".lstrip(".")
        if not is_non_identifying(full):
            found += setting_differences(before.get(name), after.get(name), full)
    return found


def completed_updates(checkpoints: Path) -> int:
    return checkpoint_updates(checkpoints / LAST) or 0


def read_checkpoint(path: Path, remedy: str) -> dict:
    from fairseq_lrpe.fairseq_ext import checkpoint  # imports torch, which takes seconds

    return checkpoint.read_checkpoint(path, remedy)


def checkpoint_updates(checkpoint: Path) -> int | None:
    with suppress(UserError):
        return read_checkpoint(checkpoint, "")["optimizer_history"][-1]["num_updates"]


def repair_checkpoints(checkpoints: Path) -> None:
    """Replaces unreadable best and last checkpoints, or removes them if no checkpoint is complete.

    fairseq writes a checkpoint atomically, and then copies it to checkpoint_best.pt and checkpoint_last.pt.
    If it is killed while it copies, the newest complete checkpoint replaces a truncated copy, and
    checkpoint_last.pt also if it is missing.
    """
    from fairseq_lrpe.fairseq_ext.checkpoint import newest_readable  # imports torch, which takes seconds

    newest, last = newest_readable(checkpoints), checkpoints / LAST
    for path in (checkpoints / "checkpoint_best.pt", last):
        if newest is None:
            path.unlink(missing_ok=True)
        elif (path.exists() or path == last) and checkpoint_updates(path) is None:
            with atomic_file(path) as part:
                shutil.copyfile(newest, part)


def evaluated_checkpoint(folder: Path, name: str) -> Path:
    return folder / read_json(folder / "evaluation.json").get("checkpoint", f"checkpoints/{name}")


KINDS = ("train_inner", "valid", "train")  # kinds of log entries, in the order in which fairseq logs them


class Log:
    """The metrics that fairseq writes to the log ``name`` in a run's folder, copied to log.jsonl.

    ``entries`` are the metrics up to ``completed`` updates, from which training resumes; those that are
    missing in log.jsonl, because its writer was killed, are read from the logs.
    """

    pattern = re.compile(rf"\| ({'|'.join(KINDS)}) \| (\{{.*\}})$")

    def __init__(self, folder: Path, name: str = "train.log", completed: int = 0):
        self.path, self.jsonl = folder / name, folder / "log.jsonl"
        logs = sorted(folder.glob("train*.log"), key=lambda path: path.stat().st_mtime)  # each node has a log
        lines = [line for path in logs for line in path.read_text("utf-8", "replace").splitlines()]
        found = [*read_lines(self.jsonl), *filter(None, map(self.parse, lines))]
        self.entries = in_order(entry for entry in found if entry_updates(entry) <= completed)

    def parse(self, line: str) -> dict | None:
        if not (match := self.pattern.search(line)):
            return None
        with suppress(ValueError):
            return {"kind": match[1], **{k: to_number(v) for k, v in json.loads(match[2]).items()}}

    def record(self, line: str) -> dict | None:
        if entry := self.parse(line):
            self.entries.append(entry)
            with named_write_errors(self.jsonl), self.jsonl.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        return entry

    def restore(self, checkpoints: Path, updates: int) -> None:
        """Writes log.jsonl; adds an entry without metrics for an epoch that was saved, but not logged."""
        if self.entries and (completed := completed_updates(checkpoints)):
            epochs = read_checkpoint(checkpoints / LAST, "")["extra_state"]["train_iterator"]
            is_end = epochs["iterations_in_epoch"] == 0
            logged = {one["train_num_updates"] for one in self.entries if one["kind"] == "train"}
            if (is_end or completed >= updates) and completed not in logged:
                entry = {"kind": "train", "epoch": epochs["epoch"] - is_end, "train_num_updates": completed}
                self.entries = in_order([*self.entries, entry])
        write_atomic(self.jsonl, "".join(json.dumps(entry) + "\n" for entry in self.entries))


def in_order(entries: Iterable[dict]) -> list[dict]:
    """Sorts entries as fairseq logs them, and keeps the last of each kind and number of updates."""
    found = {(entry_updates(entry), KINDS.index(entry["kind"])): entry for entry in entries}
    return [found[key] for key in sorted(found)]


def training_speed(folder: Path) -> dict[str, float]:
    """Returns the median logged speed, such as {"tokens_per_second": 9000.0}; {} if none was logged."""
    measured = [entry for entry in read_lines(folder / "log.jsonl") if entry.get("wps")]
    if not measured:
        return {}
    return {f"{speed_unit(measured[0])}_per_second": statistics.median(x["wps"] for x in measured)}


def speed_unit(entry: dict) -> str:
    """Returns the unit of an entry's ``wps``: "tokens", or "rows" for tasks whose samples have no tokens."""
    return "rows" if entry.get("wpb") == entry.get("bsz") else "tokens"


def entry_updates(entry: dict) -> int:
    return next(value for key, value in entry.items() if key.endswith("num_updates"))


def to_number(value: object) -> object:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value) if isinstance(value, str) else value
    return value
