"""Functions that print the tables of papers."""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import pandas as pd

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.reporting import aggregate, renderers
from fairseq_lrpe.experiments.reporting import table_parts as parts
from fairseq_lrpe.experiments.reporting.aggregate import summarize
from fairseq_lrpe.experiments.reporting.differences import INTERVALS, corrected_for
from fairseq_lrpe.experiments.reporting.omissions import changed_extensions, omissions
from fairseq_lrpe.experiments.reporting.records import read_runs
from fairseq_lrpe.experiments.reporting.renderers import Section
from fairseq_lrpe.experiments.reporting.run_record import RunRecord, by_run, readable, with_current_settings
from fairseq_lrpe.methods import aliases
from fairseq_lrpe.utils.errors import UserError


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


def table_sections(table: Table, summary: pd.DataFrame) -> Iterator[str | Section]:
    """Yields the parts of a printed table: strings, which are lines of text, and tables as sections."""
    yield from _heading(table, summary)
    yield Section("", parts.values(table, summary))
    if summary["rank"].notna().any():
        yield Section(parts.RANKS, parts.ranks(table, summary))
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
        yield Section(title, parts.differences(paired, renderers.format_difference))
    elif base:
        needed = f"a seed that {base} and another method of the same attention have finished"
        yield f"Differences to {base} need {needed}."


def _heading(table, summary):
    """Yields the lines of text above a table: its title, source, experiments, metrics and notes."""
    yield table.settings.title
    source = parts.source(table)
    if source:
        yield f"paper: {source}"
    if table.published.note:
        yield f"note: {table.published.note}"
    yield f"measured on {parts.experiments(table, summary)}"
    numbers = f"{parts.metrics(summary)}: mean ± sample standard deviation (seeds)"
    if table.settings.drop_worst:
        numbers += f", {parts.WITHOUT_WORST}"
    yield numbers
    yield parts.BOLD
    yield from parts.settings(summary)
