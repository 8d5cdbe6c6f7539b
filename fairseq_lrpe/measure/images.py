"""Measures how fast pictures are read and augmented: ``python -m fairseq_lrpe.measure.images``.

It does what a worker of the task image_classification does with the full recipe, and takes the processor's
time of each part, in one thread: on JPEGs of a folder, or on made-up ones of 500 x 375 pixels and 97 KB;
those of ImageNet have 110 KB on average.
"""

import io
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from rich.progress import track
from rich.table import Table

from fairseq_lrpe.images.augment import cropped, erase, standardized
from fairseq_lrpe.images.files import decode
from fairseq_lrpe.images.mixing import mix, soft_targets
from fairseq_lrpe.images.rand_augment import rand_augment
from fairseq_lrpe.measure.shared import measuring, numbers
from fairseq_lrpe.programs import a_path, at_least, show_wide

SIZE = (500, 375)
KINDS = (".jpeg", ".jpg")
CLASSES, SMOOTHING = 1000, 0.1
MADE_UP = 8  # pictures, again and again


def made_up(rng: np.random.Generator) -> bytes:
    """Returns a JPEG of noise that is coarse and fine, about as long as a photograph's."""
    image = Image.new("RGB", SIZE)
    for pixels in (1, 8, 40):
        coarse = [side // pixels + 1 for side in SIZE]
        noise = Image.fromarray(rng.integers(0, 256, (*coarse[::-1], 3), np.uint8))
        image = Image.blend(image, noise.resize(SIZE, Image.Resampling.BICUBIC), 0.5)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=95)
    return out.getvalue()


def measure(files: list[bytes], rounds: int, batch: int, size: int) -> Counter:
    """Returns {part: seconds of the processor} of ``rounds`` batches."""
    taken = Counter()

    def part(name: str, function: Callable, *given):
        start = time.process_time()
        result = function(*given)
        taken[name] += time.process_time() - start
        return result

    for number in track(range(rounds), "batches", transient=True):
        pixels = []
        for index in range(number * batch, (number + 1) * batch):
            rng = np.random.default_rng([number, index])
            image = part("decoding", decode, files[index % len(files)])
            image = part("crop, resizing, mirror image", cropped, image, size, rng)
            image = part("RandAugment", rand_augment, image, rng)
            pixels.append(part("standardizing", standardized, image))
            part("erasing", erase, pixels[-1], rng)
        pixels = part("stacking", torch.stack, pixels)
        targets = soft_targets(torch.arange(batch) % CLASSES, CLASSES, SMOOTHING)
        part("Mixup or CutMix", mix, pixels, targets, rng)
    return taken


def show(taken: Counter, count: int, title: str) -> None:
    """Prints the parts and the whole of so many pictures."""
    table = Table("part", *numbers("ms a picture", "of the whole", "pictures/s on a core"), title=title)
    whole = taken.total()
    for name, seconds in [*taken.items(), ("whole", whole)]:
        each = seconds / count
        table.add_row(
            name, f"{1000 * each:.2f}", f"{seconds / whole:.0%}", f"{1 / each:,.0f}" if each else ""
        )
    show_wide(table)


def main():
    parser = ArgumentParser(prog="python -m fairseq_lrpe.measure.images", description=__doc__)
    add = parser.add_argument
    add(
        "--from", dest="source", type=a_path, metavar="FOLDER", help="with *.JPEG or *.jpg (default: made up)"
    )
    add("--rounds", type=at_least(1), default=8, help="batches (default: %(default)s)")
    add("--batch-size", type=at_least(2), default=64, help="pictures of each (default: %(default)s)")
    add("--image-size", type=at_least(1), default=224, help="pixels (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with measuring("images"):
        count = args.rounds * args.batch_size
        if args.source:
            names = sorted(path for path in args.source.rglob("*") if path.suffix.lower() in KINDS)
            if not names:
                raise ValueError(f"{args.source} has no JPEGs: --from takes a folder with some")
            pictures, what = [path.read_bytes() for path in names[:count]], f"JPEGs of {args.source}"
        else:
            rng = np.random.default_rng(0)
            pictures = [made_up(rng) for _ in range(MADE_UP)]
            what = f"made-up JPEGs of {SIZE[0]} x {SIZE[1]} pixels"
        size = sum(map(len, pictures)) / len(pictures) / 1000
        title = f"{what}, {size:,.0f} KB, to {args.image_size} x {args.image_size}: {count:,} in one thread"
        show(measure(pictures, args.rounds, args.batch_size, args.image_size), count, title)


if __name__ == "__main__":
    main()
