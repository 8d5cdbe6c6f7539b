"""Write a zip file of predictions for GLUE's test sets in the format of its evaluation server.

For each task, the run with the best score on the development set is used. RUNS are folders of a method: one
with the fine-tuned models of all tasks, or those with the classifiers of each task. Files that the server
requires, but for which there is no model, are listed. For example:

  lrpe glue-submission results/glue/wikibook/linear_rope
  lrpe glue-submission results/classifier/{sst2,qnli,qqp,mnli}/softmax_gcdf
"""

import math
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from fairseq_lrpe.data.glue_tasks import MAX_SCORE, TASKS
from fairseq_lrpe.experiments.definition.choice import best_by_score
from fairseq_lrpe.experiments.definition.run import is_seed
from fairseq_lrpe.experiments.execution.run_files import (
    REMEDY,
    evaluated_checkpoint,
    read_evaluation,
    read_settings,
)
from fairseq_lrpe.utils.cli import abs_path, exit_on_error, new_parser
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import REPOSITORY, atomic_file, output_folder

KEYS = ("kind", "config.data", "config.evaluate.checkpoint")


class GlueRun(NamedTuple):
    score: float  # on the development set
    task: str  # name of the GLUE task
    folder: Path
    data: Path  # folder of its binarized data
    checkpoint: Path  # the evaluated checkpoint


def submission_files(task: str) -> dict[str, str]:
    """Returns {file name in the zip file, without suffix: predicted test split} of a task."""
    return TASKS[task].submission or {task: "test"}


def finished_runs(folder: Path) -> Iterator[GlueRun]:
    """Yields a method's finished runs on GLUE tasks that still have a checkpoint; trials are left out."""
    for path in [*sorted(folder.glob("seed-*")), *sorted(folder.glob("task=*/seed-*"))]:
        if not is_seed(path):
            continue
        record = read_evaluation(path)
        settings = read_settings(path, KEYS)
        if "finished" not in record or settings.get("kind") not in ("glue", "classifier"):
            continue
        data, metric = data_and_metric(path, settings)
        task = data.parent.name  # of data/glue/RTE/bin
        scores = []
        for measured in record.get("evaluations", {}).values():
            if metric in measured:
                scores.append(measured[metric])
        checkpoint = evaluated_checkpoint(path, settings["config"]["evaluate"]["checkpoint"])
        if scores and checkpoint.exists():
            yield GlueRun(scores[0], task, path, data, checkpoint)


def data_and_metric(folder: Path, settings: dict) -> tuple[Path, str | None]:
    """Returns the data folder of a run, and the official metric of its GLUE task, or None for other tasks."""
    config = settings["config"]
    data = REPOSITORY / config["data"]
    if settings["kind"] == "classifier":
        return data, getattr(TASKS.get(data.parent.name), "measure", None)
    if not config.get("task"):
        raise UserError(f"{folder / 'run.json'} lacks the key config.task: {REMEDY}")
    return data / config["task"] / "bin", "score"


def best_runs(folders: Iterable[Path]) -> dict[str, GlueRun]:
    """Returns {task: finished run with the best score on the development set}."""
    candidates = {}
    for folder in folders:
        runs = list(finished_runs(folder))
        if not runs:
            remedy = "use a method's folder, e.g. results/glue/wikibook/linear_rope"
            raise UserError(f"{folder} has no finished runs of GLUE: {remedy}")
        for run in runs:
            candidates.setdefault(run.task, []).append(run)
    best = {}
    for task, runs in candidates.items():
        best[task] = runs[best_by_score([run.score for run in runs], "higher")]
    return best


def missing_files(tasks: Iterable[str]) -> list[str]:
    """Returns the names of the files that GLUE's server requires besides those of ``tasks``."""
    missing = []
    for name in TASKS:
        if name not in tasks:
            missing += [f"{file}.tsv" for file in submission_files(name)]
    return [*missing, "AX.tsv"]


def submitted(prediction: str | float, task: str) -> str | float:
    """Returns a prediction in the form that GLUE's server accepts: scores of STS-B are clipped to 0..5.

    Raises:
        UserError: if a score is NaN.
    """
    if TASKS[task].labels:
        return prediction
    if math.isnan(prediction):
        raise UserError(f"the model of {task} predicts NaN: omit the run, or train it again")
    return min(max(prediction, 0.0), float(MAX_SCORE))


def write(runs: dict[str, GlueRun], out: Path, cpu: bool) -> None:
    from fairseq_lrpe.experiments.inference import classify, load  # these imports take seconds

    if out.is_dir():
        raise UserError(f"--out {out} is a folder: give the path of a file")
    with output_folder(out.parent), atomic_file(out) as part, zipfile.ZipFile(part, "w") as archive:
        for name in tqdm(sorted(runs), unit="task", disable=None):
            model = load.load_model(runs[name].checkpoint, data=runs[name].data, cpu=cpu)
            for file, split in submission_files(name).items():
                rows = []
                for label, _ in model.predict_split(split):
                    rows.append((submitted(label, name), None))
                archive.writestr(f"{file}.tsv", classify.tsv(rows), zipfile.ZIP_DEFLATED)


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe glue-submission", __doc__, "RUNS [RUNS ...] [options]")
    parser.add_argument("runs", nargs="+", type=abs_path, metavar="RUNS", help="folder of a method's runs")
    text = "zip file to write (default: submission.zip in the first folder)"
    parser.add_argument("--out", type=abs_path, help=text)
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    args = parser.parse_args(arguments)
    out = args.out or args.runs[0] / "submission.zip"
    with exit_on_error("glue-submission"):
        runs = best_runs(args.runs)
        write(runs, out, args.cpu)
    for name, run in runs.items():
        print(f"{name}: {TASKS[name].measure} {run.score:.2f} on the development set, {run.folder.name}")
    missing = missing_files(runs)
    if missing:
        print(f"GLUE's server also requires: {', '.join(missing)}")
    print(f"written: {out}")
