"""Functions that print the tables of papers."""

import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import pandas as pd

from fairseq_lrpe.experiments.definition.run import Run, as_text
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.reporting import aggregate, renderers
from fairseq_lrpe.experiments.reporting.aggregate import describe_lengths, summarize
from fairseq_lrpe.experiments.reporting.differences import INTERVALS, corrected_for
from fairseq_lrpe.experiments.reporting.omissions import changed_extensions, omissions
from fairseq_lrpe.experiments.reporting.records import read_runs
from fairseq_lrpe.experiments.reporting.renderers import Bold, Section, heading
from fairseq_lrpe.experiments.reporting.run_record import RunRecord, by_run, readable, with_current_settings
from fairseq_lrpe.methods import aliases
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.numbers import format_number


def read_table_runs(table: Table, results: Path) -> dict[Run, RunRecord]:
    """Returns {run: record} of a table's runs in a results folder; prints omitted numbers on stderr.

    Raises:
        UserError: if the folder has no readable run of the table with the table's settings.
    """
    folders = {}
    for cell in table.cells:
        for run in cell.runs:
            folders[run.folder(results)] = None
    records = table_records(table, read_runs(results, folders))
    for message in [*omissions(records.values()), *changed_extensions(records.values())]:
        print(f"results: {message}", file=sys.stderr)
    if not readable(records.values()):
        example = results / str(table.runs()[0])
        wrong = f"{results} has no run of the table {table.name!r} at this scale"
        if records:
            raise UserError(f"{wrong} with these settings: pass the KEY=VALUE of its runs")
        raise UserError(f"{wrong}, such as {example}")
    return records


def table_records(table: Table, records: Iterable[RunRecord]) -> dict[Run, RunRecord]:
    """Returns {run: record} of a table's runs, without numbers of settings other than the table's."""
    planned = set()
    for cell in table.cells:
        planned.update(cell.runs)
    started = []
    for record in records:
        if record.run in planned:
            started.append(record)
    current = with_current_settings(started, table.experiments.__getitem__)
    return by_run(current)


def print_results(
    table: Table,
    records: Mapping[Run, RunRecord],
    format: str | None = None,
    methods: Collection[str] | None = None,
) -> pd.DataFrame:
    """Prints a table and returns its summary.

    Args:
        table: the table.
        records: the records of its runs.
        format: "csv", or a format of ``renderers.show``.
        methods: the methods whose rows are printed, or None for all. Means, ranks and intervals are those
            among all rows.
    """
    summary = summarize(table, records)
    if methods:
        table.check_methods(methods)
        names = set()
        for method in methods:
            names.update(aliases(method))
        summary = summary[summary["method"].isin(names)]
    if format == "csv":
        renderers.show_csv(summary[aggregate.CSV], "seeds")
    else:
        renderers.show(table_sections(table, summary), format)
    return summary


def measured_name(table: Table) -> str:
    """Returns the label of a table's measured numbers: its scale, or "measured" at scale full."""
    return "measured" if table.scale == "full" else table.scale


def table_sections(table: Table, summary: pd.DataFrame) -> Iterator[str | Section]:
    """Yields the parts of a printed table: strings, which are lines of text, and tables as sections."""
    yield from _heading(table, summary)
    ours = measured_name(table)
    yield Section("", _values(summary, ours))
    if summary["rank"].notna().any():
        yield Section("Ranks among the methods that have both numbers (1 is best)", _ranks(summary, ours))
    elif summary["paper"].notna().any():
        yield "Ranks need two methods of the same attention that are finished."
    elif table.source:
        yield "The paper has no numbers to rank by."
    base = table.settings.baseline
    paired = summary[summary["common_seeds"] > 0]
    if len(paired):
        title = f"Measured difference to {base} of the same attention [{INTERVALS}]"
        title += f" (common seeds), {corrected_for(paired['compared'])}"
        if table.settings.drop_worst:
            title += ", without leaving out the worst"
        yield Section(title, _grid(paired, _difference_texts))
    elif base:
        needed = f"a seed that {base} and another method of the same attention have finished"
        yield f"Differences to {base} need {needed}."


def _heading(table, summary):
    """Yields the lines of text above a table: its title, source, experiments, metrics and notes."""
    yield table.settings.title
    source = [text for text in (table.source, table.settings.table) if text]
    if source:
        yield f"paper: {', '.join(source)}"
    if table.published.note:
        yield f"note: {table.published.note}"
    substitute = "" if table.scale == "full" else ", a small substitute: compare ranks, not values"
    yield f"measured on {_experiments(summary)}{substitute}"
    numbers = f"{_metrics(summary)}: mean ± sample standard deviation (seeds)"
    if table.settings.drop_worst:
        numbers += ", without the worst of three or more seeds"
    yield numbers
    yield "bold: the best of a column among the rows of the same attention"
    chosen = []
    for cell in summary.dropna(subset="chosen").itertuples():
        chosen.append(f"{cell.row} of {heading(cell.column)} {cell.chosen}")
    if chosen:
        yield f"chosen by the mean over all seeds: {'; '.join(chosen)}"
    yield from _tuned_rows(summary)
    signatures = {}
    for cell in summary.itertuples():
        for signature in cell.signatures:
            signatures[f"{cell.column}: {cell.metric}, signature {signature}"] = None
    yield from signatures


def _tuned_rows(summary):
    """Yields a line for each setting that a search has found best, with the rows that have it."""
    rows = {}
    for cell in summary.itertuples():
        for key, value in cell.tuned.items():
            names = rows.setdefault(f"{key}={as_text(value)}", {}).setdefault(cell.attention, {})
            names[cell.row] = None
    for setting, by_attention in rows.items():
        texts = []
        for attention, names in by_attention.items():
            texts.append(f"{', '.join(names)} ({attention})")
        yield f"{setting} in the rows {'; '.join(texts)}"


def _experiments(summary):
    """Returns the experiments of a table and the lengths of their trainings as text."""
    trained = {}
    for cell in summary[summary["metric"].notna()].itertuples():
        for length, unit in cell.started_lengths:
            trained.setdefault((cell.measured_on, unit), set()).add((length, unit))
    texts = []
    for (name, _), lengths in trained.items():
        texts.append(f"{name} ({describe_lengths(sorted(lengths))})")
    return ", ".join(texts)


def _metrics(summary):
    """Returns the metrics of a table as text, with their columns if there are several metrics."""
    columns = {}
    for cell in summary[summary["metric"].notna()].itertuples():
        metric = f"{heading(cell.metric)} ({cell.better} is better)"
        columns.setdefault(metric, {})[heading(cell.column)] = None
    if len(columns) == 1:
        return next(iter(columns))
    texts = []
    for metric, names in columns.items():
        texts.append(f"{metric} of {', '.join(names)}")
    return "; ".join(texts)


def _grid(cells: pd.DataFrame, texts: Callable) -> pd.DataFrame:
    """Returns a DataFrame of texts, with a line per row and a column per column and suffix of the table.

    Args:
        cells: lines of the result of ``summarize``.
        texts: function that returns {suffix of the heading: text} of a cell.
    """
    rows = {}
    for cell in cells.itertuples():
        row = rows.setdefault((cell.attention, cell.row), {"attention": cell.attention, "method": cell.row})
        for suffix, text in texts(cell).items():
            column = heading(cell.column)
            row[f"{column} ({suffix})" if suffix else column] = text
    # As text columns, pandas would turn Bold into str if pyarrow is installed.
    return pd.DataFrame(list(rows.values()), dtype=object).fillna("-")


def _difference_texts(cell):
    return {"": renderers.format_difference(cell)}


def _values(summary, ours):
    has_paper = summary["paper"].notna().any()

    def texts(cell):
        measured = cell.state
        if cell.seeds:
            measured = f"{format_number(cell.mean, cell.decimals, cell.std)} ({cell.state})"
        if cell.is_best:
            measured = Bold(measured)
        if not has_paper:
            return {"": measured}
        published = "-" if math.isnan(cell.paper) else format_published(cell.paper, cell.paper_std)
        if cell.paper_is_best:
            published = Bold(published)
        return {"paper": published, ours: measured}

    return _grid(summary, texts)


def format_published(mean: float, std: float) -> str:
    """Returns a published number as text, with two to four decimals."""
    for digits in (2, 3):
        has_mean = round(mean, digits) == mean
        has_std = math.isnan(std) or round(std, digits) == std
        if has_mean and has_std:
            return format_number(mean, digits, std)
    return format_number(mean, 4, std)


def _ranks(summary, ours):
    """Returns a DataFrame with the ranks as text; the last row of each attention has Spearman's ρ."""
    ranked = summary[summary["rank"].notna()]

    def texts(cell):
        return {"paper": f"{cell.paper_rank:g}", ours: f"{cell.rank:g}"}

    frame = _grid(ranked, texts)
    correlations = aggregate.rank_correlations(ranked)
    groups = []
    for attention, rows in frame.groupby("attention", sort=False):
        last = [attention, "Spearman ρ"]
        for column in ranked["column"].unique():
            rho = correlations.get((attention, column), math.nan)
            last += ["", "needs 3 methods" if math.isnan(rho) else f"{rho:.2f}"]
        groups += [rows, pd.DataFrame([last], columns=frame.columns, dtype=object)]
    return pd.concat(groups, ignore_index=True)
