"""Measures the throughput of image decoding and augmentation in one thread.

Runs the steps of a data loader's worker process in the task image_classification, with all augmentations, and
measures the CPU time of each step. The images are the JPEG files of a folder, or synthetic JPEGs of 500 x 375
pixels and 97 KB (ImageNet's have 110 KB on average).
"""

import io
import time
from collections import Counter

import numpy as np
import torch
from PIL import Image
from rich.progress import track

from fairseq_lrpe.benchmarks.shared import BenchmarkParser, Table, measuring
from fairseq_lrpe.data.image_files import decode
from fairseq_lrpe.data.image_transforms import normalize, random_erase, random_resized_crop
from fairseq_lrpe.data.mixup import mix, soft_targets
from fairseq_lrpe.data.rand_augment import rand_augment
from fairseq_lrpe.utils.cli import path_arg
from fairseq_lrpe.utils.files import read_file

SIZE = (500, 375)
EXTENSIONS = (".jpeg", ".jpg")
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


def measure(files: list[bytes], rounds: int, batch_size: int, size: int) -> Counter:
    """Returns {step: seconds of CPU time} for ``rounds`` batches of images of ``size`` x ``size`` pixels."""
    times = Counter()

    def timed(step, function, *arguments):
        start = time.process_time()
        result = function(*arguments)
        times[step] += time.process_time() - start
        return result

    for number in track(range(rounds), "batches", transient=True):
        pixels = []
        for index in range(number * batch_size, (number + 1) * batch_size):
            rng = np.random.default_rng([number, index])
            image = timed("decoding", decode, files[index % len(files)])
            image = timed("crop, resizing, mirror image", random_resized_crop, image, size, rng)
            image = timed("RandAugment", rand_augment, image, rng)
            pixels.append(timed("normalizing", normalize, image))
            timed("erasing", random_erase, pixels[-1], rng)
        pixels = timed("stacking", torch.stack, pixels)
        targets = soft_targets(torch.arange(batch_size) % CLASSES, CLASSES, SMOOTHING)
        timed("Mixup or CutMix", mix, pixels, targets, rng)
    return times


def main(arguments: list[str] | None = None) -> None:
    parser = BenchmarkParser("images", __doc__)
    help = "folder with *.JPEG or *.jpg files (default: synthetic images)"
    parser.add_argument("--from", dest="source", type=path_arg, metavar="FOLDER", help=help)
    parser.add_int("--rounds", 8, "number of batches")
    parser.add_int("--batch-size", 64, "number of images per batch", minimum=2)
    parser.add_int("--image-size", 224, "width and height of the augmented images in pixels")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with measuring(parser.prog):
        count = args.rounds * args.batch_size
        if args.source:
            paths = sorted(path for path in args.source.rglob("*") if path.suffix.lower() in EXTENSIONS)
            if not paths:
                raise ValueError(
                    f"{args.source} has no JPEG files: set --from to a folder with *.JPEG or *.jpg"
                )
            files, source = [read_file(path) for path in paths[:count]], f"JPEGs of {args.source}"
        else:
            rng = np.random.default_rng(0)
            files = [synthetic_jpeg(rng) for _ in range(SYNTHETIC_IMAGES)]
            source = f"synthetic JPEGs of {SIZE[0]} x {SIZE[1]} pixels"
        kilobytes = sum(map(len, files)) / len(files) / 1000
        sizes = f"{kilobytes:,.0f} KB, to {args.image_size} x {args.image_size}"
        times = measure(files, args.rounds, args.batch_size, args.image_size)
        table, total = Table(f"{source}, {sizes}: {count:,} in one thread"), times.total()
        for name, seconds in [*times.items(), ("total", total)]:
            row = {"part": name, "ms per image": f"{1000 * seconds / count:.2f}"}
            rate = count / seconds if seconds else None
            table.rows.append(row | {"share": f"{seconds / total:.0%}", "images/s per core": rate})
        table.print()
