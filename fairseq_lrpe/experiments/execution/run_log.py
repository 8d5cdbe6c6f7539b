"""Collects the metrics in fairseq's logs of a training as the entries of log.jsonl."""

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
    """The metrics that fairseq writes to the log ``name`` in a run's folder, copied to log.jsonl.

    ``entries`` are the metrics up to ``completed`` updates, from which training resumes; those that are
    missing in log.jsonl, because its writer was killed, are read from the logs.
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
        """Returns the entry in a line of fairseq's log, or None."""
        match = self.pattern.search(line)
        if not match:
            return None
        with suppress(ValueError):
            values = {key: to_number(value) for key, value in from_json(match[2]).items()}
            return checked_entry({"kind": match[1], **values})

    def record(self, line: str) -> dict | None:
        """Adds the entry in a line of fairseq's log, if it has one, to the entries and to log.jsonl."""
        entry = self.parse(line)
        if entry:
            self.entries.append(entry)
            with named_write_errors(self.jsonl), self.jsonl.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        return entry

    def restore(self, checkpoints: Path, updates: int) -> None:
        """Writes log.jsonl; adds an entry without metrics for an epoch that was saved, but not logged."""
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
    """Sorts entries as fairseq logs them, and keeps the last of each kind and number of updates."""
    last = {}
    for entry in entries:
        last[entry_updates(entry), ORDER.index(entry["kind"])] = entry
    return [last[place] for place in sorted(last)]


def training_speed(folder: Path) -> dict[str, float]:
    """Returns the median logged speed, such as {"tokens_per_second": 9000.0}; {} if none was logged."""
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
