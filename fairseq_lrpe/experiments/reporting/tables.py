"""Prints tables with published and measured numbers, and lists of all runs of an experiment."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fairseq_lrpe.experiments.definition.run import run_folders
from fairseq_lrpe.experiments.definition.table import SCALES, Table
from fairseq_lrpe.experiments.reporting import renderers
from fairseq_lrpe.experiments.reporting.aggregate import (
    CSV,
    RUNS_CSV,
    describe_lengths,
    rank_correlations,
    summarize,
    summarize_runs,
)
from fairseq_lrpe.experiments.reporting.measurements import measurements
from fairseq_lrpe.experiments.reporting.records import RunRecord, is_recorded, read_runs
from fairseq_lrpe.experiments.reporting.renderers import Bold, Section, format_number
from fairseq_lrpe.utils.errors import UserError


def collect(table: Table, results: Path) -> pd.DataFrame:
    """Reads a table's runs and returns the result of ``summarize``; raises UserError without runs."""
    records = read_table_runs(table, results)
    if all(record.problem is not None for record in records):
        raise UserError(f"{results} has no run of the table {table.name!r}, {_suggestion(table, results)}")
    return summarize(table, measurements(records))


def read_table_runs(table: Table, results: Path) -> list[RunRecord]:
    """Reads the existing runs of a table; damaged runs are reported on stderr."""
    runs = dict.fromkeys(run for cell in table.cells for run in cell.runs)
    records = read_runs(results, list(dict.fromkeys(run.folder(results) for run in runs)))
    for record in records:
        if record.problem is not None:
            message = f"{record.folder} cannot be read ({record.problem}) and counts as missing"
            print(f"results: {message}", file=sys.stderr)
    return records


def _suggestion(table, results):
    """Returns hints for a table without runs: an example folder, and the scale of existing runs."""
    suggestion = f"such as {results / str(table.runs()[0])}"
    for scale in SCALES:
        names = (column.experiment_at(scale) for column in table.settings.columns.values())
        name = next((name for name in names if name and (results / name).is_dir()), None)
        if name and scale != table.scale:
            suggestion += f"; to show the runs of {name}, add --scale {scale}"
    return suggestion


def show_table(table: Table, summary: pd.DataFrame, format: str | None = None) -> None:
    """Prints a summary as "markdown", "latex" or "csv"; by default like ``renderers.show``."""
    if format == "csv":
        renderers.show_csv(summary[CSV], "seeds")
    else:
        renderers.show(table_sections(table, summary), format)


def measured_name(table: Table) -> str:
    """Returns what the columns of measured numbers are labelled with, such as "mini" at that scale."""
    return "measured" if table.scale == "full" else table.scale


def table_sections(table: Table, summary: pd.DataFrame) -> Iterator[str | Section]:
    """Yields the parts of a printed table: lines of text, and sections with a DataFrame of strings."""
    yield from _heading(table, summary)
    ours = measured_name(table)
    lengths = _lengths_apart(summary)
    rows = zip(summary["attention"], summary["row"], strict=True)
    labels = [f"{row[1]}, {lengths[row]}" if row in lengths else row[1] for row in rows]
    summary = summary.assign(label=labels)
    yield Section("", values_frame(summary, ours))
    if lengths:
        rows = "; ".join(f"{attention} {row} ({length})" for (attention, row), length in lengths.items())
        yield f"Trained for a different length, and therefore not compared with the other rows: {rows}."
    if summary["rank"].notna().any():
        yield Section("Ranks among the methods that have both numbers (1 is best)", _ranks(summary, ours))
    elif summary["paper"].notna().any():
        yield "Ranks need two methods of the same attention that are finished."
    elif table.source:
        yield "The paper has no numbers to rank by."
    base = table.settings.baseline
    if (summary["common_seeds"] > 0).any():
        yield Section(
            f"Measured difference to {base} of the same attention, paired by seed: mean "
            "[95% confidence interval, Student t] (common seeds)",
            _differences(summary),
        )
    elif base:
        yield f"Differences to {base} need a seed that {base} and another method have finished."


def _heading(table, summary):
    """Yields the lines above a table: its title, its source and the measured metrics."""
    metrics, trained = {}, {}
    for cell in summary[summary["metric"].notna()].itertuples():
        metric = f"{cell.metric.replace('_', ' ')} ({cell.better} is better)"
        metrics.setdefault(metric, {})[_title(cell.column)] = None
        for length, unit in cell.started_lengths:
            trained.setdefault((cell.measured_on, unit), set()).add((length, unit))
    source = [text for text in (table.source, table.settings.table) if text]
    runs = [f"{name} ({describe_lengths(sorted(found))})" for (name, _), found in trained.items()]
    substitute = "" if table.scale == "full" else ", a small substitute: compare ranks, not values"
    names = [f"{metric} of {', '.join(columns)}" for metric, columns in metrics.items()]
    yield table.settings.title
    if source:
        yield f"paper: {', '.join(source)}"
    if table.published.note:
        yield f"note: {table.published.note}"
    yield f"measured on {', '.join(runs)}{substitute}"
    yield (
        f"{'; '.join(names if len(metrics) > 1 else metrics)}: mean ± sample standard deviation (seeds)"
        + (", without the worst of three or more seeds" if table.settings.drop_worst else "")
    )
    yield "bold: the best of a column among the rows of the same attention"
    cells = summary.dropna(subset="chosen")
    if chosen := [f"{cell.row} of {_title(cell.column)} {cell.chosen}" for cell in cells.itertuples()]:
        yield f"chosen by the mean over all seeds: {'; '.join(chosen)}"
    signatures = summary.explode("signatures").dropna(subset="signatures")
    yield from dict.fromkeys(
        f"{cell.column}: {cell.metric}, signature {cell.signatures}" for cell in signatures.itertuples()
    )


def _title(column):
    """Returns the heading of a column."""
    return column.replace("_", " ")


def _lengths_apart(summary):
    """Returns {(attention, row): lengths in words} of the rows that were trained for a different length."""
    apart = summary[summary["is_apart"]].groupby(["attention", "row"], sort=False)["lengths"]
    return {key: describe_lengths(sorted({x for cell in cells for x in cell})) for key, cells in apart}


def _grid(cells: pd.DataFrame, texts: dict[str, list[str]]) -> pd.DataFrame:
    """Returns a DataFrame with one line per row of the table, and one column per table column and suffix.

    Args:
        cells: lines of ``summarize`` with the column ``label``, the name of the row.
        texts: {suffix of the headings: a text for each of the cells}.
    """
    columns = list(cells["column"].unique())
    keys = ["attention", "label", "column"]
    texts = {name: pd.Series(values, cells.index, dtype=object) for name, values in texts.items()}
    wide = cells[keys].assign(**texts).pivot(index=keys[:2], columns="column", values=list(texts))
    rows = pd.MultiIndex.from_frame(cells[keys[:2]].drop_duplicates())
    wide = wide.reindex(index=rows, columns=[(text, column) for column in columns for text in texts])
    wide.columns = [f"{_title(column)} ({text})" if text else _title(column) for text, column in wide.columns]
    return wide.fillna("-").reset_index(names=["attention", "method"])


def values_frame(summary: pd.DataFrame, ours: str) -> pd.DataFrame:
    """Returns the published and measured numbers as text; ``ours`` is the suffix of measured columns."""
    published, measured = [], []
    for cell in summary.itertuples():
        text = format_published(cell.paper, cell.paper_std) if cell.paper == cell.paper else "-"
        published.append(Bold(text) if cell.paper_is_best else text)
        number = format_number(cell.mean, cell.std, cell.decimals)
        text = f"{number} ({cell.state})" if cell.seeds else cell.state
        measured.append(Bold(text) if cell.is_best else text)
    if summary["paper"].isna().all():
        return _grid(summary, {"": measured})
    return _grid(summary, {"paper": published, ours: measured})


def format_published(mean: float, std: float) -> str:
    """Returns a published number as text, with two decimals or up to four if the number has them."""
    numbers = [x for x in (mean, std) if x == x]
    digits = next((n for n in (2, 3) if all(round(x, n) == x for x in numbers)), 4)
    return format_number(mean, std, digits)


def _ranks(summary, ours):
    """Returns the ranks as text, with Spearman's rank correlation as the last row of each attention."""
    ranked = summary[summary["rank"].notna()].assign(label=summary["row"])
    texts = {"paper": "paper_rank", ours: "rank"}
    frame = _grid(ranked, {text: [f"{x:g}" for x in ranked[name]] for text, name in texts.items()})
    correlations = rank_correlations(ranked)
    groups = []
    for attention, rows in frame.groupby("attention", sort=False):
        found = [correlations.get((attention, name), float("nan")) for name in ranked["column"].unique()]
        texts = [text for rho in found for text in ("", f"{rho:.2f}" if rho == rho else "needs 3 methods")]
        last = pd.DataFrame([[attention, "Spearman ρ", *texts]], columns=frame.columns)
        groups += [rows, last]
    return pd.concat(groups, ignore_index=True)


def _differences(summary):
    """Returns the differences to the baseline as text."""
    cells = summary[summary["common_seeds"] > 0]
    texts = []
    for cell in cells.itertuples():
        mean, low, high = (f"{x:+.{cell.decimals}f}" for x in (cell.difference, cell.low, cell.high))
        interval = f"[{low}, {high}] ({cell.common_seeds})"
        texts.append(f"{mean} {interval if cell.common_seeds > 1 else '(1 seed: no interval)'}")
    return _grid(cells, {"": texts})


def read_experiment_runs(experiment: str, results: Path) -> list[RunRecord]:
    """Reads all runs of an experiment, whose YAML file may be missing; raises UserError without runs."""
    folders = None if is_recorded(results) else run_folders(results / experiment, Path())
    name = Path(experiment).as_posix()
    records = [record for record in read_runs(results, folders) if record.experiment == name]
    if not records:
        names = dict.fromkeys(record.experiment for record in read_runs(results))
        existing = f"it has runs of {', '.join(names)}" if names else "it has no runs at all"
        raise UserError(f"{results} has no run of the experiment {experiment!r}: {existing}")
    return records


def show_experiment(experiment: str, results: pd.DataFrame, format: str | None = None) -> None:
    """Prints the measurements of an experiment's runs in one of the formats of ``show_table``."""
    if format == "csv":
        renderers.show_csv(summarize_runs(results)[RUNS_CSV], "measured_seeds")
    else:
        renderers.show(experiment_sections(experiment, results), format)


def experiment_sections(experiment: str, results: pd.DataFrame) -> Iterator[str | Section]:
    """Yields the parts of a printed experiment: lines of text, and a section with a DataFrame of strings."""
    yield f"all runs of {experiment}"
    yield "mean ± sample standard deviation over the seeds (number of seeds, if some are not measured)"
    runs = summarize_runs(results)
    lines = {}
    for run in runs.itertuples():
        row = {"attention": run.attention, "method": run.method, "changes": run.changes or "-"}
        row |= {"seeds": str(run.seeds), "length": run.length or "-", "state": run.state}
        line = lines.setdefault((run.attention, run.method, run.changes), row)
        if run.measured_seeds:
            count = f" ({run.measured_seeds})" if run.measured_seeds < run.seeds else ""
            number = format_number(run.mean, run.std, int(run.decimals))
            line[f"{run.evaluation} {run.metric}".replace("_", " ")] = number + count
    yield Section("", pd.DataFrame(list(lines.values())).fillna("-"))
