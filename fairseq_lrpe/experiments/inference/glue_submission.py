"""Write a zip file of predictions for GLUE's test sets in the format of its evaluation server.

For each task, the model of the seed with the best score on the development set is used. Files that the server
requires, but for which there is no model, are listed. For example:

  lrpe glue-submission results/glue/wikibook/linear_rope
"""

import tempfile
import zipfile
from pathlib import Path

from omegaconf import OmegaConf
from tqdm import tqdm

from fairseq_lrpe.data.glue_tasks import TASKS
from fairseq_lrpe.experiments.execution.run_directory import read_json
from fairseq_lrpe.experiments.inference import metrics
from fairseq_lrpe.experiments.spec.kinds.glue import KIND
from fairseq_lrpe.utils.cli import abs_path, exit_on_error, new_parser
from fairseq_lrpe.utils.files import REPOSITORY, atomic_file, output_folder
from fairseq_lrpe.utils.subprocesses import run_command


def submission_files(name: str) -> dict[str, str]:
    """Returns {file name in the zip file, without suffix: test split} of a task."""
    return TASKS[name].submission or {name: "test"}


def best_runs(folder: Path) -> dict[str, tuple[float, Path]]:
    """Returns {task: (score on the development set, run folder)} of each task's best finished run."""
    best = {}
    for path in sorted(folder.glob("task=*/seed-*/evaluation.json")):
        record, name = read_json(path), path.parents[1].name.removeprefix("task=")
        if "finished" in record:
            score = next(iter(record["evaluations"].values()))["score"]
            if name not in best or score > best[name][0]:
                best[name] = score, path.parent
    if not best:
        example = "results/glue/wikibook/linear_rope"
        raise ValueError(
            f"{folder} has no finished fine-tuning runs: use the folder of a method, e.g. {example}"
        )
    return best


def write(runs: dict[str, tuple[float, Path]], out: Path, cpu: bool) -> None:
    """Writes the predictions of ``best_runs`` for the test sets to a zip file."""
    if out.is_dir():
        raise ValueError(f"--out {out} is a folder: give the path of a file")
    with output_folder(out.parent), tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        for name, (_, run) in tqdm(runs.items(), unit="task", disable=None):
            checkpoint = run / read_json(run / "evaluation.json")["checkpoint"]
            data = KIND.folder(OmegaConf.create(read_json(run / "run.json")["config"]))
            files = {split: Path(scratch, f"{file}.tsv") for file, split in submission_files(name).items()}
            command = metrics.prediction_command(checkpoint, data, files, cpu)
            run_command(command, run / "submission.log", cwd=REPOSITORY)
        with atomic_file(out) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(Path(scratch).glob("*.tsv")):
                archive.write(path, path.name)


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe glue-submission", __doc__, "RUNS [options]")
    parser.add_argument("runs", type=abs_path, help="folder of a method's runs")
    parser.add_argument("--out", type=abs_path, help="zip file to write (default: RUNS/submission.zip)")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    args = parser.parse_args(arguments)
    out = args.out or args.runs / "submission.zip"
    with exit_on_error("glue-submission"):
        runs = best_runs(args.runs)
        write(runs, out, args.cpu)
    for name, (score, run) in runs.items():
        print(f"{name}: {TASKS[name].measure} {score:.2f} on the development set, {run.name}")
    required = [*(file for name in TASKS for file in submission_files(name)), "AX"]
    written = {file for name in runs for file in submission_files(name)}
    if missing := [f"{file}.tsv" for file in required if file not in written]:
        print(f"GLUE's server also requires: {', '.join(missing)}")
    print(f"written: {out}")
