"""The metrics in fairseq's logs of a training, collected as the entries of log.jsonl."""

import json
import re
import statistics
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pydantic_core import from_json

from fairseq_lrpe.experiments.execution.run_directory import LAST, completed_updates, read_checkpoint
from fairseq_lrpe.experiments.execution.run_files import checked_entry, entry_updates, read_log, speed_unit
from fairseq_lrpe.experiments.execution.run_schema import UPDATES
from fairseq_lrpe.utils.files import named_write_errors, write_atomic

ORDER = list(UPDATES)
"""Kinds of log entries in the order in which fairseq logs them."""


class Log:
    """Log of a training: the metrics that fairseq prints are appended to log.jsonl.

    Entries that log.jsonl lacks, because its writer was killed, are read from fairseq's logs.

    Args:
        folder: the run's folder.
        name: name of the file to which fairseq's output is written.
        completed: the number of updates after which the training resumes; later entries are dropped.
    """

    pattern = re.compile(r"\| (train_inner|valid|train) \| (\{.*\})$")

    def __init__(self, folder: Path, name: str = "train.log", completed: int = 0):
        self.path = folder / name
        self.jsonl = folder / "log.jsonl"
        entries = list(read_log(folder))
        logs = [path for path in folder.glob("train*.log") if path.is_file()]  # each node has a log
        logs.sort(key=lambda path: path.stat().st_mtime)
        for path in logs:
            for line in path.read_text("utf-8", "replace").splitlines():
                entry = self.parse(line)
                if entry:
                    entries.append(entry)
        self.entries = in_order(entry for entry in entries if entry_updates(entry) <= completed)

    def parse(self, line: str) -> dict | None:
        """Returns the metrics in a line of fairseq's log as an entry of log.jsonl, or None."""
        match = self.pattern.search(line)
        if not match:
            return None
        with suppress(ValueError):
            values = {key: to_number(value) for key, value in from_json(match[2]).items()}
            return checked_entry({"kind": match[1], **values})

    def record(self, line: str) -> dict | None:
        """Adds the entry in a line of fairseq's log to ``entries`` and log.jsonl; returns it, or None."""
        entry = self.parse(line)
        if entry:
            self.entries.append(entry)
            with named_write_errors(self.jsonl), self.jsonl.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        return entry

    def restore(self, checkpoints: Path, updates: int) -> None:
        """Writes ``entries`` to log.jsonl.

        If the last epoch was completed but not logged, an entry without metrics is added for it.

        Args:
            checkpoints: the folder of the run's checkpoints.
            updates: the number of updates after which the training ends.
        """
        completed = completed_updates(checkpoints) if self.entries else 0
        if completed:
            epochs = read_checkpoint(checkpoints / LAST, "")["extra_state"]["train_iterator"]
            is_end = epochs["iterations_in_epoch"] == 0
            logged = [entry["train_num_updates"] for entry in self.entries if entry["kind"] == "train"]
            if (is_end or completed >= updates) and completed not in logged:
                entry = {"kind": "train", "epoch": epochs["epoch"] - is_end, "train_num_updates": completed}
                self.entries = in_order([*self.entries, entry])
        write_atomic(self.jsonl, "".join(json.dumps(entry) + "\n" for entry in self.entries))


def in_order(entries: Iterable[dict]) -> list[dict]:
    """Returns entries in fairseq's order, with only the last of each kind and number of updates."""
    last = {}
    for entry in entries:
        last[entry_updates(entry), ORDER.index(entry["kind"])] = entry
    return [last[place] for place in sorted(last)]


def training_speed(folder: Path) -> dict[str, float]:
    """Returns the median of the logged speeds, such as {"tokens_per_second": 9000.0}, or {} without any."""
    speeds = []
    units = []
    for entry in read_log(folder):
        if entry.get("wps"):
            speeds.append(entry["wps"])
            units.append(speed_unit(entry))
    return {f"{units[0]}_per_second": statistics.median(speeds)} if speeds else {}


def to_number(value: object) -> object:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value) if isinstance(value, str) else value
    return value
