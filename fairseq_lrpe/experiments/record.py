"""What is on record of a run: how far it came, and what was measured."""

import sys
from dataclasses import dataclass
from pathlib import Path

from fairseq_lrpe.experiments.kinds import KINDS, Kind
from fairseq_lrpe.experiments.run_folder import OldLayout, is_locked, object_in, read_lines


@dataclass
class Record:
    """One run as its folder has it."""

    kind: Kind
    updates: int
    reached: int  # of the updates
    active: bool  # whether a process trains there
    finished: bool
    curve: dict[int, float]  # {updates: value} of the validations
    values: dict[str, dict]  # {evaluation: {metric: value, ..}}
    length: tuple[int, str]  # of the training, such as (3, "epochs")

    def state(self) -> str:
        if self.active:
            return f"running {self.reached}/{self.updates}"
        if self.finished:
            return "finished"
        stopped = f"stopped at {self.reached} of {self.updates}"
        return stopped if self.reached < self.updates else "not measured"


class Damaged(ValueError):
    """A folder's record cannot be read; ``reason`` says why."""

    def __init__(self, folder: Path, reason: object):
        self.reason = str(reason)
        super().__init__(f"{folder} cannot be read ({reason}) and counts as missing")


def load(folder: Path) -> Record:
    """Returns the record of the run in a folder; Damaged or OldLayout where it cannot be read."""
    try:
        settings = object_in(folder / "run.json")
        if not settings:
            raise ValueError("run.json is missing or empty")
        if "kind" not in settings:
            raise OldLayout(folder)
        if settings["kind"] not in KINDS:
            raise ValueError(f"run.json has the unknown kind {settings['kind']!r}")
        log, evaluation = read_lines(folder / "log.jsonl"), object_in(folder / "evaluation.json")
        reached = [int(value) for entry in log for key, value in entry.items() if key.endswith("num_updates")]
        values, epochs = evaluation.get("evaluations", {}), settings["config"].get("epochs")
        if not all(isinstance(measured, dict) for measured in values.values()):
            raise ValueError("an evaluation has no values")
        kind = KINDS[settings["kind"]]
        length = (epochs, "epochs") if epochs else (settings["config"].get("updates"), "updates")
        numbers = {f"{length[1]} of run.json": length[0] or 0}
        for name, measured in values.items():
            shown = (x for x in measured if x in kind.metrics or x.endswith("_per_second"))
            numbers |= {f"{metric} of the evaluation {name}": measured[metric] for metric in shown}
        for what, value in numbers.items():
            if not isinstance(value, int | float):
                raise ValueError(f"{what} is no number: {value!r}")
        # Of a run that chose, the curve is the best trial's.
        best = (folder / evaluation["checkpoint"]).parents[1] if "checkpoint" in evaluation else folder
        validations = [e for e in read_lines(best / "log.jsonl") if e["kind"] == "valid"]
        points = {int(e["valid_num_updates"]): e[kind.curve.key] for e in validations if _has(e, kind)}
        return Record(
            kind=kind,
            updates=int(settings["updates"]),
            reached=max(reached, default=0),
            active=is_locked(folder),
            finished="finished" in evaluation,
            curve={updates: kind.curve.factor * float(value) for updates, value in points.items()},
            values=values,
            length=length,
        )
    except OldLayout:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise Damaged(folder, f"no {error}" if isinstance(error, KeyError) else error) from None


def _has(entry, kind):
    return kind.curve is not None and kind.curve.key in entry


def read(folder: Path) -> Record | None:
    """Returns the record of the run in a folder, or None; what is damaged is said on stderr."""
    if not (folder / "run.json").exists():
        return None
    try:
        return load(folder)
    except (Damaged, OldLayout) as error:
        print(f"results: {error}", file=sys.stderr)
    return None
