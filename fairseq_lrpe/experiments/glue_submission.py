"""Writes a zip file of predictions on GLUE's test sets, as its server takes them.

Of each task the seed that is best on the development set predicts. The server wants a file for each of its
eleven test sets: those that are lacking are named.
"""

import argparse
import tempfile
import zipfile
from pathlib import Path

from omegaconf import OmegaConf
from tqdm import tqdm

from fairseq_lrpe.commands import run_command
from fairseq_lrpe.experiments import predictions
from fairseq_lrpe.experiments.kinds.glue import KIND
from fairseq_lrpe.experiments.run_folder import read_json
from fairseq_lrpe.files import REPOSITORY, new_folder, whole_file
from fairseq_lrpe.glue_tasks import TASKS
from fairseq_lrpe.programs import absolute, one_sentence


def tests(name: str) -> dict[str, str]:
    """Returns {file of the submission: test set} of a task."""
    return TASKS[name].submission or {name: "test"}


def best_runs(folder: Path) -> dict[str, tuple[float, Path]]:
    """Returns {task: (its score on the development set, the folder of the best seed's run)}."""
    found = {}
    for path in sorted(folder.glob("task=*/seed-*/evaluation.json")):
        record, name = read_json(path), path.parents[1].name.removeprefix("task=")
        if "finished" in record:
            score = next(iter(record["evaluations"].values()))["score"]
            if name not in found or score > found[name][0]:
                found[name] = score, path.parent
    if not found:
        example = "results/glue/wikibook/linear_rope"
        raise ValueError(f"{folder} holds no finished fine-tuning: give a method's folder, such as {example}")
    return found


def write(found: dict[str, tuple[float, Path]], out: Path, cpu: bool) -> None:
    """Writes the zip file; it appears whole."""
    if out.is_dir():
        raise ValueError(f"--out {out} is a folder: name a zip file")
    with new_folder(out.parent), tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        for name, (_, run) in tqdm(found.items(), unit="task", disable=None):
            checkpoint = run / read_json(run / "evaluation.json")["checkpoint"]
            data = KIND.folder(OmegaConf.create(read_json(run / "run.json")["config"]))
            files = {split: Path(scratch, f"{file}.tsv") for file, split in tests(name).items()}
            command = predictions.command(checkpoint, data, files, cpu)
            run_command(command, run / "submission.log", cwd=REPOSITORY)
        with whole_file(out) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(Path(scratch).glob("*.tsv")):
                archive.write(path, path.name)


def main():
    parser = argparse.ArgumentParser(prog="glue_submission.sh", description=__doc__)
    parser.add_argument("runs", type=absolute, help="such as results/glue/wikibook/linear_rope")
    parser.add_argument("--out", type=absolute, help="default: submission.zip in that folder")
    parser.add_argument("--cpu", action="store_true", help="use no GPU")
    args = parser.parse_args()
    out = args.out or args.runs / "submission.zip"
    with one_sentence("glue_submission"):
        found = best_runs(args.runs)
        write(found, out, args.cpu)
    for name, (score, run) in found.items():
        print(f"{name}: {TASKS[name].measure} {score:.2f} on the development set, {run.name}")
    wanted = [*(file for name in TASKS for file in tests(name)), "AX"]
    if lacking := [file for file in wanted if not any(file in tests(name) for name in found)]:
        print(f"lacking for GLUE's server: {', '.join(f'{file}.tsv' for file in lacking)}")
    print(f"ready: {out}")


if __name__ == "__main__":
    main()
