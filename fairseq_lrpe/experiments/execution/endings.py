"""Early endings of trainings: by a stop condition of fairseq, or because the loss diverged.

An ending is recorded in evaluation.json as {"ended": {"updates", "reason"}}, where ``updates`` is the number
of completed updates. A training that its time limit stopped has no ending, because it can be continued.
"""

import re
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from fairseq_lrpe.experiments.execution.run_files import entry_updates, parse_entry
from fairseq_lrpe.utils.errors import UserError

DIVERGED = "diverged"
TIME_LIMIT = "stop_time_hours"
FINAL = (DIVERGED, "patience", "stop_min_lr")
"""Reasons after which a training is not continued."""
REASONS = (*FINAL, "max_epoch")
"""Reasons of recorded endings."""
MESSAGES = {
    # fairseq raises the same exception if the gradients of two processes differ.
    DIVERGED: re.compile("FloatingPointError: (gradients are Nan/Inf|(AMP: )?Minimum loss scale reached)"),
    TIME_LIMIT: re.compile("Stopping training due to cumulative_training_time"),
    "patience": re.compile("early stop since valid performance hasn't improved"),
    "stop_min_lr": re.compile("stopping training because current learning rate"),
}
"""{reason: pattern of the line that fairseq-train prints when it stops for this reason}"""
START = "$ "  # precedes the command in a log; see ``run_command``


def log_sizes(folder: Path) -> dict[Path, int]:
    """Returns {path: size in bytes} of the logs of fairseq-train in a run's folder; each node writes one."""
    return {path: path.stat().st_size for path in sorted(folder.glob("train*.log"))}


def last_training(log: Path) -> list[str]:
    """Returns the lines of the last training in a log, to which resumed trainings are appended."""
    lines = []
    with log.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith(START):
                lines.clear()
            lines.append(line)
    return lines


def last_reason(logs: Iterable[Path]) -> str | None:
    """Returns why the last training ended early according to its nodes' logs, or None if no log says why."""
    reason = None
    for log in logs:
        for line in last_training(log):
            for name, message in MESSAGES.items():
                if message.search(line):
                    reason = name
    return reason


def find_ending(logs: Sequence[Path], command: list[str], reached: int, planned: int) -> dict | None:
    """Returns {"updates", "reason"} of a training that ended early for good, or None after all updates.

    Args:
        logs: the logs of fairseq-train, one for each node.
        command: the command that was executed.
        reached: the number of completed updates.
        planned: the number of updates of the experiment.

    Raises:
        UserError: if the training has to be continued.
    """
    reason = last_reason(logs)
    if reached >= planned and reason != DIVERGED:
        return None
    if reason is None and _value(command, "--max-epoch"):
        reason = "max_epoch"
    if reason in ("patience", "stop_min_lr", "max_epoch") and not reached:
        raise UserError(f"{reason} stopped the training before its first update: change this flag's value")
    if reason in REASONS:
        return {"updates": reached, "reason": reason}
    unknown = f"an unknown cause, see {', '.join(map(str, logs))}"
    cause = "the time limit --stop-time-hours" if reason == TIME_LIMIT else unknown
    raise UserError(
        f"stopped at {reached:,} of {planned:,} updates by {cause}: run the same command again to continue"
    )


def with_time_limit(command: list[str], checkpoint: dict | None) -> list[str]:
    """Returns ``command`` with a --stop-time-hours that counts from the start of the command.

    fairseq also counts the time before ``checkpoint``, so that a resumed training would stop at once.
    """
    limit = _value(command, "--stop-time-hours")
    if not limit or checkpoint is None:
        return command
    before = checkpoint["extra_state"].get("previous_training_time", 0) / 3600
    return [*command, "--stop-time-hours", f"{limit + before:.9g}"]


def _value(command, flag):
    """Returns the number that ``command`` passes to ``flag``, or None."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(flag, type=float, dest="value")
    return parser.parse_known_args(command)[0].value


def has_ended(record: dict, logged: int, planned: int) -> bool:
    """Returns whether a training needs no further updates.

    Args:
        record: the content of evaluation.json.
        logged: the last number of updates in log.jsonl, or 0 without a log.
        planned: the number of updates of the experiment.
    """
    # Version 1.1 also recorded trainings as finished that a stop condition had ended.
    return "ended" in record or ("finished" in record and not 0 < logged < planned)


def is_diverged(record: dict) -> bool:
    """Returns whether a training diverged; ``record`` is the content of its evaluation.json."""
    return record.get("ended", {}).get("reason") == DIVERGED


def describe(record: dict, planned: int) -> str:
    """Returns "finished", or a text that says how a training ended before its last update.

    Args:
        record: the content of evaluation.json.
        planned: the number of updates of the experiment.
    """
    ended = record.get("ended")
    if ended is None:
        return "finished"
    updates = f"{ended['updates']:,} of {planned:,} updates"
    if ended["reason"] == DIVERGED:
        return f"diverged after {updates}"
    return f"ended early after {updates} ({ended['reason']})"


def logged_updates(folder: Path) -> int:
    """Returns the last number of updates in the log.jsonl of a run's folder, or 0 without this file."""
    path = folder / "log.jsonl"
    lines = path.read_bytes().splitlines() if path.is_file() else []
    for line in reversed(lines):
        with suppress(ValueError):  # the last line may be incomplete
            return entry_updates(parse_entry(line))
    return 0
