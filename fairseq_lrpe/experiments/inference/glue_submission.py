"""Write a zip file of predictions for GLUE's test sets in the format of its evaluation server.

For each task, the run with the best score on the development set is used. RUNS are folders of a method: one
with the fine-tuned models of all tasks, or those with the classifiers of each task. Files that the server
requires, but for which there is no model, are listed. For example:

  lrpe glue-submission results/glue/wikibook/linear_rope
  lrpe glue-submission results/classification/{sst2,qnli,qqp,mnli}/softmax_gcdf
"""

import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from fairseq_lrpe.data.glue_tasks import TASKS
from fairseq_lrpe.experiments.execution.run_directory import evaluated_checkpoint, read_json
from fairseq_lrpe.experiments.inference import metrics
from fairseq_lrpe.utils.cli import abs_path, exit_on_error, new_parser
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import REPOSITORY, atomic_file, output_folder
from fairseq_lrpe.utils.subprocesses import run_command


class GlueRun(NamedTuple):
    """A finished run on a GLUE task."""

    folder: Path
    task: str  # name of the GLUE task
    data: Path  # folder of its binarized data
    checkpoint: Path  # the evaluated checkpoint
    score: float  # on the development set


def submission_files(name: str) -> dict[str, str]:
    """Returns {file name in the zip file, without suffix: test split} of a task."""
    return TASKS[name].submission or {name: "test"}


def read_run(folder: Path) -> GlueRun | None:
    """Returns a finished run on a GLUE task; None for other runs, and for trials that were not chosen.

    Raises:
        UserError: If run.json is damaged.
    """
    record, settings = (read_json(folder / f"{name}.json") for name in ("evaluation", "run"))
    if "finished" not in record:
        return None
    try:
        config = settings["config"]
        if settings["kind"] == "glue":
            task, metric = config["task"], "score"
            data = REPOSITORY / config["data"] / task / "bin"
        else:
            data = REPOSITORY / config["data"]
            task = data.parent.name  # of data/glue_words/SST-2/bin
            if settings["kind"] != "classification" or task not in TASKS:
                return None
            metric = TASKS[task].measure
        checkpoint = evaluated_checkpoint(folder, config["evaluate"]["checkpoint"])
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{folder / 'run.json'} is damaged: repair or remove it") from None
    scores = [measured[metric] for measured in record.get("evaluations", {}).values() if metric in measured]
    return GlueRun(folder, task, data, checkpoint, scores[0]) if scores and checkpoint.exists() else None


def best_runs(folders: Iterable[Path]) -> dict[str, GlueRun]:
    """Returns {task: run} of the finished runs with the best scores on the development sets."""
    best = {}
    for folder in folders:
        paths = [path for seeds in ("seed-*", "task=*/seed-*") for path in sorted(folder.glob(seeds))]
        runs = [run for run in map(read_run, paths) if run]
        if not runs:
            example = "results/glue/wikibook/linear_rope"
            raise UserError(f"{folder} has no finished runs of GLUE: use a method's folder, e.g. {example}")
        for run in runs:
            if run.task not in best or run.score > best[run.task].score:
                best[run.task] = run
    return best


def write(runs: dict[str, GlueRun], out: Path, cpu: bool) -> None:
    """Writes the predictions of ``best_runs`` for the test sets to a zip file."""
    if out.is_dir():
        raise UserError(f"--out {out} is a folder: give the path of a file")
    with output_folder(out.parent), tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        for name, run in tqdm(runs.items(), unit="task", disable=None):
            files = {split: Path(scratch, f"{file}.tsv") for file, split in submission_files(name).items()}
            command = metrics.prediction_command(run.checkpoint, run.data, files, cpu)
            run_command(command, run.folder / "submission.log", cwd=REPOSITORY)
        with atomic_file(out) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(Path(scratch).glob("*.tsv")):
                archive.write(path, path.name)


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
    required = [*(file for name in TASKS for file in submission_files(name)), "AX"]
    written = {file for name in runs for file in submission_files(name)}
    if missing := [f"{file}.tsv" for file in required if file not in written]:
        print(f"GLUE's server also requires: {', '.join(missing)}")
    print(f"written: {out}")
