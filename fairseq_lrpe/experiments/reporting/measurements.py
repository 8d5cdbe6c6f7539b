"""All measurements of a results folder, and all published numbers, as tidy DataFrames."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from fairseq_lrpe.experiments.reporting.records import RunRecord, read_run
from fairseq_lrpe.experiments.spec import experiment as experiments
from fairseq_lrpe.experiments.spec.run import as_text, run_folders
from fairseq_lrpe.experiments.spec.table import read_paper

RUN = ["experiment", "attention", "method", "changes", "seed"]
"""The columns that identify a run."""
STATE = ["kind", "updates", "reached", "length", "unit", "state", "problem", "folder"]
MEASUREMENT = ["evaluation", "metric", "value", "signature"]
PUBLISHED = ["paper", "table", "row", "attention", "method", "changes", "column", "metric", "better"]


def load_results(results: str | Path) -> pd.DataFrame:
    """Loads every measurement below a results folder, one per line.

    Args:
        results: the folder that ``lrpe train`` or ``lrpe table`` wrote to (``--results``).

    Returns:
        A DataFrame with the columns

        - experiment, attention, method, changes, seed: the run; ``changes`` is "KEY=VALUE, ..", or empty
        - evaluation, metric, value: what was measured. A run without measurements has one line in which
          these are missing; a run that diverged has a metric whose value is NaN.
        - signature: how the metric was computed (sacreBLEU's signature), if known
        - kind: the kind of experiment, such as language_modeling
        - updates, reached: the planned updates, and those done
        - length, unit: the length of the training, such as 400 and "updates"
        - state: finished, running, stopped, failed or damaged
        - problem: why a damaged run cannot be read
        - folder: the run's folder

    Example::

        results = fairseq_lrpe.load_results("results")
        results.query("metric == 'perplexity'").groupby(["experiment", "method"])["value"].mean()
    """
    results = Path(results).absolute()
    check_folder(results)
    return measurements(read_run(folder, results) for folder in run_folders(results))


def check_folder(results: Path) -> None:
    """Raises ValueError if the results folder does not exist."""
    if not results.is_dir():
        raise ValueError(f"the results folder {results} does not exist")


def measurements(records: Iterable[RunRecord]) -> pd.DataFrame:
    """Returns the DataFrame of :func:`load_results` for these runs."""
    lines = [
        _run_values(record) | dict(zip(MEASUREMENT, measured, strict=True))
        for record in records
        for measured in list(record.measurements()) or [(None,) * len(MEASUREMENT)]
    ]
    frame = pd.DataFrame(lines, columns=[*RUN, *MEASUREMENT, *STATE])
    return frame.astype({name: "float64" for name in ("value", "updates", "reached", "length")})


def curves(records: Iterable[RunRecord]) -> pd.DataFrame:
    """Returns the validation curves of runs, one validation per line.

    The columns are experiment, attention, method, changes, seed (the run), kind, is_measured (whether the run
    has evaluations), folder, updates and value. ``KINDS[kind].curve`` says what the value is.
    """
    columns = [*RUN, "kind", "is_measured", "folder"]
    lines = []
    for record in records:
        run = {**_run_values(record), "is_measured": bool(record.values)}
        run = {name: run[name] for name in columns}
        lines += [{**run, "updates": updates, "value": x} for updates, x in record.curve.items()]
    return pd.DataFrame(lines, columns=[*columns, "updates", "value"])


def _run_values(record):
    """The columns of a run, {name: value}."""
    values = {name: getattr(record, name) for name in (*RUN, *STATE)}
    kind = record.settings["kind"] if record.kind else None
    return values | {"changes": ", ".join(record.changes), "kind": kind, "folder": str(record.folder)}


def published() -> pd.DataFrame:
    """Loads the published numbers of all papers in ``configs/paper``, one per line.

    Returns:
        A DataFrame with the columns

        - paper, table: the file in ``configs/paper`` and the table in it
        - row, attention, method, changes: the table's row, and what it corresponds to in this project, if
          anything; ``changes`` has the form that :func:`load_results` has
        - column, metric, better: the table's column, its metric, and whether "lower" or "higher" is better
        - mean, std: the number and its standard deviation, if one was published
    """
    lines = []
    for path in sorted((experiments.CONFIGS / "paper").glob("*.yaml")):
        for name, table in read_paper(path).tables.items():
            for row in table.rows:
                changes = ", ".join(f"{key}={as_text(value)}" for key, value in sorted(row.changes.items()))
                key = [path.stem, name, row.row, row.attention, row.method, changes]
                for column in row.values:
                    about, number = table.columns[column], row.published(column)
                    if number:  # otherwise a dash in the paper
                        lines.append([*key, column, about.metric, about.better, *number])
    frame = pd.DataFrame(lines, columns=[*PUBLISHED, "mean", "std"])
    return frame.astype({"mean": "float64", "std": "float64"})
