"""Classifies image files with a trained vision transformer."""

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from tqdm import tqdm

from fairseq_lrpe.data.image_files import decode
from fairseq_lrpe.data.image_transforms import normalize, resize_and_center_crop
from fairseq_lrpe.experiments.inference.load import load_model
from fairseq_lrpe.utils.files import REPOSITORY, read_file

TASK = "image_classification"
BATCH_SIZE = 32
SUFFIXES = (".jpg", ".jpeg", ".png")


def find_images(folder: Path) -> list[Path]:
    """Returns the sorted image files in a folder and its subfolders; raises ValueError if there are none."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder with {', '.join(SUFFIXES)} files")
    files = [path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()]
    if not files:
        raise ValueError(f"{folder} has no {', '.join(SUFFIXES)} files")
    return sorted(files)


def load_images(files: list[Path], size: int) -> Iterator[tuple[Path, torch.Tensor]]:
    """Yields (file, image of shape (3, size, size)); unreadable files are skipped with a warning."""
    for file in tqdm(files, "images", disable=None):
        try:
            yield file, normalize(resize_and_center_crop(decode(read_file(file)), size))
        except (ValueError, OSError) as error:
            print(f"skipping {file}: {error}", file=sys.stderr)


@torch.no_grad()
def classify(model, task, files: list[Path]) -> Iterator[tuple[Path, str, float]]:
    """Yields (file, predicted label, probability of this label) of each readable image."""
    device, images = next(model.parameters()).device, load_images(files, task.cfg.image_size)
    while batch := list(islice(images, BATCH_SIZE)):
        pixels = torch.stack([image for _, image in batch]).to(device)
        best = model(pixels).float().softmax(-1).max(-1)
        predictions = best.values.tolist(), best.indices.tolist()
        for (file, _), probability, label in zip(batch, *predictions, strict=True):
            yield file, task.labels[label], probability


def run(checkpoint: Path, settings: dict, folder: Path, cpu: bool) -> None:
    """Prints the file, label and probability of each image; ``settings`` are those of the model's task."""
    files = find_images(folder)
    data = str(REPOSITORY / settings["data"])  # the folder that contains the names of the labels
    model, task = load_model(checkpoint, cpu, data=data)
    print("file\tlabel\tprobability")
    for file, label, probability in classify(model, task, files):
        print(f"{file.relative_to(folder)}\t{label}\t{probability:.4f}")
