"""Writes an HTML report of a results folder: tables with published numbers, curves, and the states of runs.

The page is a single file that needs no network connection. Its template is ``report.html.jinja``.
"""

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import pandas as pd
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from fairseq_lrpe.experiments.definition import experiment as experiments
from fairseq_lrpe.experiments.definition.table import SCALES, Table, tables
from fairseq_lrpe.experiments.reporting import blocks
from fairseq_lrpe.experiments.reporting.aggregate import summarize
from fairseq_lrpe.experiments.reporting.interactive_plots import column_figure, curve_figure, figure_html
from fairseq_lrpe.experiments.reporting.measurements import measurements
from fairseq_lrpe.experiments.reporting.plots import experiment_lines, table_name
from fairseq_lrpe.experiments.reporting.records import RunRecord, as_text, flatten, machine, read_runs
from fairseq_lrpe.experiments.reporting.renderers import Section
from fairseq_lrpe.experiments.reporting.tables import experiment_sections, measured_name, table_sections
from fairseq_lrpe.methods import canonical
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import display_path

STATES = ("finished", "running", "stopped", "failed", "damaged", "not started")
EXPLANATIONS = {
    r"^-$": "“-”: there is no number, because the paper has none, or because no run can be read.",
    r"\(\d+\)$": "The number of seeds is in brackets. The standard deviation over the seeds is after “±”.",
    r"\(\d+ of \d+\)$": "“(2 of 3)”: only some of the planned seeds have been measured.",
    r"^running ": "“running 240/400”: no seed has been measured, and one has trained for 240 of 400 updates "
    "so far.",
    r"^stopped at ": "“stopped at 240 of 400”: no seed has been measured, and none is training. The same "
    "command resumes the training.",
    r"^not measured$": "“not measured”: the training is finished, but this number is missing.",
    r"^damaged$": "“damaged”: the files of the runs cannot be read.",
    r"diverged": "“diverged”: the number is infinite or NaN.",
}
"""{regular expression of cells of a table: explanation below a table with such a cell}"""
PROBLEMS = {
    "damaged": "Damaged: the files cannot be read, and the runs count as missing in tables",
    "failed": "Failed: the last command ended with an error",
    "stopped": "Stopped: the same command resumes the training",
}
MAX_LOG_LINE = 500  # number of characters of a log line that are shown


@dataclass
class Report:
    """The runs of a results folder, and the tables and experiments that have at least one run."""

    results: Path
    records: dict[Path, RunRecord]
    tables: list[tuple[Table, pd.DataFrame]] = field(default_factory=list)  # with summaries
    errors: list[str] = field(default_factory=list)  # messages about tables that cannot be shown

    @cached_property
    def measurements(self) -> pd.DataFrame:
        """All measurements, as ``load_results`` returns them."""
        return measurements(self.records.values())

    @cached_property
    def ids(self) -> dict[Path, str]:
        """{run folder: id of the HTML element of the run}."""
        return {folder: f"run-{i}" for i, folder in enumerate(self.records)}

    @cached_property
    def experiments(self) -> dict[str, list[RunRecord]]:
        """{experiment: its runs}."""
        found = {}
        for record in self.records.values():
            found.setdefault(record.experiment, []).append(record)
        return found

    def find(self, table: Table) -> dict[str, RunRecord | None]:
        """Returns {run: its record, or None if it has not been started} of a table's runs."""
        return {str(run): self.records.get(run.folder(self.results)) for run in table.runs()}

    def add_table(self, table: Table) -> None:
        """Adds a table if at least one of its runs exists."""
        if any(self.find(table).values()):
            self.tables.append((table, summarize(table, self.measurements)))

    def state_counts(self) -> dict[str, int]:
        """Returns {state: number of runs}, including the tables' runs that have not been started."""
        counts = Counter(record.state for record in self.records.values())
        planned = [self.find(table).items() for table, _ in self.tables]
        counts["not started"] = len({run for runs in planned for run, record in runs if record is None})
        return {state: counts[state] for state in STATES}


def scan(results: Path) -> Report:
    """Reads all runs below a results folder and finds their tables; raises UserError if there is no run."""
    report = Report(results, {record.folder: record for record in read_runs(results)})
    if not report.records:
        raise UserError(f"{results} has no runs: give the folder that was passed as --results")
    for name in tables():
        text = (experiments.CONFIGS / "tables" / f"{name}.yaml").read_text(errors="replace")
        if any(experiment in text for experiment in report.experiments):  # loading all tables takes long
            add_tables(report, name)
    return report


def add_tables(report: Report, name: str) -> None:
    """Adds a table at each scale, without overrides and with those of existing runs of several methods."""
    found, errors = [], []
    for scale in SCALES:
        try:
            found.append(Table(name, scale))
        except ValueError as error:  # the table has only one scale, or is invalid
            errors.append(error)
    if not found:
        report.errors.append(f"The table {name} cannot be shown: {errors[0]}")
    for table in found:
        report.add_table(table)
        for overrides, methods in existing_overrides(table, report).items():
            if len(methods) > 1:
                with suppress(ValueError):  # some rows may not support these overrides
                    report.add_table(Table(name, table.scale, overrides))


def existing_overrides(table: Table, report: Report) -> dict[tuple[str, ...], set]:
    """Returns {overrides of existing runs of a table: set of (attention, method) of these runs}."""
    own = {key for run in table.runs() for key, _ in run.changes}
    rows = {(run.experiment, run.attention, run.method) for run in table.runs()}
    found = {}
    for record in report.records.values():
        row = record.experiment, record.attention, canonical(record.method)
        changes = tuple(text for text in record.changes if text.partition("=")[0] not in own)
        if changes and row in rows:
            found.setdefault(changes, set()).add(row[1:])
    return found


def render(report: Report, time: datetime) -> str:
    """Returns the HTML page of a report; ``time`` is shown as the time of its creation."""
    records = list(report.records.values())
    by_state = {state: [record for record in records if record.state == state] for state in STATES}
    machines = Counter((versions(r.settings), machine(r.settings), commit(r.settings)) for r in records)
    return blocks.render(
        "report.html.jinja",
        report=report,
        records=records,
        title=f"Runs in {display_path(report.results)}",
        time=format_time(time),
        plotly=Markup(get_plotlyjs()),
        counts=report.state_counts(),
        tables=[_table(report, i, *table) for i, table in enumerate(report.tables)],
        experiments=[_experiment(i, *found) for i, found in enumerate(report.experiments.items())],
        running=by_state["running"],
        problems={title: by_state[state] for state, title in PROBLEMS.items() if by_state[state]},
        machines=machines.most_common(),
        details=_details,
        path=lambda record: record.folder.relative_to(report.results).as_posix(),
        last_log_line=last_log_line,
        format_time=format_time,
    )


def _table(report, number, table, summary):
    """Returns the variables of the template for a table."""
    title, *sections = table_sections(table, summary)
    records = report.find(table).values()
    states = Counter(record.state if record else "not started" for record in records)
    figure = column_figure(table, summary)
    return {
        "title": title,
        "name": table_name(table),
        "sections": sections,
        "notes": _notes(table, summary, next(part for part in sections if isinstance(part, Section)).frame),
        "states": ", ".join(f"{states[state]} {state}" for state in STATES if states[state]),
        "damaged": [record for record in records if record and record.state == "damaged"],
        "plot": figure and Markup(figure_html(figure, f"plot-table-{number}")),
    }


def _notes(table, summary, frame):
    """Yields explanations of the cells of a table."""
    cells = {cell for column in frame.columns[2:] for cell in frame[column]}
    if summary["paper"].notna().any():
        ours = measured_name(table)
        yield f"Columns with “(paper)” contain published numbers, those with “({ours})” measured ones."
    for pattern, text in EXPLANATIONS.items():
        if any(re.search(pattern, cell) for cell in cells):
            yield text


def _experiment(number, name, records):
    """Returns the variables of the template for an experiment."""
    _, *sections = experiment_sections(name, measurements(records))
    figure = curve_figure(experiment_lines(records))
    plot = figure and Markup(figure_html(figure, f"plot-experiment-{number}"))
    return {"name": name, "sections": sections, "plot": plot}


def _details(record: RunRecord) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Returns {fact: value} of a run, and {title: {key: value}} of its measurements and settings."""
    settings, evaluation = record.settings, record.evaluation
    facts = {
        "state": record.describe_state(),
        "log": last_log_line(record) if record.state in PROBLEMS else "",
        "started": settings.get("started"),
        "finished": evaluation.get("finished"),
        "last updated": format_time(record.last_updated()),
        "versions": versions(settings),
        "machine": machine(settings),
        "commit": commit(settings),
        "folder": blocks.breakable(display_path(record.folder)),
        "files": ", ".join(sorted(path.name for path in record.folder.glob("*"))),
    }
    measured = {key: value for key, value in evaluation.items() if key != "tried"}
    tables = {"Measured (evaluation.json)": measured, "Settings (run.json)": settings}
    texts = {
        title: {key: as_text(x) for key, x in flatten(content)}
        for title, content in tables.items()
        if content
    }
    return facts, texts


def versions(settings: dict) -> str:
    """Returns the versions in a run.json as text."""
    return ", ".join(f"{name} {x}" for name, x in settings.get("versions", {}).items()) or "-"


def commit(settings: dict) -> str:
    """Returns the git revision in a run.json as text."""
    git = settings.get("git", {})
    dirty = " with changes" if git.get("dirty") else ""
    return f"{git['revision'][:12]}{dirty}" if git.get("revision") else "-"


def last_log_line(record: RunRecord) -> str:
    """Returns the name and the last line of a run's newest log."""
    name, line = record.last_log_line()
    return f"{name} ends: {line[:MAX_LOG_LINE]}" if name else "-"


def format_time(time: datetime | None) -> str:
    """Returns a time in UTC as text, or "-" for None."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if time else "-"
