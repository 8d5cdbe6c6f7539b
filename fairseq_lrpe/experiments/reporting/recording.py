"""Records finished runs in CSV files, and checks whether runs reproduce the recorded results."""

from collections.abc import Collection
from pathlib import Path

import pandas as pd
from omegaconf import OmegaConf

from fairseq_lrpe.experiments.execution.run_directory import setting_differences
from fairseq_lrpe.experiments.execution.runner import Job, evaluation_settings
from fairseq_lrpe.experiments.reporting.recorded import (
    MEASUREMENTS,
    POINTS,
    TYPES,
    CurrentSettings,
    check_recorded,
    digest,
    is_recorded,
    read_csv,
    read_measurements,
    read_runs,
    run_of,
)
from fairseq_lrpe.experiments.reporting.records import RUN, RunRecord, machine
from fairseq_lrpe.experiments.spec.run import Run
from fairseq_lrpe.utils.files import output_folder, write_atomic

NUMBER = [*RUN, "evaluation", "metric"]
MAX_POINTS = 20  # number of points of a recorded curve
DEVIATIONS, RELATIVE = 4, 0.05
"""Tolerance of a check, in standard deviations over the seeds and relative to the recorded value."""


def record(results: Path, folder: Path) -> tuple[int, list[str]]:
    """Records the finished runs of a results folder; they replace earlier records of the same runs.

    Returns:
        The number of recorded runs, and a message for each finished or damaged run that is not recorded.

    Raises:
        ValueError: two folders contain the same run, or the runs would be mixed with runs on other data.
    """
    runs, refused = finished_runs(results)
    new = pd.DataFrame([line for of in runs.values() for line in of[1]], columns=MEASUREMENTS)
    new = new.fillna({"signature": ""}).astype({name: TYPES[name] for name in new if name in TYPES})
    is_new = pd.MultiIndex.from_frame(new[RUN])
    before = read_csv(folder / "measurements.csv", MEASUREMENTS, NUMBER) if is_recorded(folder) else new[:0]
    merged = merge(before, new, is_new, NUMBER)
    _check_data(merged)
    with output_folder(folder / "curves"):
        points = pd.DataFrame([point for one, _ in runs.values() for point in _points(one)], columns=POINTS)
        for experiment in dict.fromkeys(new["experiment"]):
            path = folder / "curves" / f"{experiment.replace('/', '-')}.csv"
            before = read_csv(path, POINTS, [*RUN, "updates"]) if path.exists() else points[:0]
            found = merge(before, points[points["experiment"] == experiment], is_new, [*RUN, "updates"])
            if len(found) or path.exists():
                write(path, found)
        write(folder / "measurements.csv", merged)
    return len(runs), refused


def finished_runs(
    results: Path, folders: Collection[Path] | None = None
) -> tuple[dict[Run, tuple[RunRecord, list[dict]]], list[str]]:
    """Returns {run: (record, lines of measurements.csv)} of finished runs, and messages about the others.

    Runs that are not finished are omitted. There is a message for each run that is damaged, or was trained or
    evaluated with other settings than the YAML files define. The arguments are those of ``read_runs``.
    """
    if is_recorded(results):
        raise ValueError(f"{results} contains recorded results: give a folder to which runs were written")
    current, found, refused = CurrentSettings(), {}, []
    for record in read_runs(results, folders):
        if record.state not in ("finished", "damaged"):
            continue
        try:
            if record.problem is not None:
                raise ValueError(f"damaged: {record.problem}")
            if different := differences(record, current.job(record.run)):
                raise ValueError(f"its settings differ from those in configs: {'; '.join(different)}")
            lines = _lines(record, current.digests(record.run))
        except ValueError as error:
            refused.append(f"{record.folder.relative_to(results)} ({error})")
            continue
        if record.run in found:
            raise ValueError(f"{record.folder} is the same run as {found[record.run][0].folder}: remove one")
        found[record.run] = record, lines
    return found, refused


def differences(record: RunRecord, job: Job) -> list[str]:
    """Returns the differences between the settings of a run and those of a job, as "key was x, now y"."""
    before, now = record.settings["config"], OmegaConf.to_container(job.cfg, resolve=True)
    found = setting_differences(before, now)
    for key in ("starts_from", "choose"):  # these do not identify a run, but change its result
        if (before.get(key) or None) != (now.get(key) or None):
            found.append(f"{key} was {before.get(key)}, now {now.get(key)}")
    found += setting_differences(record.settings.get("flags", []), [], "flags of fairseq-train")
    for name in set(record.values) & set(job.kind.evaluations(job.cfg)):
        settings = record.values[name].get("settings", {})
        found += [f"{name}: {text}" for text in setting_differences(settings, evaluation_settings(job, name))]
    return found


def _lines(record, digests):
    """Returns the lines of measurements.csv of a run: its training speed, and the evaluations in configs."""
    settings, run = record.settings, record.run
    versions, git = settings.get("versions", {}), settings.get("git", {})
    about = {
        **{name: getattr(run, name) for name in RUN if name != "changes"},
        "changes": ", ".join(record.changes),
        **{name: getattr(record, name) for name in ("updates", "length", "unit", "seconds")},
        "kind": settings["kind"],
        "data": digest(settings.get("data", {})),
        "package": versions.get("fairseq_lrpe") or "",
        "commit": f"{(git.get('revision') or '')[:12]}{' with changes' if git.get('dirty') else ''}",
        "torch": versions.get("torch") or "",
        "machine": machine(settings),
        "date": record.evaluation["finished"][:10],
    }
    names = "evaluation", "metric", "value", "signature"
    return [
        {**about, **dict(zip(names, measured, strict=True)), "settings": digests[measured[0]]}
        for measured in record.measurements()
        if measured[0] in digests
    ]


def _points(record):
    """Yields the points of a run's curve, at most ``MAX_POINTS``, including the first and the last."""
    points, run = sorted(record.curve.items()), record.run
    last = len(points) - 1
    count = min(len(points), MAX_POINTS)
    for i in sorted({round(last * i / max(count - 1, 1)) for i in range(count)}):
        key = run.experiment, run.attention, run.method, ", ".join(record.changes), run.seed
        yield dict(zip(POINTS, (*key, *points[i]), strict=True))


def merge(before, new, replaced, key):
    """Returns the lines of two DataFrames, without those of ``before`` that belong to replaced runs."""
    kept = before[~pd.MultiIndex.from_frame(before[RUN]).isin(replaced)]
    return pd.concat([frame for frame in (kept, new) if len(frame)] or [new]).sort_values(key)


def _check_data(lines):
    """Raises ValueError if runs with the same experiment and changes were trained on different data."""
    for _, runs in lines.groupby(["experiment", "changes"]):
        if runs["data"].nunique() > 1:
            a, b = (run_of(line) for _, line in runs.drop_duplicates("data")[:2].iterrows())
            raise ValueError(
                f"{a} and {b} were trained on different data (data in run.json): record the runs of the "
                "experiment on the same data at once, or use another folder"
            )


def write(path, frame):
    """Writes a CSV file atomically; numbers have as many digits as are necessary to read them exactly."""
    write_atomic(path, frame.to_csv(index=False, na_rep="nan", lineterminator="\n"))


def check(results: Path, folder: Path, runs: Collection[Path] | None = None) -> tuple[list[str], bool]:
    """Compares finished runs with recorded results.

    Args:
        results: the results folder.
        folder: the folder of recorded results.
        runs: the run folders to compare; the default is all.

    Returns:
        One line for each number that is off and a summary, and whether no number is off.
    """
    check_recorded(folder)
    found, refused = finished_runs(results, runs)
    lines = pd.DataFrame([line for _, of in found.values() for line in of], columns=MEASUREMENTS)
    compared = compare(lines, read_measurements(folder))
    groups = {"off": [], "without a record": [], "on other data": []}
    as_recorded, off = 0, []
    for run, (record, _) in found.items():
        key = run.experiment, run.attention, run.method, ", ".join(record.changes), run.seed
        numbers = compared[(compared[RUN] == pd.Series(key, RUN)).all(axis=1)]
        wrong = numbers[numbers["is_off"]]
        if numbers.empty:
            groups["without a record"].append(str(run))
        elif not numbers["is_same_data"].all():
            groups["on other data"].append(str(run))
        elif len(wrong):
            groups["off"].append(str(run))
            off += [f"{run}: {describe(number)}" for number in wrong.itertuples()]
        else:
            as_recorded += 1
    groups["not compared"] = refused
    summary = f"{as_recorded} of {len(found) + len(refused)} runs as recorded"
    parts = [f"{len(names)} {state}: {', '.join(names)}" for state, names in groups.items() if names]
    return [*off, "; ".join([summary, *parts])], not off


def compare(lines: pd.DataFrame, recorded: pd.DataFrame) -> pd.DataFrame:
    """Compares numbers with the recorded numbers of the same runs, except for speeds.

    Returns:
        A DataFrame with the columns of ``lines``, those of ``recorded`` with the suffix "_recorded", and

        - is_same_data: whether both runs were trained on the same data, without which they are not compared
        - tolerance: the largest allowed difference, which is 0 on the same kind of machine with the same
          versions of torch and this package. Otherwise, it is the larger of four sample standard deviations
          over the recorded seeds and 5% of the recorded value.
        - is_off: whether the difference exceeds the tolerance
    """
    recorded = recorded[recorded["problem"] == ""]
    same_run = [name for name in (*NUMBER, "data") if name != "seed"]
    std = recorded.groupby(same_run)["value"].transform("std").fillna(0.0)
    both = lines.merge(recorded.assign(std=std), on=NUMBER, suffixes=("", "_recorded"))
    both = both[~both["metric"].str.endswith("_per_second")]
    ours, theirs = both["value"].astype(float), both["value_recorded"].astype(float)
    is_same = (both["machine"] == both["machine_recorded"]) & both["machine"].map(is_known)
    for name in ("torch", "package"):
        is_same &= both[name] == both[f"{name}_recorded"]
    tolerance = pd.concat([DEVIATIONS * both["std"], RELATIVE * theirs.abs()], axis=1).max(axis=1)
    tolerance = tolerance.where(~is_same & (theirs.abs() < float("inf")), 0.0)
    is_equal = (ours == theirs) | (ours.isna() & theirs.isna())
    is_near = (ours - theirs).abs() <= tolerance
    is_same_data = both["data"] == both["data_recorded"]
    return both.assign(
        is_same_data=is_same_data, tolerance=tolerance, is_off=is_same_data & ~(is_equal | is_near)
    )


def is_known(machine: str) -> bool:
    """Returns whether the description of a machine has its GPUs, or its CPU, instruction set and threads."""
    return " × " in machine or machine.count(", ") == 2  # CPU (name, instruction set, threads)


def describe(number) -> str:
    """Returns in words by how much a line of ``compare`` is off."""
    allowed = f"allowed is {number.tolerance:.3g}"
    if not number.tolerance:
        allowed = "equality is expected on the same kind of machine with the same versions"
    return (
        f"{number.evaluation} {number.metric} is {number.value!r}, recorded {number.value_recorded!r} "
        f"(difference {number.value - number.value_recorded:+.6g}; {allowed})"
    )
