"""Says what a trained vision transformer sees in pictures: a line for each, its file, label and probability.

``python -m fairseq_lrpe.experiments.classify CHECKPOINT FOLDER > predictions.tsv`` takes all JPEG and PNG
files in the folder and in folders in it, by name. One that cannot be read is left out, and named.
"""

import argparse
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from fairseq import checkpoint_utils
from tqdm import tqdm

import fairseq_lrpe.models  # noqa: F401  (registers the architectures)
from fairseq_lrpe.checkpoint import read_checkpoint
from fairseq_lrpe.files import REPOSITORY
from fairseq_lrpe.images.augment import evaluated, standardized
from fairseq_lrpe.images.files import decode
from fairseq_lrpe.programs import absolute, one_sentence

TASK = "image_classification"
BATCH = 32
ENDS = (".jpg", ".jpeg", ".png")


def pictures_in(folder: Path) -> list[Path]:
    """Returns the files of pictures below a folder; ValueError where there are none."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: give one with {', '.join(ENDS)} files")
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDS and path.is_file())
    if not found:
        raise ValueError(f"{folder} has no {', '.join(ENDS)} files")
    return found


def readable(files: list[Path], size: int) -> Iterator[tuple[Path, torch.Tensor]]:
    """Yields each file with its pixels as they are evaluated, and names those that cannot be read."""
    for file in tqdm(files, "pictures", disable=None):
        try:
            yield file, standardized(evaluated(decode(file.read_bytes()), size))
        except ValueError as error:
            print(f"{file} is left out: {error}", file=sys.stderr)


@torch.no_grad()
def classify(model, task, files: list[Path]) -> Iterator[tuple[Path, str, float]]:
    """Yields (file, label, its probability) of each picture that can be read."""
    device, read = next(model.parameters()).device, readable(files, task.cfg.image_size)
    while batch := list(islice(read, BATCH)):
        images = torch.stack([pixels for _, pixels in batch]).to(device)
        best = model(images).float().softmax(-1).max(-1)
        found = best.values.tolist(), best.indices.tolist()
        for (file, _), probability, label in zip(batch, *found, strict=True):
            yield file, task.labels[label], probability


def main():
    parser = argparse.ArgumentParser(prog="classify", description=__doc__)
    parser.add_argument("checkpoint", type=absolute)
    parser.add_argument("folder", type=absolute)
    parser.add_argument("--cpu", action="store_true", help="use no GPU")
    args = parser.parse_args()
    with one_sentence("classify"):
        settings = read_checkpoint(args.checkpoint, "scripts/train.sh imagenet/... makes one")["cfg"]["task"]
        if (name := settings["_name"]) != TASK:
            raise ValueError(f"{args.checkpoint} is of the task {name}: one of {TASK} is needed")
        files = pictures_in(args.folder)
        data = str(REPOSITORY / settings["data"])  # it has the names of the labels
        [model], _, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(args.checkpoint)], arg_overrides={"data": data}
        )
        model.eval()
        if torch.cuda.is_available() and not args.cpu:
            model.cuda()
        print("file\tlabel\tprobability")
        for file, label, probability in classify(model, task, files):
            print(f"{file.relative_to(args.folder)}\t{label}\t{probability:.4f}")


if __name__ == "__main__":
    main()
