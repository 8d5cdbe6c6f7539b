"""Recorded results: writing, checking runs against them, and the page docs/results.md."""

import hashlib
import json
import math
import re
import sys
from collections.abc import Collection
from itertools import chain
from pathlib import Path

import pandas as pd
from rich.progress import track

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.table import Table, TableSpec, tables
from fairseq_lrpe.experiments.definition.table_settings import SCALES
from fairseq_lrpe.experiments.reporting import recorded_results
from fairseq_lrpe.experiments.reporting.aggregate import summarize
from fairseq_lrpe.experiments.reporting.blocks import render
from fairseq_lrpe.experiments.reporting.recorded_results import MEASUREMENTS, POINTS, RUN, WEIGHTS
from fairseq_lrpe.experiments.reporting.records import read_runs
from fairseq_lrpe.experiments.reporting.renderers import Section, markdown
from fairseq_lrpe.experiments.reporting.run_record import RunRecord, row_key
from fairseq_lrpe.experiments.reporting.settings import (
    compared,
    configured_settings,
    different_settings,
    machine,
)
from fairseq_lrpe.experiments.reporting.tables import omissions, table_sections
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import output_folder, write_atomic

MAX_POINTS = 20  # number of points of a recorded curve
DEVIATIONS, RELATIVE = 4, 0.05
"""Tolerance of a check: standard deviations over the seeds, and a share of the value."""


def record(results: Path, folder: Path) -> tuple[int, list[str]]:
    """Records the finished runs of a results folder; they replace earlier records of the same runs.

    Returns:
        The number of recorded runs, and a message for each finished or damaged run that is not recorded.
    """
    runs, refused = finished_runs(results)
    lines = recorded_results.read_settings(folder)
    lines |= {run: _settings_line(record) for run, record in runs.items()}
    _check_data(lines)
    with output_folder(folder / "settings"):
        for experiment in {run.experiment for run in runs}:
            name = experiment.replace("/", "-")
            own = {run: record for run, record in runs.items() if run.experiment == experiment}
            points = [row_key(run) + point for run, record in own.items() for point in _points(record)]
            _merge(folder / "curves" / f"{name}.csv", POINTS, points, own)
            _merge(folder / "measurements" / f"{name}.csv", MEASUREMENTS, _numbers(own), own)
            of = sorted((run for run in lines if run.experiment == experiment), key=row_key)
            text = "".join(json.dumps(lines[run]) + "\n" for run in of)
            write_atomic(folder / "settings" / f"{name}.jsonl", text)
    return len(runs), refused


def _numbers(runs):
    return [(*row_key(run), *number) for run, record in runs.items() for number in record.measurements()]


def finished_runs(
    results: Path, folders: Collection[Path] | None = None
) -> tuple[dict[Run, RunRecord], list[str]]:
    """Returns {run: record} of the finished runs that can be recorded, and messages about the others.

    ``folders`` are the run folders to read (default: all). Evaluations that configs does not define are
    omitted.
    """
    if recorded_results.is_recorded(results):
        raise UserError(f"{results} contains recorded results: give a folder to which runs were written")
    ended = [x for x in read_runs(results, folders) if x.state in ("finished", "damaged")]
    configured = configured_settings(record.run for record in ended)
    found, refused = {}, []
    for record in ended:
        if reason := _problem(record, configured.get(record.run)):
            refused.append(f"{record.folder.relative_to(results)} ({reason})")
        elif record.run in found:
            raise UserError(f"{record.folder} is the same run as {found[record.run].folder}: remove one")
        else:
            found[record.run] = record
    return found, refused


def _problem(record, configured):
    """Removes evaluations that configs does not define; returns why the run cannot be recorded, if so."""
    if record.problem is not None:
        return record.describe_state()
    defined = {"training", *(configured or ())}
    record.measured = {name: of for name, of in record.measured.items() if name in defined}
    different = different_settings(record.compared_settings(), configured)
    texts = "; ".join(chain(*different.values()))
    return different and f"its settings differ from those in configs: {texts}"


def _settings_line(record):
    settings, run = record.settings, record.run
    git = settings.get("git", {})
    return {
        **{name: getattr(run, name) for name in ("experiment", "attention", "method", "seed")},
        "changes": dict(run.changes),
        "kind": settings["kind"],
        "updates": record.updates,
        **{name: record.evaluation[name] for name in ("ended",) if name in record.evaluation},
        "config": compared(settings["config"], run.method, {})[""],
        "evaluations": {x: of["settings"] for x, of in record.measured.items() if "settings" in of},
        "data": data_digest(settings),
        "machine": machine(settings),
        "versions": settings.get("versions", {}),
        "git": {"revision": (git.get("revision") or "")[:12], "dirty": git.get("dirty")},
        "seconds": None if math.isnan(record.seconds) else record.seconds,
        "finished": record.evaluation["finished"][:10],
    }


def data_digest(settings: dict) -> str:
    """Returns a digest of eight hexadecimal digits of the data sizes in a run.json, or that of a record."""
    data = settings.get("data", {})
    text = json.dumps(data, sort_keys=True)
    return data if isinstance(data, str) else hashlib.sha256(text.encode()).hexdigest()[:8]


def _check_data(lines):
    """Raises UserError if runs that a table compares were trained on different data."""
    first = {}
    for run, line in lines.items():
        other = first.setdefault((run.experiment, run.changes), run)
        if line.get("data") != lines[other].get("data"):
            raise UserError(
                f"{other} and {run} were trained on different data (data in run.json): record the runs of "
                "the experiment on the same data at once, or use another folder"
            )


def _points(record):
    """Returns at most ``MAX_POINTS`` points of a curve, with the first and the last."""
    points = sorted(record.curve.items())
    last, count = len(points) - 1, min(len(points), MAX_POINTS)
    return [points[i] for i in sorted({round(last * i / max(count - 1, 1)) for i in range(count)})]


def _merge(path, columns, rows, runs):
    """Replaces the rows of runs in a CSV file; numbers have all digits."""
    frames = [pd.DataFrame(rows, columns=columns).fillna({"signature": ""})] if rows else []
    if path.exists():
        before = recorded_results.read_csv(path, columns)
        is_replaced = pd.MultiIndex.from_frame(before[RUN]).isin([row_key(run) for run in runs])
        frames.insert(0, before[~is_replaced])
    if frames:
        types = {name: kind for name, kind in recorded_results.TYPES.items() if name in columns}
        new = pd.concat(frames).astype(types)
        text = new.sort_values(columns[: columns.index("value")]).to_csv(
            index=False, na_rep="nan", lineterminator="\n"
        )
        with output_folder(path.parent):
            write_atomic(path, text)


def record_weights(experiment: str, results: Path, folder: Path) -> int:
    """Records the attention weights of each method's model of the first seed; returns the number of models.

    The atlas shows the weights only of runs that are recorded, too.
    """
    import torch  # these imports take seconds

    from fairseq_lrpe.experiments.inference.attention import trained_weights

    runs, first, rows = finished_runs(results)[0], {}, []
    for run in sorted((run for run in runs if run.experiment == experiment and not run.changes), key=str):
        first.setdefault((run.attention, run.method), run)
    if not first:
        wrong = f"has no finished run of {experiment} without overrides"
        raise UserError(f"{results} {wrong}: train its models first with `lrpe train`")
    for run in track(first.values(), "models", transient=True):
        torch.manual_seed(0)  # some encodings are random
        weights = trained_weights(runs[run].folder).tolist()
        distances = recorded_results.shown_distances(len(weights))
        rows += [(*row_key(run), n, f"{weights[n]:.4g}") for n in distances]  # four digits suffice for plots
    _merge(folder / "attention_weights.csv", WEIGHTS, rows, first.values())
    return len(first)


def check(results: Path, folder: Path, runs: Collection[Path] | None = None) -> tuple[list[str], bool]:
    """Compares finished runs, of the run folders ``runs`` if given, with recorded results.

    Returns:
        One line for each number outside the tolerance and a summary, and whether there is no such number.
    """
    recorded = {x.run: x for x in recorded_results.read_recorded(folder) if x.problem is None}
    found, refused = finished_runs(results, runs)
    groups, off = {"off": [], "without a record": [], "on other data": [], "not compared": refused}, []
    numbers = pd.DataFrame(_numbers(recorded), columns=MEASUREMENTS)
    spread = numbers.groupby([*RUN[:4], "evaluation", "metric"])["value"].std().fillna(0.0)
    for run, ours in found.items():
        if run not in recorded:
            groups["without a record"].append(str(run))
        elif data_digest(ours.settings) != data_digest(recorded[run].settings):
            groups["on other data"].append(str(run))
        elif numbers := list(_numbers_off(ours, recorded[run], spread)):
            groups["off"].append(str(run))
            off += [f"{run}: {number}" for number in numbers]
    total = len(found) + len(refused)
    summary = f"{total - sum(map(len, groups.values()))} of {total} runs as recorded"
    parts = [f"{len(names)} {state}: {', '.join(names)}" for state, names in groups.items() if names]
    return [*off, "; ".join([summary, *parts])], not off


def _numbers_off(ours, theirs, spread):
    """Yields a description of each number, except for speeds, that differs by more than the tolerance.

    The tolerance is 0 on the same kind of machine with the same versions of torch and this package.
    Otherwise, it is the larger of four sample standard deviations over the recorded seeds (``spread``) and
    5% of the recorded value.
    """
    is_same = _environment(ours.settings) == _environment(theirs.settings)
    for evaluation, metric, value, _ in ours.measurements():
        expected = theirs.value(evaluation, metric)
        is_nan = expected is not None and math.isnan(value) and math.isnan(expected)
        if expected in (None, value) or is_nan or metric.endswith("_per_second"):
            continue
        tolerance, allowed = 0.0, "equality is expected on the same kind of machine with the same versions"
        if not is_same and math.isfinite(expected):
            std = spread[(*row_key(theirs.run)[:4], evaluation, metric)]
            tolerance = max(DEVIATIONS * std, RELATIVE * abs(expected))
            allowed = f"allowed is {tolerance:.3g}"
        if not abs(value - expected) <= tolerance:
            difference = f"(difference {value - expected:+.6g}; {allowed})"
            yield f"{evaluation} {metric} is {value!r}, recorded {expected!r} {difference}"


def _environment(settings):
    """Returns the machine and the versions of torch and this package, which equal numbers require."""
    versions = settings.get("versions", {})
    return machine(settings), versions.get("torch"), versions.get("fairseq_lrpe")


def page(folder: Path) -> str:
    """Returns the page of a folder of recorded results.

    It has the number of recorded runs of all tables, and a section for each table that has recorded runs or a
    commentary, notes/TABLE.md in the folder. Other files in notes are sections of their own with a heading.
    """
    read = recorded_results.read_recorded(folder)
    recorded = {record.run: record for record in read if record.problem is None}
    for message in omissions(read):
        print(f"results: {message}", file=sys.stderr)
    notes = {
        path.stem: path.read_text("utf-8").strip() for path in sorted((folder / "notes").glob("[!.]*.md"))
    }
    others = [text for name, text in notes.items() if name not in tables()]
    coverage, sections = [], []
    for name in tables():
        counts, lines = _recorded_table(name, recorded)
        title, link = TableSpec(name).settings.title, name
        if lines or name in notes:
            link = f"[{name}](#{name})"
            sections += [f"## {name}\n", *(lines or [f"{title}. No recorded runs."]), ""]
        if name in notes:
            sections += [notes[name], ""]
        coverage.append({"table": link, "title": title, **counts})
    lines = [*markdown([Section("", pd.DataFrame(coverage))])]
    links = [_link(text.partition("\n")[0].removeprefix("## ")) for text in others]
    text = "\n".join([*lines, *sections, "\n\n".join(others)]).rstrip()
    return render("results.md.jinja", folder=folder.name, others=links, tables=text) + "\n"


def _recorded_table(name, recorded):
    """Returns {scale: numbers of recorded and planned runs}, and lines of Markdown."""
    counts, lines = dict.fromkeys(reversed(SCALES), "-"), []
    for scale in TableSpec(name).scales[::-1]:
        table = Table(name, scale)
        runs = {run for cell in table.cells for run in cell.runs}
        counts[scale] = f"{len(runs & recorded.keys())} of {len(runs)}"
        if runs & recorded.keys():
            sections = table_sections(table, summarize(table, recorded))
            lines += markdown([f"Scale: {scale}", *sections])
    return counts, lines


def _link(title: str) -> str:
    anchor = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
    return f"[{title}](#{anchor})"
