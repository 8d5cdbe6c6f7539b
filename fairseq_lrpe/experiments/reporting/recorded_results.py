"""Functions that read a folder of recorded results, such as docs/results.

The folder contains settings/EXPERIMENT.jsonl, with one JSON object per run,
measurements/EXPERIMENT-ATTENTION.csv, with one line per number, curves/EXPERIMENT.csv, with one line per
point, and attention_weights.csv.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pandas as pd

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.execution.run_files import parse_object
from fairseq_lrpe.experiments.execution.run_schema import RecordedSettings
from fairseq_lrpe.experiments.reporting.run_record import RunRecord, row_key, with_current_settings
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import read_file

RUN = ["experiment", "attention", "method", "changes", "seed"]
"""Columns of a DataFrame that identify a run."""
MEASUREMENTS = [*RUN, "evaluation", "metric", "value", "signature"]
POINTS = [*RUN, "updates", "value"]
WEIGHTS = [*RUN, "distance", "value"]
"""Columns of recorded files: ``MEASUREMENTS``, ``POINTS`` of curves, ``WEIGHTS`` of attention_weights.csv."""
TYPES = {"distance": int, "seed": int, "updates": int, "value": float}


def settings_file(experiment: str) -> str:
    """Returns the name of an experiment's file of settings."""
    return f"settings/{_stem(experiment)}.jsonl"


def measurements_file(experiment: str, attention: str) -> str:
    """Returns the name of the file of the measurements of an experiment with a type of attention."""
    return f"measurements/{_stem(experiment)}-{attention}.csv"


def curves_file(experiment: str) -> str:
    """Returns the name of an experiment's file of curves."""
    return f"curves/{_stem(experiment)}.csv"


def _stem(experiment):
    return experiment.replace("/", "-")


def is_recorded(results: Path) -> bool:
    return (results / "measurements").is_dir()


def check_recorded(folder: Path) -> None:
    """Raises UserError if a folder has no recorded results."""
    if not is_recorded(folder):
        wrong = "contains no recorded results (no folder measurements)"
        raise UserError(f"{folder} {wrong}: `lrpe results --record FOLDER` writes them")


def read_settings(folder: Path) -> dict[Run, dict]:
    """Returns {run: line of the run in settings/EXPERIMENT.jsonl} of a folder of recorded results."""
    lines = {}
    places = {}
    for path in sorted((folder / "settings").glob("[!.]*.jsonl")):
        try:
            for number, text in enumerate(read_file(path).splitlines(), 1):
                line = parse_object(text, RecordedSettings)
                run = Run.of(line)
                if run in lines:
                    raise UserError(f"line {number} is about {run}, as {places[run]}")
                lines[run] = line
                places[run] = f"line {number} of {path.name}"
        except ValueError as error:
            raise _damaged(path, error) from None
    return lines


def runs_on_other_data(lines: Mapping[Run, dict]) -> Iterator[tuple[Run, Run]]:
    """Yields (run, first run) if a table compares both, and they were trained on different data.

    Args:
        lines: {run: line in the file of settings}; the first run of an experiment determines its data.
    """
    first = {}
    for run, line in lines.items():
        other = first.setdefault((run.experiment, run.changes), run)
        if line.get("data") != lines[other].get("data"):
            yield run, other


def read_recorded(folder: Path, is_selected: Callable[[Run], bool] | None = None) -> list[RunRecord]:
    """Returns the records of recorded runs, without numbers whose settings in configs have changed since.

    ``is_selected`` returns whether a run is read (default: all are). Comparing the settings of a run with
    configs takes most of the time.
    """
    lines = read_settings(folder)
    if is_selected:
        lines = {run: line for run, line in lines.items() if is_selected(run)}
    measured = read_by_run((folder / "measurements").glob("[!.]*.csv"), MEASUREMENTS)
    curves = read_by_run((folder / "curves").glob("[!.]*.csv"), POINTS)
    records = []
    for run, settings in lines.items():
        record = _as_record(folder, run, settings, measured.get(row_key(run), ()))
        record.curve = dict(curves.get(row_key(run), ()))
        records.append(record)
    return with_current_settings(records)


def _as_record(folder, run, settings, measured):
    """Returns the record of a recorded run, equal to the one that is read from the files of the run itself.

    Args:
        folder: the folder of recorded results.
        run: the run.
        settings: the run's line in the file of settings.
        measured: the run's rows (evaluation, metric, value, signature) in the file of measurements.
    """
    evaluations = {}
    for name, evaluation_settings in settings["evaluations"].items():
        evaluations[name] = {"settings": evaluation_settings}
    for name, metric, value, signature in measured:
        values = evaluations.setdefault(name, {})
        values[metric] = value
        if signature:
            values[f"{metric}_signature"] = signature
    evaluation = {"evaluations": evaluations, "finished": settings["finished"]}
    if "ended" in settings:
        evaluation["ended"] = settings["ended"]
    record = RunRecord(run, folder / str(run), settings, evaluation)
    record.complete()
    record.reached = settings["ended"]["updates"] if "ended" in settings else record.updates
    return record


def read_by_run(paths, columns):
    """Returns {values of the columns ``RUN``: rows of the other columns} from CSV files.

    Raises:
        UserError: if a file is damaged, or two files have rows of the same run.
    """
    rows_by_run = {}
    path_of = {}
    for path in sorted(paths):
        for index, *row in read_csv(path, columns).itertuples(name=None):
            key = tuple(row[: len(RUN)])
            other = path_of.setdefault(key, path)
            if other != path:
                wrong = f"line {_line_number(index)} is about {row_text(key)}, as lines of {other.name}"
                raise _damaged(path, wrong)
            rows_by_run.setdefault(key, []).append(tuple(row[len(RUN) :]))
    return rows_by_run


def row_text(key: tuple) -> str:
    """Returns the text of a run from its values of the columns ``RUN``."""
    experiment, attention, method, changes, seed = key
    return "/".join(filter(None, (experiment, f"{attention}_{method}", changes, f"seed-{seed}")))


def read_weights(folder: Path, runs: Iterable[Run]) -> dict[Run, list[tuple[int, float]]]:
    """Returns {run: [(distance, weight)]} of the runs in ``runs`` that attention_weights.csv contains."""
    rows = read_by_run(folder.glob("attention_weights.csv"), WEIGHTS)
    weights = {}
    for run in runs:
        if row_key(run) in rows:
            weights[run] = rows[row_key(run)]
    return weights


def shown_distances(length: int) -> list[int]:
    """Returns the distances below ``length`` whose weights are recorded: all below 32, then every third."""
    return [*range(min(length, 32)), *range(32, length, 3)]


def read_csv(path: Path, columns: list[str]) -> pd.DataFrame:
    """Returns the columns of a CSV file as a DataFrame.

    Raises:
        UserError: if the file is damaged, or two lines differ at most in the value and what follows it.
    """
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False, usecols=columns)
        frame = frame.astype(types_of(columns))
        frame = frame[columns]
        _check_unique(frame, columns[: columns.index("value")])
    except ValueError as error:
        raise _damaged(path, error) from None
    return frame


def _check_unique(frame, names):
    """Raises UserError if two rows have the same values in the columns ``names``."""
    is_repeated = frame.duplicated(names)
    if is_repeated.any():
        index = is_repeated.idxmax()
        values = frame.loc[index, names].tolist()
        number = " ".join(map(str, values[len(RUN) :]))
        run = row_text(values[: len(RUN)])
        raise UserError(f"line {_line_number(index)} repeats {number} of {run}")


def _line_number(index):
    """Returns the number of the line, counted from 1, of the row ``index`` after the header."""
    return index + 2


def types_of(columns: list[str]) -> dict[str, type]:
    """Returns {column: type} of the columns that contain numbers instead of text."""
    return {name: TYPES[name] for name in columns if name in TYPES}


def _damaged(path, error):
    text = " ".join(str(error).split())
    return UserError(f"{path} is damaged ({text}): restore it, for example with git, and record again")
