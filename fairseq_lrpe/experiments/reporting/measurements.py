"""The measurements in a results folder and the published numbers as DataFrames, one number per line."""

from pathlib import Path

import pandas as pd

from fairseq_lrpe.experiments.definition import config_files
from fairseq_lrpe.experiments.definition.run import as_text
from fairseq_lrpe.experiments.definition.table_settings import Paper, read_model
from fairseq_lrpe.experiments.reporting.recorded_results import MEASUREMENTS
from fairseq_lrpe.experiments.reporting.records import read_runs
from fairseq_lrpe.experiments.reporting.run_record import row_key

STATE = ["kind", "updates", "reached", "length", "unit", "state", "problem", "folder"]
PUBLISHED = ["paper", "table", "row", "attention", "method", "changes", "column", "metric", "better"]


def load_results(results: str | Path) -> pd.DataFrame:
    """Returns all measurements below a results folder as a DataFrame with one measurement per line.

    Args:
        results: the folder to which ``lrpe train`` or ``lrpe table`` wrote (``--results``), or a folder of
            recorded results (``lrpe results --record``), such as docs/results.

    Returns:
        A DataFrame with the columns

        - experiment, attention, method, changes, seed: the run; ``changes`` is "KEY=VALUE, ..", or empty
        - evaluation, metric, value: the measurement. A run without measurements has one line in which these
          columns are missing. The value of a run that diverged may be NaN.
        - signature: sacreBLEU's signature of the metric, if it has one
        - kind: the kind of experiment, such as lm
        - updates, reached: the planned and the completed number of updates
        - length, unit: the planned length of the training, such as 400 and "updates"
        - state: finished, running, stopped, failed or damaged
        - problem: why a damaged run cannot be read, or why recorded results are outdated
        - folder: the run's folder, which does not exist for recorded runs

    Raises:
        ValueError: if the folder does not exist.

    For example:

        results = fairseq_lrpe.load_results("results")
        results.query("metric == 'perplexity'").groupby(["experiment", "method"])["value"].mean()
    """
    lines = []
    for record in read_runs(Path(results).absolute()):
        state = [
            record.settings["kind"] if record.kind else None,
            record.updates,
            record.reached,
            record.length,
            record.unit,
            record.state,
            record.problem,
            str(record.folder),
        ]
        for measured in list(record.measurements()) or [(None, None, None, None)]:
            lines.append([*row_key(record.run), *measured, *state])
    frame = pd.DataFrame(lines, columns=[*MEASUREMENTS, *STATE])
    return frame.astype(dict.fromkeys(["value", "updates", "reached", "length"], "float64"))


def published() -> pd.DataFrame:
    """Returns the published numbers of all papers in ``configs/paper`` as a DataFrame, one number per line.

    Returns:
        A DataFrame with the columns

        - paper, table: the file in ``configs/paper`` and the table in it
        - row, attention, method, changes: the name of the row, and the attention, method and changed settings
          with which this package measures it, if any; ``changes`` is formatted as in :func:`load_results`
        - column, metric, better: the column, its metric, and whether "lower" or "higher" is better
        - mean, std: the published number and its standard deviation, if there is one
    """
    lines = []
    for path in sorted((config_files.CONFIGS / "paper").glob("[!.]*.yaml")):
        for name, table in read_model(path, Paper).tables.items():
            for row in table.rows:
                changes = ", ".join(f"{key}={as_text(value)}" for key, value in sorted(row.changes.items()))
                key = [path.stem, name, row.row, row.attention, row.method, changes]
                for column in row.values:
                    number = row.published(column)
                    if number:  # otherwise, the paper has a dash
                        metric = table.columns[column].metric
                        better = table.columns[column].better
                        lines.append([*key, column, metric, better, *number])
    frame = pd.DataFrame(lines, columns=[*PUBLISHED, "mean", "std"])
    return frame.astype({"mean": "float64", "std": "float64"})
