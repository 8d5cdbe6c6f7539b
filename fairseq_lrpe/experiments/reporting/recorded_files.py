"""Functions that write the files of a folder of recorded results; ``recorded_results.py`` reads them."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.reporting.recorded_results import (
    MEASUREMENTS,
    POINTS,
    RUN,
    curves_file,
    measurements_file,
    read_csv,
    settings_file,
    types_of,
)
from fairseq_lrpe.experiments.reporting.run_record import RunRecord, row_key
from fairseq_lrpe.experiments.reporting.settings import compared, machine
from fairseq_lrpe.utils.files import output_folder, write_atomic

MAX_POINTS = 20  # number of points of a recorded curve


def write_experiment(
    experiment: str, runs: Mapping[Run, RunRecord], lines: Mapping[Run, dict], folder: Path
) -> None:
    """Writes the files of an experiment with its settings, measurements and curves.

    Args:
        experiment: name of the experiment.
        runs: {run: record} of the runs to record; runs of other experiments are left out.
        lines: {run: line in the file of settings} of all recorded runs.
        folder: the folder of recorded results.
    """
    recorded = {}  # {attention: {run: record}}
    points = []
    for run, record in runs.items():
        if run.experiment == experiment:
            recorded.setdefault(run.attention, {})[run] = record
            for point in _points(record):
                points.append(row_key(run) + point)
    merge_rows(folder / curves_file(experiment), POINTS, points, runs)
    for attention, chosen in recorded.items():
        path = folder / measurements_file(experiment, attention)
        merge_rows(path, MEASUREMENTS, measurement_rows(chosen), chosen)
    texts = []
    for run in sorted(lines, key=row_key):
        if run.experiment == experiment:
            texts.append(json.dumps(lines[run]) + "\n")
    write_atomic(folder / settings_file(experiment), "".join(texts))


def measurement_rows(runs: Mapping[Run, RunRecord]) -> list[tuple]:
    """Returns the rows of the file of measurements for ``runs``; ``MEASUREMENTS`` are the columns."""
    rows = []
    for run, record in runs.items():
        for measurement in record.measurements():
            rows.append(row_key(run) + measurement)
    return rows


def _points(record):
    """Returns at most ``MAX_POINTS`` points of a run's curve, including the first and the last point."""
    points = sorted(record.curve.items())
    last = len(points) - 1
    count = min(len(points), MAX_POINTS)
    kept = {}
    for number in range(count):
        index = round(last * number / max(count - 1, 1))
        kept[index] = points[index]
    return list(kept.values())


def settings_line(record: RunRecord) -> dict:
    """Returns the line of a run in the file of settings as a dictionary; see ``RecordedSettings``."""
    run = record.run
    settings = record.settings
    git = settings.get("git", {})
    line = {
        "experiment": run.experiment,
        "attention": run.attention,
        "method": run.method,
        "seed": run.seed,
        "changes": dict(run.changes),
        "kind": settings["kind"],
        "updates": record.updates,
    }
    if "ended" in record.evaluation:
        line["ended"] = record.evaluation["ended"]
    evaluations = {}
    for name, measured in record.measured.items():
        if "settings" in measured:
            evaluations[name] = measured["settings"]
    return line | {
        "config": compared(settings["config"], run.method, {})[""],
        "evaluations": evaluations,
        "data": data_digest(settings),
        "machine": machine(settings),
        "versions": settings.get("versions", {}),
        "git": {"revision": (git.get("revision") or "")[:12], "dirty": git.get("dirty")},
        "seconds": None if math.isnan(record.seconds) else record.seconds,
        "finished": record.evaluation["finished"][:10],
    }


def data_digest(settings: dict) -> str:
    """Returns a digest, eight hexadecimal digits, of the sizes of the data files of a run.

    Args:
        settings: the content of run.json, or the recorded settings, which already contain the digest.
    """
    data = settings.get("data", {})
    text = json.dumps(data, sort_keys=True)
    return data if isinstance(data, str) else hashlib.sha256(text.encode()).hexdigest()[:8]


def merge_rows(path: Path, columns: list[str], rows: list[tuple], runs: Iterable[Run]) -> None:
    """Replaces the rows of ``runs`` in a CSV file by ``rows``; numbers are written with all digits."""
    frames = [pd.DataFrame(rows, columns=columns).fillna({"signature": ""})] if rows else []
    if path.exists():
        before = read_csv(path, columns)
        is_replaced = pd.MultiIndex.from_frame(before[RUN]).isin([row_key(run) for run in runs])
        frames.insert(0, before[~is_replaced])
    if frames:
        merged = pd.concat(frames).astype(types_of(columns))
        merged = merged.sort_values(columns[: columns.index("value")])
        text = merged.to_csv(index=False, na_rep="nan", lineterminator="\n")
        with output_folder(path.parent):
            write_atomic(path, text)
