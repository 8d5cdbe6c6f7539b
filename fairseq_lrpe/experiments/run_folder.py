"""A run's folder: its settings, its log, its training, whether it may go on where it stopped."""

import fcntl
import importlib.metadata
import json
import platform
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import torch

from fairseq_lrpe.checkpoint import newest_whole, read_checkpoint
from fairseq_lrpe.experiments.experiment import is_free
from fairseq_lrpe.files import REPOSITORY, whole_file, write_whole


def versions() -> dict[str, str | None]:
    """Returns the versions of what a training runs on; torch's tells its build too, such as 2.13.0+cu126."""
    packages = {"fairseq": "fairseq-fixed", "fairseq_lrpe": "fairseq-lrpe"}
    found = {name: [*importlib.metadata.distributions(name=package)] for name, package in packages.items()}
    versions = {name: installed[0].version if installed else None for name, installed in found.items()}
    return {"python": platform.python_version(), "torch": str(torch.__version__), **versions}


def git() -> dict[str, str | bool | None]:
    """Returns the revision that runs, and whether tracked files differ from it; None outside of git."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        said = subprocess.run(
            words, cwd=REPOSITORY, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return {"revision": None, "dirty": None}
    return {"revision": said.removesuffix("-dirty"), "dirty": said.endswith("-dirty")}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_json(path: Path, content: object) -> None:
    write_whole(path, json.dumps(content, indent=2) + "\n")


def read_json(path: Path) -> dict:
    """Returns the object in a file, an empty one if there is no file; ValueError if it is damaged."""
    try:
        return object_in(path)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): put it right, or remove it") from None


def object_in(path: Path) -> dict:
    """Returns the same; ValueError says what is wrong with the content alone."""
    found = json.loads(path.read_text()) if path.exists() else {}
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} has no keys with values")
    return found


class InUse(ValueError):
    """Another process works in the folder."""


@contextmanager
def locked(folder: Path, patience: float = 0) -> Iterator[IO]:
    """Yields the lock of the folder, made if need be, for this process alone; InUse if another one has it.

    What this process starts holds the lock too, and ends a little after this one should it be killed:
    ``patience`` is for how many seconds that is waited for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + patience
    with (folder / "lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise InUse(f"{folder} is in use: another process is training there") from None
                time.sleep(0.1)
        yield lock


def is_locked(folder: Path) -> bool:
    """Whether a process trains there."""
    if not (folder / "lock").exists():
        return False
    with (folder / "lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class OldLayout(ValueError):
    """A folder's run was made by a version of this project whose folders differ."""

    def __init__(self, folder):
        what = "which this one cannot go on with: move it away, or give another --results, and run it again"
        super().__init__(f"{folder} holds a run of an earlier version, {what}")


def check_same(folder: Path, settings: dict) -> None:
    """Refuses to go on in a folder whose run was started with other settings and has trained.

    The machines may differ, for the total batch stays the same, and so may the versions; run.json tells
    those of the last start.
    """
    before = read_json(folder / "run.json")
    if before and "kind" not in before:
        raise OldLayout(folder)
    trained = (folder / name for name in ("checkpoints", "evaluation.json"))
    if not before or not any(path.exists() for path in trained):
        return
    try:
        differing = all_differences(before, settings)
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"{folder / 'run.json'} is damaged: put it right, or remove the folder") from None
    if differing:
        raise ValueError(
            f"{folder} holds a run with other settings ({'; '.join(differing)}): give the same, "
            "another --results, or remove the folder"
        )


def all_differences(before: dict, settings: dict) -> list[str]:
    """Returns in words what makes the run of one run.json another than that of the other."""
    differing = differences(before["config"], settings["config"])
    for name in ("flags", "precision"):
        differing += differences(before[name], settings[name], name)
    differing += other_data(before["data"], settings["data"])
    if before["starts_from"] and before["starts_from"]["sha256"] != settings["starts_from"]["sha256"]:
        differing.append(f"it went on from another checkpoint, {before['starts_from']['path']}")
    return differing


def differences(before: object, after: object, key: str = "") -> list[str]:
    """Returns ["key was this, now that"] of settings, as far as they make another run."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [] if before == after else [f"{key} was {before}, now {after}"]
    keys = [f"{key}.{name}".lstrip(".") for name in dict.fromkeys([*before, *after])]
    names = [name for name in keys if not is_free(name)]
    pairs = ((name, name.removeprefix(f"{key}.")) for name in names)
    return [text for name, x in pairs for text in differences(before.get(x), after.get(x), name)]


def other_data(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Returns the same of files and their sizes; those of splits that are only evaluated may come and go."""
    names = [name for name in {**before, **after} if "train" in name or (name in before and name in after)]
    pairs = ((name, before.get(name), after.get(name)) for name in names)
    return [f"data.{name} was {old} bytes, now {new}" for name, old, new in pairs if old != new]


def updates_done(checkpoints: Path) -> int:
    """Returns the updates of the last checkpoint; 0 if there is none that can be read."""
    return updates_of(checkpoints / "checkpoint_last.pt") or 0


def updates_of(checkpoint: Path) -> int | None:
    """Returns the updates of a checkpoint; None if there is none, or not the whole of it."""
    try:
        return read_checkpoint(checkpoint, "")["optimizer_history"][-1]["num_updates"]
    except ValueError:
        return None


def mend(checkpoints: Path) -> None:
    """Replaces a best or last checkpoint that an interruption cut short by the newest whole one.

    fairseq writes one checkpoint, which appears whole, and copies it to the best and then to the last: it is
    the newest. Without a whole one the cut ones go.
    """
    newest, last = newest_whole(checkpoints), checkpoints / "checkpoint_last.pt"
    for path in (checkpoints / "checkpoint_best.pt", last):
        if newest is None:
            path.unlink(missing_ok=True)
        elif (path.exists() or path == last) and updates_of(path) is None:
            with whole_file(path) as part:
                shutil.copyfile(newest, part)


KINDS = ("train_inner", "valid", "train")  # of a log's entries, as they come of the same update


class Log:
    """train.log as fairseq wrote it, and log.jsonl: its JSON lines with their kind, each once.

    ``done``: the updates from which the training goes on; what the logs tell of later ones is done again.
    Of the others log.jsonl gets what train.log has, also where the process that writes it was killed.
    """

    line = re.compile(rf"\| ({'|'.join(KINDS)}) \| (\{{.*\}})$")

    def __init__(self, folder: Path, raw: str = "train.log", done: int = 0):
        self.raw, self.jsonl = folder / raw, folder / "log.jsonl"
        logs = sorted(folder.glob("train*.log"), key=lambda path: path.stat().st_mtime)  # a node has its own
        lines = [line for path in logs for line in path.read_text(errors="replace").splitlines()]
        self.entries = {}
        for entry in (*read_lines(self.jsonl), *filter(None, map(self.entry, lines))):
            if updates_in(entry) <= done:
                self.add(entry)

    def entry(self, line: str) -> dict | None:
        """Returns what a line of fairseq's measured, if it did and was not cut short."""
        if not (found := self.line.search(line)):
            return None
        with suppress(ValueError):
            return {"kind": found[1], **{k: as_number(v) for k, v in json.loads(found[2]).items()}}

    def add(self, entry: dict) -> None:
        """Takes an entry; one that tells of the same updates gives way."""
        self.entries[updates_in(entry), KINDS.index(entry["kind"])] = entry

    def take(self, line: str) -> dict | None:
        """Keeps what a line of fairseq's measured, and returns it."""
        if entry := self.entry(line):
            self.add(entry)
            self.write()
        return entry

    def write(self) -> None:
        """Writes log.jsonl."""
        write_whole(self.jsonl, "".join(json.dumps(entry) + "\n" for entry in self.in_order()))

    def in_order(self) -> list[dict]:
        """Returns the entries as fairseq tells them of a training that nothing interrupts."""
        return [self.entries[key] for key in sorted(self.entries)]

    def speed(self) -> dict[str, float]:
        """Returns the median of the training's speeds, as fairseq tells them."""
        told = [entry for entry in self.entries.values() if entry.get("wps")]
        return {f"{counted(told[0])}_per_second": statistics.median(x["wps"] for x in told)} if told else {}


def counted(entry: dict) -> str:
    """Returns what the ``wps`` of an entry are: tokens, or rows where a task counts nothing smaller."""
    return "rows" if entry.get("wpb") == entry.get("bsz") else "tokens"


def updates_in(entry: dict) -> int:
    """Returns of how many updates an entry tells."""
    return next(value for key, value in entry.items() if key.endswith("num_updates"))


def read_lines(path: Path) -> list[dict]:
    """Returns the objects of a JSON lines file; a last line that is still being written does not count."""
    lines = path.read_text().splitlines() if path.exists() else []
    objects = []
    for number, line in enumerate(lines, 1):
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if isinstance(found, dict):
            objects.append(found)
        elif number < len(lines):
            raise ValueError(f"{path} is damaged (line {number} is no object): remove the run's folder")
    return objects


def as_number(value: object) -> object:
    for kind in (int, float):
        try:
            return kind(value) if isinstance(value, str) else value
        except ValueError:
            pass
    return value
