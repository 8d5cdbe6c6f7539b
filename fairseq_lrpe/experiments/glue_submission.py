"""A zip file of predictions on GLUE's test sets, as its server takes them, of one model's fine-tunings.

Of each task the seed that is best on the development set predicts. The server wants a file for each of its
eleven test sets: those that are lacking are named.
"""

import argparse
import json
import os
import sys
import tempfile
import zipfile
from pathlib import Path

from omegaconf import OmegaConf
from tqdm import tqdm

from fairseq_lrpe.experiments import finetune, glue
from fairseq_lrpe.commands import CommandFailed

WANTED = [*(file for task in glue.TASKS.values() for file in task.tests), "AX"]


def best_runs(folder):
    """{task: (its score on the development set, the folder of the best seed's run)}."""
    found = {}
    for path in sorted(folder.glob("seed-*/*/evaluation.json")):
        task = glue.TASKS[path.parent.name]
        score = json.loads(path.read_text())["splits"][next(iter(task.splits))]["score"]
        if task.name not in found or score > found[task.name][0]:
            found[task.name] = score, path.parent
    if not found:
        raise ValueError(
            f"{folder} holds no finished fine-tuning: give one that scripts/finetune_glue.sh wrote, such as "
            "results/glue/wikibook/linear_rope"
        )
    return found


def write(found, out, cpu):
    """The zip file; it appears whole."""
    part = out.with_name(out.name + ".part")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        for name, (_, run) in tqdm(found.items(), unit="task", disable=None):
            task = glue.TASKS[name]
            settings = json.loads((run / "run.json").read_text())
            checkpoint = run / json.loads((run / "evaluation.json").read_text())["checkpoint"]
            files = {split: Path(scratch, f"{file}.tsv") for file, split in task.tests.items()}
            cfg = OmegaConf.create(settings["config"])
            finetune.predict(checkpoint, cfg, task, files, run / "submission.log", cpu)
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(Path(scratch).glob("*.tsv")):
                archive.write(path, path.name)
    os.replace(part, out)


def main():
    parser = argparse.ArgumentParser(prog="glue_submission.sh", description=__doc__)
    parser.add_argument("runs", type=Path, help="such as results/glue/wikibook/linear_rope")
    parser.add_argument("--out", type=Path, help="default: submission.zip in that folder")
    parser.add_argument("--cpu", action="store_true", help="use no GPU")
    args = parser.parse_args()
    runs = args.runs.absolute()
    out = (args.out or runs / "submission.zip").absolute()
    try:
        found = best_runs(runs)
        write(found, out, args.cpu)
    except (ValueError, CommandFailed) as error:
        sys.exit(f"glue_submission: {error}")
    for name, (score, run) in found.items():
        print(f"{name}: {glue.TASKS[name].measure} {score:.2f} on the development set, {run.parent.name}")
    lacking = [file for file in WANTED if not any(file in glue.TASKS[name].tests for name in found)]
    if lacking:
        print(f"lacking for GLUE's server: {', '.join(f'{file}.tsv' for file in lacking)}")
    print(f"ready: {out}")


if __name__ == "__main__":
    main()
