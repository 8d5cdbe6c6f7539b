"""Measures the throughput of image decoding and augmentation in one thread.

Runs the steps of the task image_classification with all augmentations and measures the CPU time of each step:
those of a worker process, and those of the training process, which a GPU executes if there is one.
The images are those of a folder, or synthetic JPEGs of 500 x 375 pixels and 97 KB (ImageNet's have
110 KB on average).
"""

import io
import time
from collections import Counter

import numpy as np
import torch
from PIL import Image
from rich.progress import track

from fairseq_lrpe.benchmarks.shared import BenchmarkParser, Table, measuring
from fairseq_lrpe.data.image_files import decode, find_images
from fairseq_lrpe.data.image_transforms import (
    erase,
    normalize,
    random_erase_box,
    random_resized_crop,
    to_tensor,
)
from fairseq_lrpe.data.mixup import random_mixing, soft_targets
from fairseq_lrpe.data.rand_augment import rand_augment
from fairseq_lrpe.utils.cli import path_arg
from fairseq_lrpe.utils.files import read_file

SIZE = (500, 375)
CLASSES, SMOOTHING = 1000, 0.1
SYNTHETIC_IMAGES = 8


def synthetic_jpeg(rng: np.random.Generator) -> bytes:
    """Returns a JPEG file of coarse and fine noise, about as large as the JPEG file of a photograph."""
    image = Image.new("RGB", SIZE)
    for pixels in (1, 8, 40):
        coarse = [side // pixels + 1 for side in SIZE]
        noise = Image.fromarray(rng.integers(0, 256, (*coarse[::-1], 3), np.uint8))
        image = Image.blend(image, noise.resize(SIZE, Image.Resampling.BICUBIC), 0.5)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=95)
    return out.getvalue()


def measure(files: list[bytes], rounds: int, batch_size: int, size: int) -> tuple[Counter, Counter]:
    """Returns the seconds of CPU time of ``rounds`` batches of images of ``size`` x ``size`` pixels.

    Returns:
        {step: seconds} of a worker process, and of the training process.
    """
    worker, training = Counter(), Counter()

    def timed(times, step, function, *arguments):
        start = time.process_time()
        result = function(*arguments)
        times[step] += time.process_time() - start
        return result

    for number in track(range(rounds), "batches", transient=True):
        pixels, boxes = [], []
        for index in range(number * batch_size, (number + 1) * batch_size):
            rng = np.random.default_rng([number, index])
            image = timed(worker, "decoding", decode, files[index % len(files)])
            image = timed(worker, "crop, resizing, mirror image", random_resized_crop, image, size, rng)
            image = timed(worker, "RandAugment", rand_augment, image, rng)
            boxes.append(timed(worker, "drawing the box to erase", random_erase_box, size, size, rng))
            pixels.append(timed(worker, "converting to a tensor", to_tensor, image))
        pixels = timed(worker, "stacking", torch.stack, pixels)
        mixing = random_mixing(size, size, rng)
        targets = soft_targets(torch.arange(batch_size) % CLASSES, CLASSES, SMOOTHING)
        timed(worker, "mixing the targets", mixing.mix_targets, targets)
        pixels = timed(training, "normalizing", normalize, pixels)
        timed(training, "erasing", erase, pixels, boxes, number)
        timed(training, "Mixup or CutMix", mixing.mix_images, pixels)
    return worker, training


def main(arguments: list[str] | None = None) -> None:
    parser = BenchmarkParser("images", __doc__)
    help = "folder with image files (default: synthetic images)"
    parser.add_argument("--from", dest="source", type=path_arg, metavar="FOLDER", help=help)
    parser.add_int("--rounds", 8, "number of batches")
    parser.add_int("--batch-size", 64, "number of images per batch", minimum=2)
    parser.add_int("--image-size", 224, "width and height of the augmented images in pixels")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with measuring(parser.prog):
        count = args.rounds * args.batch_size
        if args.source:
            paths = find_images(args.source)
            files, source = [read_file(path) for path in paths[:count]], f"images of {args.source}"
        else:
            rng = np.random.default_rng(0)
            files = [synthetic_jpeg(rng) for _ in range(SYNTHETIC_IMAGES)]
            source = f"synthetic JPEGs of {SIZE[0]} x {SIZE[1]} pixels"
        kilobytes = sum(map(len, files)) / len(files) / 1000
        sizes = f"{kilobytes:,.0f} KB, to {args.image_size} x {args.image_size}"
        title = f"{source}, {sizes}: {count:,} in one thread"
        times = measure(files, args.rounds, args.batch_size, args.image_size)
        for process, steps in zip(("worker process", "training process (CPU)"), times, strict=True):
            table, total = Table(f"{process}: {title}"), steps.total()
            for name, seconds in [*steps.items(), ("total", total)]:
                row = {"part": name, "ms per image": f"{1000 * seconds / count:.2f}"}
                rate = count / seconds if seconds else None
                table.rows.append(row | {"share": f"{seconds / total:.0%}", "images/s per core": rate})
            table.print()
