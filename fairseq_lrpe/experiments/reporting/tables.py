"""Prints tables of papers and all runs of an experiment."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pandas as pd

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.reporting import aggregate, renderers
from fairseq_lrpe.experiments.reporting.aggregate import describe_lengths, summarize, summarize_runs
from fairseq_lrpe.experiments.reporting.differences import INTERVALS, corrected_for
from fairseq_lrpe.experiments.reporting.records import read_runs
from fairseq_lrpe.experiments.reporting.renderers import Bold, Section, format_number, heading
from fairseq_lrpe.experiments.reporting.run_record import RunRecord, with_current_settings
from fairseq_lrpe.utils.errors import UserError


def read_table_runs(table: Table, results: Path) -> dict[Run, RunRecord]:
    """Returns {run: record} of a table's runs; runs with a problem are reported on stderr."""
    runs = dict.fromkeys(run for cell in table.cells for run in cell.runs)
    found = table_records(table, read_runs(results, {run.folder(results): None for run in runs}))
    for message in omissions(found.values()):
        print(f"results: {message}", file=sys.stderr)
    if all(record.problem is not None for record in found.values()):
        example = results / str(table.runs()[0])
        wrong = f"{results} has no run of the table {table.name!r} at this scale"
        if found:
            raise UserError(f"{wrong} with these settings: pass the KEY=VALUE of its runs")
        raise UserError(f"{wrong}, such as {example}")
    return found


def table_records(table: Table, records: Iterable[RunRecord]) -> dict[Run, RunRecord]:
    """Returns {run: record} of a table's runs, without numbers with other settings than the table's."""
    planned = {run for cell in table.cells for run in cell.runs}
    own = [record for record in records if record.run in planned]
    return {record.run: record for record in with_current_settings(own, table.experiments.__getitem__)}


def omissions(records: Iterable[RunRecord]) -> Iterator[str]:
    """Yields the runs whose numbers a table does not show, and why."""
    found = {}
    for record in records:
        if record.is_outdated:
            reason = f"trained with other settings ({record.problem})"
        elif record.problem is not None:
            reason = f"the files cannot be read ({record.problem})"
        else:
            reason = f"evaluated with other settings ({'; '.join(record.omitted)})"
        if record.problem is not None or record.omitted:
            found.setdefault(reason, []).append(record.folder)
    for reason, folders in found.items():
        runs = f"{folders[0]} and {len(folders) - 1} more runs" if len(folders) > 1 else folders[0]
        yield f"numbers of {runs} are not shown: {reason}"


def show_table(table: Table, records: Mapping[Run, RunRecord], format: str | None = None) -> pd.DataFrame:
    """Prints a table in a format, "csv" or one of ``renderers.show``, and returns its summary."""
    summary = summarize(table, records)
    if format == "csv":
        renderers.show_csv(summary[aggregate.CSV], "seeds")
    else:
        renderers.show(table_sections(table, summary), format)
    return summary


def measured_name(table: Table) -> str:
    """Returns the label of measured numbers: the scale, or "measured" at scale full."""
    return "measured" if table.scale == "full" else table.scale


def table_sections(table: Table, summary: pd.DataFrame) -> Iterator[str | Section]:
    """Yields the parts of a printed table: lines of text, and sections."""
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
        title += ", without leaving out the worst" * table.settings.drop_worst
        yield Section(title, _grid(paired, lambda cell: {"": renderers.format_difference(cell)}))
    elif base:
        needed = f"a seed that {base} and another method of the same attention have finished"
        yield f"Differences to {base} need {needed}."


def _heading(table, summary):
    metrics, trained = {}, {}
    for cell in summary[summary["metric"].notna()].itertuples():
        metric = f"{heading(cell.metric)} ({cell.better} is better)"
        metrics.setdefault(metric, {})[heading(cell.column)] = None
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
    if chosen := [f"{cell.row} of {heading(cell.column)} {cell.chosen}" for cell in cells.itertuples()]:
        yield f"chosen by the mean over all seeds: {'; '.join(chosen)}"
    signatures = summary.explode("signatures").dropna(subset="signatures")
    yield from dict.fromkeys(
        f"{cell.column}: {cell.metric}, signature {cell.signatures}" for cell in signatures.itertuples()
    )


def _grid(cells: pd.DataFrame, texts: Callable) -> pd.DataFrame:
    """Returns a DataFrame with one line per row of the table, and one column per table column and suffix.

    Args:
        cells: lines of ``summarize``.
        texts: function that returns {suffix of the heading: text} of a cell.
    """
    rows = {}
    for cell in cells.itertuples():
        row = rows.setdefault((cell.attention, cell.row), {"attention": cell.attention, "method": cell.row})
        for suffix, text in texts(cell).items():
            row[heading(cell.column) + (suffix and f" ({suffix})")] = text
    return pd.DataFrame(list(rows.values())).fillna("-")


def _values(summary, ours):
    has_paper = summary["paper"].notna().any()

    def texts(cell):
        published = format_published(cell.paper, cell.paper_std) if cell.paper == cell.paper else "-"
        number = format_number(cell.mean, cell.std, cell.decimals)
        measured = f"{number} ({cell.state})" if cell.seeds else cell.state
        measured = Bold(measured) if cell.is_best else measured
        published = Bold(published) if cell.paper_is_best else published
        return {"paper": published, ours: measured} if has_paper else {"": measured}

    return _grid(summary, texts)


def format_published(mean: float, std: float) -> str:
    """Returns a published number as text, with two to four decimals."""
    numbers = [x for x in (mean, std) if x == x]
    digits = next((n for n in (2, 3) if all(round(x, n) == x for x in numbers)), 4)
    return format_number(mean, std, digits)


def _ranks(summary, ours):
    """Returns the ranks as text; the last row of each attention has Spearman's ρ."""
    ranked = summary[summary["rank"].notna()]
    frame = _grid(ranked, lambda cell: {"paper": f"{cell.paper_rank:g}", ours: f"{cell.rank:g}"})
    correlations, groups = aggregate.rank_correlations(ranked), []
    for attention, rows in frame.groupby("attention", sort=False):
        found = [correlations.get((attention, name), math.nan) for name in ranked["column"].unique()]
        texts = [text for rho in found for text in ("", f"{rho:.2f}" if rho == rho else "needs 3 methods")]
        last = pd.DataFrame([[attention, "Spearman ρ", *texts]], columns=frame.columns)
        groups += [rows, last]
    return pd.concat(groups, ignore_index=True)


def read_experiment_runs(experiment: str, results: Path) -> list[RunRecord]:
    """Reads all runs of an experiment, whose YAML file may be missing."""
    found = read_runs(results)
    records = [record for record in found if record.run.experiment == experiment]
    if not records:
        names = dict.fromkeys(record.run.experiment for record in found)
        existing = f"it has runs of {', '.join(names)}" if names else "it has no runs at all"
        raise UserError(f"{results} has no run of the experiment {experiment!r}: {existing}")
    return records


def show_experiment(records: list[RunRecord], format: str | None = None) -> None:
    if format == "csv":
        renderers.show_csv(summarize_runs(records)[aggregate.RUNS_CSV], "measured_seeds")
    else:
        renderers.show(experiment_sections(records), format)


def experiment_sections(records: list[RunRecord]) -> Iterator[str | Section]:
    """Yields the parts of a printed experiment: lines of text, and a section."""
    yield f"all runs of {records[0].run.experiment}"
    yield "mean ± sample standard deviation over the seeds (number of seeds, if some are not measured)"
    lines = {}
    for run in summarize_runs(records).itertuples():
        row = {"attention": run.attention, "method": run.method, "changes": run.changes or "-"}
        row |= {"seeds": str(run.seeds), "length": run.length or "-", "state": run.state}
        line = lines.setdefault((run.attention, run.method, run.changes), row)
        if run.measured_seeds:
            count = f" ({run.measured_seeds})" if run.measured_seeds < run.seeds else ""
            number = format_number(run.mean, run.std, int(run.decimals))
            line[heading(f"{run.evaluation} {run.metric}")] = number + count
    yield Section("", pd.DataFrame(list(lines.values())).fillna("-"))
