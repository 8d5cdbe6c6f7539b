"""Operations on recorded results: recording of runs, and checks of runs."""

import math
from collections.abc import Collection
from itertools import chain
from pathlib import Path

import pandas as pd
from rich.progress import track

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.reporting import recorded_results
from fairseq_lrpe.experiments.reporting.recorded_files import (
    data_digest,
    measurement_rows,
    merge_rows,
    settings_line,
    write_experiment,
)
from fairseq_lrpe.experiments.reporting.recorded_results import MEASUREMENTS, RUN, WEIGHTS
from fairseq_lrpe.experiments.reporting.records import read_runs
from fairseq_lrpe.experiments.reporting.run_record import RunRecord, by_run, readable, row_key
from fairseq_lrpe.experiments.reporting.settings import (
    configured_settings,
    different_settings,
    machine,
)
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import output_folder

DEVIATIONS = 4  # tolerance of a check in standard deviations over the seeds ...
RELATIVE = 0.05  # ... and as a share of the value


def record(results: Path, folder: Path) -> tuple[int, list[str]]:
    """Records the finished runs of a results folder; new records replace earlier ones of the same runs.

    Args:
        results: the results folder.
        folder: the folder of recorded results.

    Returns:
        The number of recorded runs, and a message for each finished or damaged run that is not recorded.
    """
    runs, refused = finished_runs(results)
    lines = recorded_results.read_settings(folder)
    for run, record in runs.items():
        lines[run] = settings_line(record)
    _check_data(lines)
    with output_folder(folder / "settings"):
        for experiment in {run.experiment for run in runs}:
            write_experiment(experiment, runs, lines, folder)
    return len(runs), refused


def finished_runs(
    results: Path, folders: Collection[Path] | None = None
) -> tuple[dict[Run, RunRecord], list[str]]:
    """Returns {run: record} of the finished runs that can be recorded, and messages about other runs.

    The messages are about finished runs whose settings differ from those in configs, and damaged ones.
    Evaluations that configs does not define are omitted. ``folders`` are the run folders to read (default:
    all).
    """
    if recorded_results.is_recorded(results):
        raise UserError(f"{results} contains recorded results: give a folder to which runs were written")
    records = read_runs(results, folders)
    ended = [record for record in records if record.state in ("finished", "damaged")]
    configured = configured_settings(record.run for record in ended)
    finished = {}
    refused = []
    for record in ended:
        if reason := _problem(record, configured.get(record.run)):
            refused.append(f"{record.folder.relative_to(results)} ({reason})")
        elif record.run in finished:
            other = finished[record.run].folder
            raise UserError(f"{record.folder} is the same run as {other}: remove one of the folders")
        else:
            finished[record.run] = record
    return finished, refused


def _problem(record, configured):
    """Returns why a run cannot be recorded, or None; removes evaluations that configs does not define."""
    if record.problem is not None:
        return record.describe_state()
    defined = {"training", *(configured or ())}
    measured = {}
    for name, values in record.measured.items():
        if name in defined:
            measured[name] = values
    record.measured = measured
    differences = different_settings(record.compared_settings(), configured)
    if not differences:
        return None
    texts = "; ".join(chain(*differences.values()))
    return f"its settings differ from those in configs: {texts}"


def _check_data(lines):
    """Raises UserError if runs that a table compares were trained on different data."""
    for run, other in recorded_results.runs_on_other_data(lines):
        raise UserError(
            f"{other} and {run} were trained on different data (data in run.json): record the runs of "
            "the experiment on the same data at once, or use another folder"
        )


def record_weights(experiment: str, results: Path, folder: Path) -> int:
    """Records the attention weights of one model of each method, that of the first seed.

    The atlas shows the weights of a run only if the run is recorded, too.

    Args:
        experiment: the experiment of the models.
        results: the results folder with the models.
        folder: the folder of recorded results.

    Returns:
        The number of models.
    """
    import torch

    from fairseq_lrpe.experiments.inference.attention import trained_weights

    runs, _ = finished_runs(results)
    first = {}
    for run in sorted(runs, key=str):
        if run.experiment == experiment and not run.changes:
            first.setdefault((run.attention, run.method), run)
    if not first:
        wrong = f"has no finished run of {experiment} without overrides"
        raise UserError(f"{results} {wrong}: train its models first with `lrpe train`")
    rows = []
    for run in track(first.values(), "models", transient=True):
        torch.manual_seed(0)  # some encodings are random
        weights = trained_weights(runs[run].folder).tolist()
        for distance in recorded_results.shown_distances(len(weights)):
            weight = f"{weights[distance]:.4g}"  # four digits suffice for plots
            rows.append((*row_key(run), distance, weight))
    merge_rows(folder / "attention_weights.csv", WEIGHTS, rows, first.values())
    return len(first)


def check(results: Path, folder: Path, runs: Collection[Path] | None = None) -> tuple[list[str], bool]:
    """Compares finished runs with recorded results.

    Args:
        results: the results folder with the runs.
        folder: the folder of recorded results.
        runs: the run folders to compare (default: all).

    Returns:
        A line for each number outside the tolerance, followed by a summary; and whether no number is.
    """
    finished, refused = finished_runs(results, runs)
    experiments = {run.experiment for run in finished}
    records = recorded_results.read_recorded(folder, lambda run: run.experiment in experiments)
    recorded = by_run(readable(records))
    numbers = pd.DataFrame(measurement_rows(recorded), columns=MEASUREMENTS)
    spread = numbers.groupby([*RUN[:4], "evaluation", "metric"])["value"].std().fillna(0.0)
    groups = {"off": [], "without a record": [], "on other data": [], "not compared": refused}
    lines = []
    for run, ours in finished.items():
        if run not in recorded:
            groups["without a record"].append(str(run))
        elif data_digest(ours.settings) != data_digest(recorded[run].settings):
            groups["on other data"].append(str(run))
        elif differences := list(_numbers_off(ours, recorded[run], spread)):
            groups["off"].append(str(run))
            for difference in differences:
                lines.append(f"{run}: {difference}")
    is_as_recorded = not lines
    lines.append(_check_summary(len(finished) + len(refused), groups))
    return lines, is_as_recorded


def _check_summary(total, groups):
    """Returns the last line of a check of ``total`` runs; ``groups`` are {state: runs not as recorded}."""
    equal = total
    texts = []
    for state, names in groups.items():
        equal -= len(names)
        if names:
            texts.append(f"{len(names)} {state}: {', '.join(names)}")
    return "; ".join([f"{equal} of {total} runs as recorded", *texts])


def _numbers_off(ours, theirs, spread):
    """Yields a text about each number, except speeds, that is not its record within the tolerance.

    The tolerance is 0 on the same kind of machine with the same versions of torch and this package.
    Otherwise, it is the larger of four sample standard deviations over the recorded seeds (``spread``) and
    5% of the recorded value.
    """
    is_same = _environment(ours.settings) == _environment(theirs.settings)
    for evaluation, metric, value, _ in ours.measurements():
        expected = theirs.value(evaluation, metric)
        if expected is None or metric.endswith("_per_second"):
            continue
        if value == expected or (math.isnan(value) and math.isnan(expected)):
            continue
        tolerance = 0.0
        allowed = "equality is expected on the same kind of machine with the same versions"
        if not is_same and math.isfinite(expected):
            std = spread[(*row_key(theirs.run)[:4], evaluation, metric)]
            tolerance = max(DEVIATIONS * std, RELATIVE * abs(expected))
            allowed = f"allowed is {tolerance:.3g}"
        if not abs(value - expected) <= tolerance:
            difference = f"(difference {value - expected:+.6g}; {allowed})"
            yield f"{evaluation} {metric} is {value!r}, recorded {expected!r} {difference}"


def _environment(settings):
    """Returns the machine and the versions of torch and this package, which determine all digits."""
    versions = settings.get("versions", {})
    return machine(settings), versions.get("torch"), versions.get("fairseq_lrpe")
