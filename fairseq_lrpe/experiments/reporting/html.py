"""Writes an HTML report of a results folder: tables with published numbers, curves, and the states of runs.

The page is a single file that needs no network connection. Its template is ``report.html.jinja``.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import pandas as pd
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs
from rich.console import Console
from rich.progress import track

from fairseq_lrpe.experiments.reporting.aggregate import seed_values, summarize
from fairseq_lrpe.experiments.reporting.interactive_plots import column_figure, curve_figure, figure_html
from fairseq_lrpe.experiments.reporting.measurements import measurements
from fairseq_lrpe.experiments.reporting.plots import experiment_lines, table_name
from fairseq_lrpe.experiments.reporting.recorded import is_recorded, read_recorded
from fairseq_lrpe.experiments.reporting.records import RunRecord, flatten, machine, read_run
from fairseq_lrpe.experiments.reporting.renderers import TEXT_COLUMNS, Bold, Section, html_environment
from fairseq_lrpe.experiments.reporting.tables import (
    existing_overrides,
    experiment_sections,
    measured_name,
    table_sections,
)
from fairseq_lrpe.experiments.spec import experiment as experiments
from fairseq_lrpe.experiments.spec.run import run_folders
from fairseq_lrpe.experiments.spec.table import SCALES, Table, tables
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
    experiments: dict[str, list[RunRecord]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)  # messages about tables that cannot be shown

    @cached_property
    def measurements(self) -> pd.DataFrame:
        """All measurements, as ``load_results`` returns them."""
        return measurements(self.records.values())

    @cached_property
    def ids(self) -> dict[Path, str]:
        """{run folder: id of the HTML element of the run}."""
        return {folder: f"run-{i}" for i, folder in enumerate(self.records)}

    def find(self, table: Table) -> list[RunRecord | None]:
        """Returns the records of a table's runs, with None for runs that have not been started."""
        return [self.records.get(run.folder(self.results)) for run in table.runs()]

    def add_table(self, table: Table) -> None:
        """Adds a table if at least one of its runs exists."""
        folders = {run.folder(self.results) for cell in table.cells for run in cell.runs}
        if folders & self.records.keys():
            found = self.measurements[self.measurements["experiment"].isin(list(table.experiments))]
            self.tables.append((table, summarize(table, seed_values(table, found))))

    def state_counts(self) -> dict[str, int]:
        """Returns {state: number of runs}, including the tables' runs that have not been started."""
        counts = Counter(record.state for record in self.records.values())
        missing = (
            {str(run) for run, record in zip(table.runs(), self.find(table), strict=True) if record is None}
            for table, _ in self.tables
        )
        counts["not started"] = len(set().union(*missing))
        return {state: counts[state] for state in STATES}


def scan(results: Path) -> Report:
    """Reads all runs below a results folder and finds their tables; raises ValueError if there is no run."""
    runs = read_recorded(results) if is_recorded(results) else run_folders(results)
    if not runs:
        missing = "no folder such as lm/mini/linear_base/seed-1 with a run.json"
        raise ValueError(f"{results} has no runs ({missing}): give the folder that was passed as --results")
    console = Console(file=sys.stderr)
    runs = track(runs, "runs", console=console)
    records = (run if isinstance(run, RunRecord) else read_run(run, results) for run in runs)
    report = Report(results, {record.folder: record for record in records})
    for record in report.records.values():
        report.experiments.setdefault(record.experiment, []).append(record)
    names = [name for name in tables() if _names_any(name, report.experiments)]
    for name in track(names, "tables", console=console):
        found, errors = [], []
        for scale in SCALES:
            try:
                found.append(Table(name, scale))
            except ValueError as error:  # the table has only one scale, or is invalid
                errors.append(str(error))
        if not found:
            report.errors.append(f"The table {name} cannot be shown: {errors[0]}")
        for table in found:
            report.add_table(table)
            for overrides, methods in existing_overrides(table, report.records.values()).items():
                if len(methods) > 1:
                    with suppress(ValueError):  # some rows may not support these overrides
                        report.add_table(Table(name, table.scale, overrides))
    return report


def _names_any(table: str, names: Iterable[str]) -> bool:
    """Returns whether a table's YAML file contains one of the names; loading the table would take longer."""
    text = (experiments.CONFIGS / "tables" / f"{table}.yaml").read_text(errors="replace")
    return any(name in text for name in names)


def render(report: Report, time: datetime) -> str:
    """Returns the HTML page of a report; ``time`` is shown as the time of its creation."""
    records = list(report.records.values())
    problems = {title: [r for r in records if r.state == state] for state, title in PROBLEMS.items()}
    machines = Counter((versions(r.settings), machine(r.settings), commit(r.settings)) for r in records)
    environment = html_environment()
    filters = (breakable, unbroken, column_class, flatten, format_time, last_log_line, display_path)
    filters += (versions, machine, commit)
    environment.filters |= {function.__name__: function for function in filters}
    environment.tests["bold"] = lambda cell: isinstance(cell, Bold)
    environment.tests["line"] = lambda section: isinstance(section, str)
    return environment.get_template("report.html.jinja").render(
        report=report,
        records=records,
        title=f"Runs in {display_path(report.results)}",
        time=time,
        plotly=Markup(get_plotlyjs()),
        counts=report.state_counts(),
        tables=[_table(report, i, *table) for i, table in enumerate(report.tables)],
        experiments=[_experiment(i, *found) for i, found in enumerate(report.experiments.items())],
        problems={title: found for title, found in problems.items() if found},
        machines=machines.most_common(),
    )


def _table(report, number, table, summary):
    """Returns the variables of the template for a table."""
    title, *sections = table_sections(table, summary)
    records = report.find(table)
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


def breakable(text: object) -> Markup:
    """Returns a path or key as HTML that may be wrapped after slashes and dots."""
    return Markup(re.sub(r"(?<=[./])(?=\w)", "<wbr>", str(escape(text))))


def unbroken(cell: str) -> str:
    """Returns the text of a cell without line breaks in parts such as "± 0.15" and "(2 of 3)"."""
    return re.sub(r"± |\(\d+ of \d+\)", lambda match: match[0].replace(" ", "\u00a0"), cell)


def column_class(name: str) -> str:
    """Returns the CSS class of a column."""
    if name in ("changes", "state"):
        return "wrap"
    return "text" if name in TEXT_COLUMNS else "paper" if name.endswith("(paper)") else ""


def versions(settings: dict) -> str:
    """Returns the versions in a run.json as text."""
    found = settings.get("versions")
    return ", ".join(f"{name} {x}" for name, x in found.items()) if isinstance(found, dict) else "-"


def commit(settings: dict) -> str:
    """Returns the git revision in a run.json as text."""
    git = settings.get("git")
    revision = git.get("revision") if isinstance(git, dict) else None
    return f"{str(revision)[:12]}{' with changes' if git.get('dirty') else ''}" if revision else "-"


def last_log_line(record: RunRecord) -> str:
    """Returns the name and the last line of a run's newest log."""
    name, line = record.last_log_line()
    return f"{name} ends: {line[:MAX_LOG_LINE]}" if name else "-"


def format_time(time: datetime | None) -> str:
    """Returns a time in UTC as text, or "-" for None."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if time else "-"
