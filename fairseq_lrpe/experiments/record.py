"""What is on record of a run: how far it came, and what was measured."""

import sys
from dataclasses import dataclass
from pathlib import Path

from fairseq_lrpe.experiments.kinds.base import Curve
from fairseq_lrpe.experiments.run_folder import OldLayout, is_locked, read_json, read_lines


@dataclass
class Record:
    """One run as its folder has it."""

    updates: int
    reached: int  # of the updates
    active: bool  # whether a process trains there
    curve: dict[int, float]  # {updates: value} of the validations
    values: dict[str, dict]  # {evaluation: {metric: value, ..}}
    length: tuple[int, str]  # of the training, such as (3, "epochs")

    def state(self) -> str:
        if self.active:
            return f"running {self.reached}/{self.updates}"
        stopped = f"stopped at {self.reached} of {self.updates}"
        return stopped if self.reached < self.updates else "not measured"


def read(folder: Path, curve: Curve | None = None) -> Record | None:
    """Returns the record of the run in a folder; None where there is none or, said on stderr, a damaged one.

    ``curve`` says what of the log's validations the plots show.
    """
    if not (folder / "run.json").exists():
        return None
    try:
        settings = read_json(folder / "run.json")
        if settings and "kind" not in settings:
            raise OldLayout(folder)
        log, evaluation = read_lines(folder / "log.jsonl"), read_json(folder / "evaluation.json")
        reached = [int(value) for entry in log for key, value in entry.items() if key.endswith("num_updates")]
        values, epochs = evaluation.get("evaluations", {}), settings["config"].get("epochs")
        if not all(isinstance(measured, dict) for measured in values.values()):
            raise ValueError("an evaluation has no values")
        # Of a run that chose, the curve is the best trial's.
        best = (folder / evaluation["checkpoint"]).parents[1] if "checkpoint" in evaluation else folder
        validations = [e for e in read_lines(best / "log.jsonl") if e["kind"] == "valid"]
        points = {int(e["valid_num_updates"]): e[curve.key] for e in validations if curve and curve.key in e}
        return Record(
            updates=int(settings["updates"]),
            reached=max(reached, default=0),
            active=is_locked(folder),
            curve={updates: curve.factor * float(value) for updates, value in points.items()},
            values=values,
            length=(epochs, "epochs") if epochs else (settings["config"].get("updates"), "updates"),
        )
    except OldLayout as error:
        print(f"results: {error}", file=sys.stderr)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else error
        print(f"results: {folder} cannot be read ({what}) and counts as missing", file=sys.stderr)
    return None
