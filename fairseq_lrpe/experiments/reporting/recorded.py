"""Recorded results: measurements of finished runs in CSV files, which can be read in place of run folders.

A folder of recorded results contains measurements.csv, with one line per number, curves/EXPERIMENT.csv, and
attention_weights.csv.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path

import pandas as pd
from omegaconf import OmegaConf

from fairseq_lrpe.experiments.execution.runner import Job, evaluation_settings
from fairseq_lrpe.experiments.reporting.records import RUN, RunRecord, flatten, read_run
from fairseq_lrpe.experiments.spec.experiment import Experiment, is_free
from fairseq_lrpe.experiments.spec.kinds import KINDS
from fairseq_lrpe.experiments.spec.run import RECORDS, Run, run_folders
from fairseq_lrpe.utils.files import display_path

ABOUT = "kind updates length unit seconds data package commit torch machine date".split()
"""Columns that describe a run: in particular ``seconds``, fairseq's train_wall, and ``data``, a digest."""
MEASUREMENTS = [*RUN, "evaluation", "metric", "value", "signature", "settings", *ABOUT]
POINTS = [*RUN, "updates", "value"]
WEIGHTS = [*RUN, "settings", "distance", "value"]
"""Columns of measurements.csv, of the files with curves, and of attention_weights.csv."""
TYPES = {"distance": int, "seed": int, "updates": int, "value": float, "length": int, "seconds": float}
WEIGHTS_FILE = "attention_weights.csv"
CHANGE_SEPARATOR = re.compile(r", (?=[\w.]+=)")


def is_recorded(results: Path) -> bool:
    """Returns whether a folder contains recorded results instead of run folders."""
    return (results / "measurements.csv").is_file()


def check_recorded(folder: Path) -> None:
    """Raises ValueError if a folder does not contain recorded results."""
    if not is_recorded(folder):
        command = f"`lrpe results RESULTS --record {display_path(folder)}`"
        raise ValueError(f"{folder} has no measurements.csv, which {command} writes")


def read_runs(results: Path, folders: Collection[Path] | None = None) -> list[RunRecord]:
    """Reads the runs of a results folder or a folder of recorded results.

    Args:
        results: the folder.
        folders: the run folders to read, of which some may not exist; the default is all.

    Raises:
        ValueError: the folder does not exist, or a file with recorded results is damaged.
    """
    if not results.is_dir():
        raise ValueError(f"the results folder {results} does not exist")
    if is_recorded(results):
        return [run for run in read_recorded(results) if folders is None or run.folder in folders]
    if folders is None:
        return [read_run(folder, results) for folder in run_folders(results)]
    return [read_run(path, results) for path in folders if any((path / name).exists() for name in RECORDS)]


def read_recorded(folder: Path) -> list[RunRecord]:
    """Reads recorded results as run records, without numbers if the run has a ``problem``."""
    lines, curves = read_measurements(folder), {}
    for path in sorted((folder / "curves").glob("[!.]*.csv")):
        for key, points in read_csv(path, POINTS, [*RUN, "updates"]).groupby(RUN, sort=False):
            curves[key] = dict(zip(points["updates"].tolist(), points["value"].tolist(), strict=True))
    return [_as_record(folder, of, curves.get(key, {})) for key, of in lines.groupby(RUN, sort=False)]


def _as_record(folder, lines, curve):
    """Returns the record of a run with these lines of measurements.csv."""
    first, run, values = lines.iloc[0], run_of(lines.iloc[0]), {}
    problem = next(filter(None, lines["problem"]), None)
    for line in lines.itertuples() if problem is None else ():
        measured = values.setdefault(line.evaluation, {})
        measured[line.metric] = line.value
        if line.signature:
            measured[f"{line.metric}_signature"] = line.signature
    return RunRecord(
        *(run.experiment, run.attention, run.method, tuple(f"{key}={value}" for key, value in run.changes)),
        seed=run.seed,
        folder=folder / str(run),
        settings={
            "kind": first["kind"],
            "machine": first["machine"],
            "versions": {"torch": first["torch"], "fairseq_lrpe": first["package"]},
            "git": {"revision": first["commit"], "dirty": first["commit"].endswith("with changes")},
        },
        evaluation={"finished": first["date"]},
        problem=problem,
        kind=KINDS[first["kind"]],
        updates=int(first["updates"]),
        reached=int(first["updates"]),
        length=float(first["length"]),
        unit=first["unit"],
        seconds=float(first["seconds"]),
        curve=curve if problem is None else {},
        values=values,
    )


def run_of(line: Mapping) -> Run:
    """Returns the run that a line of a CSV file belongs to."""
    texts = CHANGE_SEPARATOR.split(line["changes"]) if line["changes"] else []
    changes = tuple(tuple(text.split("=", 1)) for text in texts)
    return Run(line["experiment"], line["attention"], line["method"], int(line["seed"]), changes)


def read_measurements(folder: Path) -> pd.DataFrame:
    """Reads measurements.csv.

    Returns:
        A DataFrame with the columns ``MEASUREMENTS`` and ``problem``, which is empty for runs that were
        trained and evaluated with the settings that the experiments' YAML files define today.

    Raises:
        ValueError: the file is damaged, or a line occurs twice.
    """
    path = folder / "measurements.csv"
    lines = read_csv(path, MEASUREMENTS, [*RUN, "evaluation", "metric"])
    runs = lines.drop_duplicates([*RUN, *ABOUT])
    if runs.duplicated(RUN).any():
        raise damaged(path, f"columns of {run_of(runs[runs.duplicated(RUN)].iloc[0])} are contradictory")
    if unknown := set(lines["kind"]) - set(KINDS):
        raise damaged(path, f"unknown kind {min(unknown)!r}")
    current = CurrentSettings()
    return lines.assign(problem=[current.problem(line) for _, line in lines.iterrows()])


def read_weights(folder: Path) -> dict[Run, list[tuple[int, float]]]:
    """Reads {run: [(distance, weight)]} of runs with today's settings from attention_weights.csv.

    Raises:
        ValueError: the file is damaged.
    """
    path, current, found = folder / WEIGHTS_FILE, CurrentSettings(), {}
    if not path.exists():
        return found
    for _, points in read_csv(path, WEIGHTS, [*RUN, "distance"]).groupby(RUN, sort=False):
        first = points.iloc[0].to_dict() | {"evaluation": "training"}
        if not current.problem(first):
            pairs = zip(points["distance"].tolist(), points["value"].tolist(), strict=True)
            found[run_of(first)] = list(pairs)
    return found


def shown_distances(length: int) -> list[int]:
    """Returns the distances of recorded weights: all below 32, and every third one from there on."""
    return [n for n in range(length) if n < 32 or (n - 32) % 3 == 0]


def read_csv(path: Path, columns: list[str], key: list[str]) -> pd.DataFrame:
    """Reads a CSV file with these columns; raises ValueError if it is damaged or ``key`` is not unique."""
    try:
        if not path.read_bytes().endswith(b"\n"):
            raise ValueError("the last line is incomplete")
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False)
        if list(frame.columns) != columns:
            raise ValueError(f"the columns are not {','.join(columns)}")
        is_short = frame[columns[-1]] == ""  # pandas fills missing cells at the end of a line
        if is_short.any():
            raise ValueError(f"line {int(is_short.idxmax()) + 2} is incomplete")
        frame = frame.astype({name: kind for name, kind in TYPES.items() if name in columns})
    except ValueError as error:
        raise damaged(path, error) from None
    if frame.duplicated(key).any():
        twice = frame[frame.duplicated(key)].iloc[0]
        raise damaged(path, f"{', '.join(str(twice[name]) for name in key if twice[name])} occurs twice")
    return frame


def damaged(path: Path, problem: object) -> ValueError:
    """Returns the error for a damaged CSV file."""
    text = " ".join(str(problem).split())
    return ValueError(f"{path} is damaged ({text}): restore it, for example with git, and record again")


def digest(content: object) -> str:
    """Returns eight hexadecimal digits that identify an object which JSON can represent."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


class CurrentSettings:
    """The settings that YAML files define today; each experiment is loaded only once."""

    def __init__(self):
        self._experiments, self._digests = {}, {}

    def job(self, run: Run) -> Job:
        """Returns a job with the settings of a run; raises ValueError if its experiment is unknown."""
        if run.experiment not in self._experiments:
            self._experiments[run.experiment] = Experiment.load(run.experiment)
        return Job(self._experiments[run.experiment], run, Path())

    def digests(self, run: Run) -> dict[str, str]:
        """Returns {evaluation: digest of the settings of the training and of the evaluation}."""
        key = run.experiment, run.changes  # the settings do not depend on the method and the seed
        if key not in self._digests:
            job = self.job(run)
            config = dict(flatten(OmegaConf.to_container(job.cfg, resolve=True)))
            # Empty values are omitted, so that a new optional key does not change the digests.
            config = {k: x for k, x in config.items() if is_compared(k) and x not in ("null", "{}", "[]", "")}
            settings = {name: evaluation_settings(job, name) for name in job.kind.evaluations(job.cfg)}
            settings["training"] = None
            self._digests[key] = {name: digest([config, about]) for name, about in settings.items()}
        return self._digests[key]

    def problem(self, line: Mapping) -> str:
        """Returns why a recorded number does not belong to today's settings, or an empty string."""
        try:
            is_current = self.digests(run_of(line)).get(line["evaluation"]) == line["settings"]
        except ValueError:  # the experiment or a changed key does not exist any more
            is_current = False
        name = f"{line['evaluation']} of {line['experiment']}"
        return "" if is_current else f"the settings of {name} in configs have changed since: run it again"


def is_compared(key: str) -> bool:
    """Returns whether the value of a setting can change the result of a training."""
    return not is_free(key) or key.partition(".")[0] in ("starts_from", "choose")
