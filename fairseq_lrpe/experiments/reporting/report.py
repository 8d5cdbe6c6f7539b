"""The HTML report of a results folder: tables with published numbers, curves, and the states of runs.

The page is a single file that needs no network connection. Its template is ``report.html.jinja``.
"""

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from fairseq_lrpe.experiments.definition.config_files import config_path, tables
from fairseq_lrpe.experiments.definition.run import RECORDS, Run
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.definition.table_spec import TableSpec
from fairseq_lrpe.experiments.execution.progress import describe_folder
from fairseq_lrpe.experiments.reporting import blocks
from fairseq_lrpe.experiments.reporting.aggregate import summarize
from fairseq_lrpe.experiments.reporting.experiment_runs import experiment_sections
from fairseq_lrpe.experiments.reporting.interactive_plots import column_figure, curve_figure, figure_html
from fairseq_lrpe.experiments.reporting.omissions import omissions
from fairseq_lrpe.experiments.reporting.plots import experiment_lines, table_name
from fairseq_lrpe.experiments.reporting.records import read_runs
from fairseq_lrpe.experiments.reporting.renderers import Section
from fairseq_lrpe.experiments.reporting.run_list import run_list
from fairseq_lrpe.experiments.reporting.run_record import RunRecord, by_run
from fairseq_lrpe.experiments.reporting.settings import machine
from fairseq_lrpe.experiments.reporting.table_parts import measured_name
from fairseq_lrpe.experiments.reporting.tables import table_records, table_sections
from fairseq_lrpe.experiments.reporting.user_tables import left_out_if_invalid
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import display_path

STATES = ("finished", "running", "stopped", "failed", "damaged", "other settings", "not started")
EXPLANATIONS = {
    r"^-$": "“-”: there is no number, because the paper has none, or because no run has measured it yet.",
    r"\(\d+\)$": "The number of seeds is in brackets. The standard deviation over the seeds is after “±”.",
    r"\(\d+ of \d+\)$": "“(2 of 3)”: only some of the planned seeds have been measured.",
    r"^running ": "“running 240/400”: no seed has been measured, and one has trained for 240 of 400 updates "
    "so far.",
    r"^stopped at ": "“stopped at 240 of 400”: no seed has been measured, and none is training. The same "
    "command resumes the training.",
    r"^not measured$": "“not measured”: the training is finished, but this number is missing.",
    r"^damaged$": "“damaged”: the files of the runs cannot be read.",
    r"^other settings$": "“other settings”: the runs were trained with settings other than the table's.",
    r"diverged": "“diverged”: the number is infinite or NaN.",
}
"""{regular expression: explanation that is shown below tables with a cell that matches it}"""
PROBLEMS = {
    "damaged": "Damaged: the files cannot be read, and the runs count as missing in tables",
    "other settings": "Other settings: configs has changed since, and the runs count as missing in tables",
    "failed": "Failed: the last command ended with an error",
    "stopped": "Stopped: the same command resumes the training",
}
MAX_POINTS = 120_000
"""Maximum number of points of all curves, so that the page of 5,000 runs is smaller than 10 MB."""
MAX_LOG_LINE = 500  # number of characters of a log line that are shown


@dataclass
class Report:
    """The runs of a results folder, and the tables that they measure, with summaries."""

    results: Path
    records: list[RunRecord]
    runs: dict[Run, RunRecord]
    tables: list[tuple[Table, dict[Run, RunRecord], pd.DataFrame]]  # with the table's runs and a summary

    def state_counts(self) -> dict[str, int]:
        """Returns {state: number of runs}; planned runs without a folder count as "not started"."""
        counts = Counter(record.state for record in self.records)
        planned = set()
        for table, _, _ in self.tables:
            planned.update(table.runs())
        counts["not started"] = len(planned - self.runs.keys())
        return {state: counts[state] for state in STATES}


def scan(results: Path) -> Report:
    records = read_runs(results)
    if not records:
        raise UserError(f"{results} has no runs: give the folder that was passed as --results")
    runs = by_run(records)
    report = Report(results, records, runs, [])
    for name in tables():
        with left_out_if_invalid(name):
            for table in _tables(name, runs):
                if runs.keys() & set(table.runs()):
                    measured = table_records(table, records)
                    report.tables.append((table, measured, summarize(table, measured)))
    return report


def _tables(name, runs):
    """Yields a table at each scale, without overrides and with those that runs of several methods have."""
    text = config_path(f"tables/{name}").read_text("utf-8", "replace")
    if not any(run.experiment in text for run in runs):  # loading all tables takes long
        return
    for scale in TableSpec(name).scales:
        table = Table(name, scale)
        yield table
        for overrides, methods in _existing_overrides(table, runs).items():
            if len(methods) > 1:
                with suppress(UserError):  # some rows may not support these overrides
                    yield Table(name, scale, overrides)


def _existing_overrides(table, runs):
    """Returns {overrides: {(attention, method), ...}} of existing runs of a table's rows with overrides.

    Overrides are a tuple of texts KEY=VALUE, without the keys that the table itself changes.
    """
    changed = set()
    rows = set()
    for run in table.runs():
        for key, _ in run.changes:
            changed.add(key)
        rows.add((run.experiment, run.attention, run.method))
    methods = {}
    for run in runs:
        overrides = tuple(f"{key}={value}" for key, value in run.changes if key not in changed)
        if overrides and (run.experiment, run.attention, run.method) in rows:
            methods.setdefault(overrides, set()).add((run.attention, run.method))
    return methods


def render(report: Report, time: datetime) -> str:
    """Returns the HTML page of a report; ``time`` is shown as the time at which the page was created."""
    ids = {}
    by_state = {}
    by_experiment = {}
    environments = Counter()
    curves = 0
    for number, record in enumerate(report.records):
        ids[record.folder] = f"run-{number}"
        by_state.setdefault(record.state, []).append(record)
        by_experiment.setdefault(record.run.experiment, []).append(record)
        environments[_environment(record)] += 1
        curves += bool(record.curve)
    points = MAX_POINTS // max(curves, 1)
    sections = []
    run_lists = {}
    for number, (name, records) in enumerate(by_experiment.items()):
        sections.append(_experiment(number, name, records, points))
        run_lists[name] = run_list(records)
    shown_tables = []
    for number, (table, measured, summary) in enumerate(report.tables):
        shown_tables.append(_table(number, table, measured, summary, report.runs))
    problems = {}
    for state, title in PROBLEMS.items():
        if state in by_state:
            problems[title] = by_state[state]
    environments = environments.most_common()
    numbers = {environment: number for number, (environment, _) in enumerate(environments, 1)}
    return blocks.render(
        "report.html.jinja",
        records=report.records,
        ids=ids,
        title=f"Runs in {display_path(report.results)}",
        time=format_time(time),
        plotly=Markup(get_plotlyjs()),
        counts=report.state_counts(),
        tables=shown_tables,
        experiments=sections,
        run_lists=run_lists,
        running=by_state.get("running", []),
        progress=lambda record: describe_folder(record.folder, record.updates),
        problems=problems,
        environments=environments,
        environment=lambda record: numbers[_environment(record)],
        path=lambda record: record.folder.relative_to(report.results).as_posix(),
        short_path=lambda record: record.folder.relative_to(
            report.results / record.run.experiment
        ).as_posix(),
        last_log_line=_last_log_line,
        last_updated=_last_updated,
    )


def _table(number, table, records, summary, runs):
    """Returns {variable of the template: content} of a table on the page.

    Args:
        number: number of the table on the page.
        table: the table.
        records: {run: record} of the table's runs, without numbers that were measured with other settings.
        summary: the summary of these records.
        runs: {run: record} of all runs in the results folder.
    """
    title, *sections = table_sections(table, summary)
    numbers = next(section for section in sections if isinstance(section, Section))
    return {
        "title": title,
        "name": table_name(table),
        "sections": sections,
        "notes": _notes(table, summary, numbers.frame),
        "states": _states(table, runs),
        "omissions": omissions(records.values()),
        "plot": figure_html(column_figure(table, summary), f"plot-table-{number}"),
    }


def _states(table, runs):
    """Returns the number of a table's runs in each state as text."""
    counts = Counter()
    for run in table.runs():
        counts[runs[run].state if run in runs else "not started"] += 1
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])


def _notes(table, summary, frame):
    """Yields sentences that explain the contents of a table's cells."""
    cells = pd.unique(frame.iloc[:, 2:].to_numpy().ravel())  # without attention and method
    if summary["paper"].notna().any():
        ours = measured_name(table)
        yield f"Columns with “(paper)” contain published numbers, those with “({ours})” measured ones."
    for pattern, text in EXPLANATIONS.items():
        if any(re.search(pattern, cell) for cell in cells):
            yield text


def _experiment(number, name, records, points):
    _, *sections = experiment_sections(records)
    plot = figure_html(curve_figure(experiment_lines(records), points), f"plot-experiment-{number}")
    return {"name": name, "sections": sections, "plot": plot}


def _environment(record):
    return _versions(record.settings), machine(record.settings), _commit(record.settings)


def _versions(settings):
    texts = []
    for name, version in settings.get("versions", {}).items():
        texts.append(f"{name} {version}")
    return ", ".join(texts) or "-"


def _commit(settings):
    git = settings.get("git", {})
    dirty = " with changes" if git.get("dirty") else ""
    return f"{git['revision'][:12]}{dirty}" if git.get("revision") else "-"


def _last_log_line(record):
    name, line = record.last_log_line()
    return f"{name} ends: {line[:MAX_LOG_LINE]}" if name else "-"


def _last_updated(record):
    times = []
    for name in (*RECORDS, "train.log"):
        path = record.folder / name
        if path.exists():
            times.append(path.stat().st_mtime)
    return format_time(datetime.fromtimestamp(max(times), UTC)) if times else "-"


def format_time(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
