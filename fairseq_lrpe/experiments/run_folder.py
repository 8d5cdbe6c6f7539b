"""A run's folder: its settings, its log, its training, whether it may go on where it stopped."""

import fcntl
import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import zipfile
from contextlib import contextmanager
from datetime import UTC, datetime

import torch

import fairseq_lrpe.checkpoint  # noqa: F401  (of checkpoints)
from fairseq_lrpe.commands import run_command
from fairseq_lrpe.experiments.compose import REPOSITORY


def readable(path):
    """The path from the repository, where the commands run, if it is inside."""
    return path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path


def versions():
    found = {"python": platform.python_version()}
    for name, package in (("torch", "torch"), ("fairseq", "fairseq-fixed"), ("fairseq_lrpe", "fairseq-lrpe")):
        try:
            found[name] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def git():
    """The revision that runs, and whether tracked files differ from it; None outside of git."""

    def ask(*words):
        try:
            return subprocess.run(
                ["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=True
            ).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None

    changes = ask("status", "--porcelain", "--untracked-files=no")
    return {"revision": ask("rev-parse", "HEAD"), "dirty": None if changes is None else bool(changes)}


def now():
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_whole(path, text):
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)


class InUse(ValueError):
    """Another process works in the folder."""


@contextmanager
def locked(folder):
    """The folder, made if need be, for this process alone; InUse if another one has it.

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


def check_same(folder, settings):
    """Refuse to go on in a folder whose run was started with other settings.

    The machines may differ, for the total batch stays the same, and so may the versions; run.json tells
    those of the last start.
    """
    path = folder / "run.json"
    if not path.exists():
        return
    before = json.loads(path.read_text())
    differing = []
    for name in ("config", "flags", "precision", "data", "checkpoint"):
        differing += differences(before.get(name), settings.get(name), name)
    if differing:
        raise ValueError(
            f"{folder} holds a run with other settings ({'; '.join(differing)}): give the same, "
            "another --results, or remove the folder"
        )


FREE = ("source", "seeds", "per_gpu", "batch_size", "num_workers", "data_buffer_size", "path")
"""What may differ inside the settings: it changes nothing about one run."""


def differences(before, after, name):
    """["key was this, now that"]; keys inside "config" go without its name, as in an override."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [] if before == after else [f"{name} was {before}, now {after}"]
    prefix = "" if name == "config" else f"{name}."
    found = []
    for key in dict.fromkeys([*before, *after]):
        if key not in FREE:
            found += differences(before.get(key), after.get(key), prefix + key)
    return found


def train(folder, updates, command, log, *locks):
    """Train until ``updates`` are done; nothing to do if a checkpoint has them."""
    print(shlex.join(command), flush=True)
    # Of a training that is done, fairseq would do one more update.
    if updates_done(folder / "checkpoints") < updates:
        run_command(command, log.raw, log.take, cwd=REPOSITORY, pass_fds=[lock.fileno() for lock in locks])


def updates_done(checkpoints):
    """The updates of the last checkpoint; 0 if there is none."""
    last = checkpoints / "checkpoint_last.pt"
    if not last.exists():
        return 0
    state = torch.load(last, map_location="cpu", mmap=True, weights_only=True)
    return state["optimizer_history"][-1]["num_updates"]


def mend(checkpoints):
    """fairseq copies checkpoint_last.pt, which an interruption can cut short; its original is then whole."""
    last = checkpoints / "checkpoint_last.pt"
    if last.exists() and not zipfile.is_zipfile(last):
        originals = [path for path in checkpoints.glob("checkpoint*.pt") if zipfile.is_zipfile(path)]
        if not originals:
            last.unlink()
        else:
            os.replace(max(originals, key=lambda path: path.stat().st_mtime), last)


class Log:
    """train.log as fairseq wrote it, and log.jsonl: its JSON lines with their kind.

    A continued run repeats updates; the last of each counts.
    """

    line = re.compile(r"\| (train_inner|train|valid) \| (\{.*\})$")

    def __init__(self, folder, raw="train.log"):
        self.raw, self.jsonl, self.entries = folder / raw, folder / "log.jsonl", {}
        if self.jsonl.exists():
            for text in self.jsonl.read_text().splitlines():
                self.add(json.loads(text))

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
            what = "valid_ppl" if "valid_ppl" in entry else "valid_loss"
            print(
                f"    {entry['valid_num_updates']} updates: {what.replace('_', ' ')} {entry[what]}",
                flush=True,
            )


def as_number(value):
    for kind in (int, float):
        try:
            return kind(value) if isinstance(value, str) else value
        except ValueError:
            pass
    return value
