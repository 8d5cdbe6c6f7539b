"""The parts of printed tables and of their pages: texts about the measurements, and DataFrames of texts.

``summary`` is the result of ``aggregate.summarize`` for ``table``.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import pandas as pd

from fairseq_lrpe.experiments.definition.run import as_text
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.reporting import aggregate
from fairseq_lrpe.experiments.reporting.renderers import Bold, heading
from fairseq_lrpe.experiments.reporting.run_record import RunRecord
from fairseq_lrpe.experiments.reporting.settings import machine
from fairseq_lrpe.utils.numbers import format_number

BOLD = "bold: the best of a column among the rows of the same attention"
RANKS = "Ranks among the methods that have both numbers (1 is best)"
WITHOUT_WORST = "without the worst of three or more seeds"


def measured_name(table: Table) -> str:
    """Returns the label of a table's measured numbers: its scale, or "measured" at scale full."""
    return "measured" if table.scale == "full" else table.scale


def source(table: Table) -> str:
    """Returns the paper of a table and the number of the table there, or "" without a paper."""
    return ", ".join(text for text in (table.source, table.settings.table) if text)


def experiments(table: Table, summary: pd.DataFrame) -> str:
    """Returns the experiments of a table and the lengths of their trainings as text."""
    trained = {}
    for cell in summary[summary["metric"].notna()].itertuples():
        for length, unit in cell.started_lengths:
            trained.setdefault((cell.measured_on, unit), set()).add((length, unit))
    texts = []
    for (name, _), lengths in trained.items():
        texts.append(f"{name} ({aggregate.describe_lengths(sorted(lengths))})")
    substitute = "" if table.scale == "full" else ", a small substitute: compare ranks, not values"
    return ", ".join(texts) + substitute


def machines(records: Iterable[RunRecord]) -> Iterator[str]:
    """Yields texts about the versions and the machines that measured runs, with the numbers of runs."""
    versions = Counter()
    names = Counter()
    uncommitted = 0
    for record in records:
        versions[record.settings.get("versions", {}).get("fairseq_lrpe", "unknown")] += 1
        names[machine(record.settings)] += 1
        uncommitted += bool(record.settings.get("git", {}).get("dirty"))
    text = f"Versions of fairseq-lrpe: {_counted(versions)}"
    if uncommitted:
        text += f"; {uncommitted} run{'s' * (uncommitted != 1)} with uncommitted changes"
    yield text
    yield f"Machines: {_counted(names)}"


def _counted(counter):
    """Returns texts with their counts, such as "a (2 runs), b (1 run)"; a single text has no count."""
    if len(counter) == 1:
        return next(iter(counter))
    ordered = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{text} ({count} run{'s' * (count != 1)})" for text, count in ordered)


def metrics(summary: pd.DataFrame) -> str:
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


def settings(summary: pd.DataFrame) -> Iterator[str]:
    """Yields lines about settings of single rows or columns: chosen and tuned ones, and signatures."""
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


def values(table: Table, summary: pd.DataFrame, usual_state: str | None = None) -> pd.DataFrame:
    """Returns a DataFrame with the measured and published numbers.

    Args:
        table: the table.
        summary: its summary.
        usual_state: the state, such as the number of seeds, that cells do not repeat.
    """
    has_paper = summary["paper"].notna().any()
    ours = measured_name(table)

    def texts(cell):
        measured = cell.state
        if cell.seeds:
            measured = format_number(cell.mean, cell.decimals, cell.std)
            if cell.state != usual_state:
                measured += f" ({cell.state})"
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


def ranks(table: Table, summary: pd.DataFrame) -> pd.DataFrame:
    """Returns a DataFrame with the ranks; the last row of each attention has Spearman's ρ."""
    ranked = summary[summary["rank"].notna()]
    ours = measured_name(table)

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


def differences(paired: pd.DataFrame, format_cell: Callable) -> pd.DataFrame:
    """Returns a DataFrame with the differences to the baseline.

    Args:
        paired: the lines of a summary with a difference.
        format_cell: function that returns the text of a line.
    """
    return _grid(paired, lambda cell: {"": format_cell(cell)})


def _grid(cells: pd.DataFrame, texts: Callable) -> pd.DataFrame:
    """Returns a DataFrame of texts, with a line per row and a column per column and suffix of the table.

    Args:
        cells: lines of a summary.
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
