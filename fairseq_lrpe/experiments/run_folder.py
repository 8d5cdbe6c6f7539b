"""A run's folder: its settings, its log, its training, whether it may go on where it stopped."""

import fcntl
import importlib.metadata
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import torch

import fairseq_lrpe.checkpoint  # noqa: F401  (torch's safe loading then takes fairseq's)
from fairseq_lrpe.commands import run_command
from fairseq_lrpe.experiments.experiment import is_free
from fairseq_lrpe.files import REPOSITORY, write_whole


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
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): put it right, or remove it") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged (it holds no object): put it right, or remove it")
    return found


class InUse(ValueError):
    """Another process works in the folder."""


@contextmanager
def locked(folder: Path) -> Iterator[IO]:
    """Yields the lock of the folder, made if need be, for this process alone; InUse if another one has it.

    What this process starts may hold the lock too: the folder stays locked should this one be killed and that
    go on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(f"{folder} is in use: another process is training there") from None
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
    differing = differences(before["config"], settings["config"])
    for name in ("flags", "precision"):
        differing += differences(before[name], settings[name], name)
    differing += other_data(before["data"], settings["data"])
    if before["starts_from"] and before["starts_from"]["sha256"] != settings["starts_from"]["sha256"]:
        differing.append(f"it went on from another checkpoint, {before['starts_from']['path']}")
    if differing:
        raise ValueError(
            f"{folder} holds a run with other settings ({'; '.join(differing)}): give the same, "
            "another --results, or remove the folder"
        )


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


def train(folder: Path, updates: int, command: list[str], log: "Log", *locks: IO) -> None:
    """Trains until ``updates`` are done; nothing to do if a checkpoint has them."""
    print(shlex.join(command), flush=True)
    # Of a training that is done, fairseq would do one more update.
    if updates_done(folder / "checkpoints") < updates:
        run_command(command, log.raw, log.take, cwd=REPOSITORY, pass_fds=[lock.fileno() for lock in locks])


def updates_done(checkpoints: Path) -> int:
    """Returns the updates of the last checkpoint; 0 if there is none."""
    last = checkpoints / "checkpoint_last.pt"
    if not last.exists():
        return 0
    state = torch.load(last, map_location="cpu", mmap=True, weights_only=True)
    return state["optimizer_history"][-1]["num_updates"]


def mend(checkpoints: Path) -> None:
    """Replaces a checkpoint_last.pt that an interruption cut short by its original.

    fairseq copies it; the original is then whole.
    """
    last = checkpoints / "checkpoint_last.pt"
    if last.exists() and not zipfile.is_zipfile(last):
        originals = [path for path in checkpoints.glob("checkpoint*.pt") if zipfile.is_zipfile(path)]
        if not originals:
            last.unlink()
        else:
            os.replace(max(originals, key=lambda path: path.stat().st_mtime), last)


class Log:
    """train.log as fairseq wrote it, and log.jsonl: its JSON lines with their kind.

    A continued run repeats updates; the last of each counts. ``show``: the key of a validation that is told.
    """

    line = re.compile(r"\| (train_inner|train|valid) \| (\{.*\})$")

    def __init__(self, folder: Path, raw: str = "train.log", show: str = "valid_loss"):
        self.raw, self.jsonl, self.show, self.entries = folder / raw, folder / "log.jsonl", show, {}
        for entry in read_lines(self.jsonl):
            self.add(entry)

    def add(self, entry):
        updates = next((value for key, value in entry.items() if key.endswith("num_updates")), None)
        self.entries.pop((entry["kind"], updates), None)
        self.entries[entry["kind"], updates] = entry

    def take(self, line):
        found = self.line.search(line)
        if not found:
            return
        entry = {"kind": found[1], **{k: as_number(v) for k, v in json.loads(found[2]).items()}}
        self.add(entry)
        write_whole(self.jsonl, "".join(json.dumps(e) + "\n" for e in self.entries.values()))
        if entry["kind"] == "valid":
            what = self.show if self.show in entry else "valid_loss"
            told = f"{what.replace('_', ' ')} {entry[what]}"
            print(f"    {entry['valid_num_updates']} updates: {told}", flush=True)

    def speed(self) -> dict[str, float]:
        """Returns the median of the training's speeds, as fairseq tells them."""
        speeds = [entry["wps"] for entry in self.entries.values() if entry.get("wps")]
        return {"tokens_per_second": statistics.median(speeds)} if speeds else {}


def read_lines(path: Path) -> list[dict]:
    """Returns the objects of a JSON lines file; a last line that is still being written does not count."""
    lines = path.read_text().splitlines() if path.exists() else []
    objects = []
    for number, line in enumerate(lines, 1):
        try:
            objects.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise
    return objects


def as_number(value: object) -> object:
    for kind in (int, float):
        try:
            return kind(value) if isinstance(value, str) else value
        except ValueError:
            pass
    return value
