"""Long-Range Arena's Pathfinder: images of dashed contours, generated or read from the published files."""

import math
from collections.abc import Iterator
from functools import cache, partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from data_prep.binarize import SPLITS
from data_prep.labeled import BLOCK, Generated, numbers, rows_and_seed
from data_prep.paddles import (
    FINER,
    FRAME,
    FULL,
    LENGTH,
    MARGIN,
    Paddle,
    Point,
    beginning,
    cover,
    disc,
    downsample,
    draw_paddles,
    empty,
    fits,
    shift,
    step,
)
from data_prep.parallel import ordered_map
from fairseq_lrpe.data.image_files import decode
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import check_regular, read_lines

APART = 7  # distance between the starts of the long contours in a window of 32 x 32 pixels
PADDLES = 20  # maximum number of paddles of all short contours in a window of 32 x 32 pixels
CONTINUITY = 1.0  # straightness of contours: the constant c in extend()
RADIUS = 1.5  # radius of a disc in pixels
SHORT = 2  # relative brightness of short contours ...
LONG = 2 * 0.75  # ... of long contours ...
DISC = 1  # ... and of discs
TRIALS = 3  # attempts to place a paddle
TRIALS_SHORT = 5  # attempts to place a short contour
TRIALS_LONG = 5000  # attempts to place the long contours before the options are rejected


class Scene(NamedTuple):
    """The contours, discs and label of an image of ``window`` × ``window`` pixels.

    ``long`` and ``short`` are the paddles of each contour, and ``discs`` are the centers of the discs.
    """

    window: int
    long: list[list[Paddle]]
    short: list[list[Paddle]]
    discs: tuple[Point, Point]
    label: int

    def render(self) -> np.ndarray:
        light = LONG * draw_paddles(self.window, chain(*self.long))
        light = np.maximum(light, SHORT * draw_paddles(self.window, chain(*self.short)))
        for center in self.discs:
            drawn = downsample(disc(FINER * self.window, center, RADIUS), self.window)
            light = np.maximum(light, DISC * drawn)
        return np.rint(255 / light.max() * light).astype(np.uint8)


class Pathfinder(Generated):
    """Pathfinder of Long-Range Arena (Linsley et al. 2018; Tay et al. 2021), for the task ``classification``.

    A grayscale image shows two long dashed contours, several short contours as distractors, and two discs.
    The label is 1 if the discs are at the two ends of the same long contour, and 0 if they are at ends of
    different ones. Half of the images have the label 1. The parameters are those of Long-Range Arena's hard
    set of 32 x 32 pixels; with another --window, the distance of the long contours and the number of short
    contours are scaled. Published images are split in order: 80% for training, 10% for validation and 10% for
    test. Unreadable images, such as the empty imgs/0/sample_172.png, are skipped and listed in
    OUT/bin/unreadable.txt.

    As in the published generator, the dashes of a contour are called paddles.
    """

    accepts = "a published folder with imgs/K/sample_N.png and metadata/K.npy (default: generate images)"
    options = {
        "--window": numbers([32], 8, "width and height of an image in pixels"),
        "--contour-length": numbers(
            [14], 2, "number of dashes per long contour; short contours have a third of this number"
        ),
        **rows_and_seed([160_000, 20_000, 20_000]),
    }
    types = [*map(str, range(256))]
    labels = ("0", "1")

    window = 0  # width of the published images

    def check(self, args):
        super().check(args)
        window = args.window[0]
        length = args.contour_length[0]
        random = Random(f"{args.seed[0]} 0")
        for _ in range(TRIALS_LONG):
            if long_contours(random, window, length):
                return
        wrong = f"in {TRIALS_LONG:,} trials, two such contours did not fit into {window} pixels"
        raise UserError(f"--contour-length {length} is too large for --window {window}: {wrong}")

    def metadata(self, args):
        side = self.window or args.window[0]
        return {"shape": [side, side], "pixels": {"mean": 127.5, "std": 127.5}}

    def generated(self, args):
        generate = partial(render, args.seed[0], args.window[0], args.contour_length[0])
        return ordered_map(generate, range(sum(args.rows)), args.workers, BLOCK)

    def published(self, args):
        rows = published_rows(args.source)
        ends = [len(rows) * part // 10 for part in (0, 8, 9, 10)]
        for split, begin, end in zip(SPLITS, ends, ends[1:], strict=False):
            yield split, self.images(rows[begin:end], args.workers), end - begin

    def images(self, rows: list[tuple[Path, int]], workers: int) -> Iterator[tuple[np.ndarray, int]]:
        named = [(path, (path, label)) for path, label in rows]
        for (_, label), values in self.readable(read, named, workers):
            self.window = len(values)
            yield values.ravel(), label


def render(seed: int, window: int, length: int, index: int) -> tuple[np.ndarray, int]:
    scene = draw(seed, window, length, index)
    return scene.render().ravel(), scene.label


def draw(seed: int, window: int, length: int, index: int) -> Scene:
    random = Random(f"{seed} {index}")
    label = index % 2
    while not (long := long_contours(random, window, length)):
        pass
    taken = empty(window).copy()
    cover(taken, chain(*long))
    short = short_contours(random, taken, max(length // 3, 1))
    start = pick(random, 2)
    end = start if label else 1 - start
    return Scene(window, long, short, (beginning(long[start][0]), long[end][-1].head), label)


def long_contours(random: Random, window: int, length: int) -> list[list[Paddle]] | None:
    apart = APART * window // 32
    y = 2 * apart + pick(random, window - 4 * apart)
    x = 2 * apart + pick(random, window - 4 * apart)
    tails = [(y, x), step((y, x), direction(random), apart)]
    return grow(random, empty(window), tails, length)


def short_contours(random: Random, taken: np.ndarray, length: int) -> list[list[Paddle]]:
    """Returns random short contours of ``length`` paddles, and marks their areas in the mask ``taken``."""
    width = len(taken)
    contours = []
    for _ in range(PADDLES * (width - 2 * FRAME) ** 2 // 32**2 // length):
        free = np.flatnonzero(taken < 2 - FULL)
        for _ in range(TRIALS_SHORT if len(free) else 0):
            y, x = divmod(int(free[pick(random, len(free))]), width)
            if grown := grow(random, taken, [(y - FRAME, x - FRAME)], length):
                cover(taken, grown[0])
                contours += grown
                break
    return contours


def grow(random: Random, taken: np.ndarray, tails: list[Point], length: int) -> list[list[Paddle]] | None:
    """Returns random contours of ``length`` paddles that start at ``tails``, or None if they do not fit.

    The contours are extended in turns. They avoid the area of the mask ``taken``, each other and themselves.
    """
    around = []  # area that each contour avoids, without its last paddle
    contours = []
    for _ in tails:
        around.append(taken.copy())
        contours.append([])
    for _ in range(length):
        for number, contour in enumerate(contours):
            last = contour[-1:]
            if last:
                paddle = extend(random, around[number], *last)
            else:
                paddle = begin(random, around[number], tails[number])
            if paddle is None:
                return None
            contour.append(paddle)
            for other, part in enumerate(around):
                cover(part, last if other == number else [paddle])
    return contours


def begin(random: Random, taken: np.ndarray, tail: Point) -> Paddle | None:
    angle = direction(random)
    paddle = Paddle(step(tail, angle, -MARGIN), step(tail, angle, LENGTH), angle)
    return paddle if fits(taken, paddle) else None


def extend(random: Random, taken: np.ndarray, last: Paddle) -> Paddle | None:
    """Returns a random paddle that continues ``last``, or None if ``TRIALS`` random paddles do not fit.

    The head is a pixel on a circle around the pivot. Its probability is proportional to
    (1 - t) max(cos(min(c Δ, π/2)), 0)², where t is the largest value of ``taken`` at the pixel and its
    neighbors, c is CONTINUITY, and Δ is the angle between the new paddle and the last one.
    """
    pivot = step(last.pivot, last.angle, LENGTH + 2 * MARGIN)
    heads, near, weights = turns(last.angle, taken.shape[1])
    index = (pivot[0] + FRAME) * taken.shape[1] + pivot[1] + FRAME
    sums = (weights * (1 - taken.take(near + index).max(0))).cumsum()
    if sums[-1] < 1e-4:
        return None
    for _ in range(TRIALS):
        y, x = heads[sums.searchsorted(random.random() * sums[-1], side="right")]
        paddle = Paddle(pivot, (pivot[0] + y, pivot[1] + x), math.atan2(y, x))
        if fits(taken, paddle):
            return paddle
    return None


def pick(random: Random, count: int) -> int:
    """Returns a random integer in [0, count) that is the same in all versions of Python."""
    return int(count * random.random())


def direction(random: Random) -> float:
    return math.radians(pick(random, 360))


# Offsets of the pixels on a circle around a pivot, where the head of a paddle can be.
HEADS = sorted({shift(math.radians(degrees), MARGIN + LENGTH) for degrees in range(360)})


@cache
def turns(angle: float, width: int) -> tuple[list[Point], np.ndarray, np.ndarray]:
    """Returns the heads with which a contour can continue after a paddle with the angle ``angle``.

    Returns:
        heads: offsets (rows, columns) of the n heads from the pivot.
        near: offsets (5, n), in a flattened array of ``width`` columns, of the heads and of their four
            neighbors at distance MARGIN.
        weights: array (n,) of max(cos(min(c Δ, π/2)), 0)²; see :func:`extend`.
    """
    heads = []
    offsets = []
    weights = []
    for y, x in HEADS:
        turn = abs(math.remainder(math.atan2(y, x) - angle, math.tau))
        weight = max(math.cos(min(CONTINUITY * turn, math.pi / 2)), 0) ** 2
        if weight > 1e-9:
            heads.append((y, x))
            offsets.append(y * width + x)
            weights.append(round(weight, 9))
    beside = np.array([0, MARGIN, -MARGIN, MARGIN * width, -MARGIN * width])
    return heads, np.array(offsets) + beside[:, None], np.array(weights)


def published_rows(folder: Path) -> list[tuple[Path, int]]:
    """Returns (path, label) of the published images, which the files metadata/*.npy list.

    Fields 0, 1 and 3 of a row in these files are the folder, the file name and the label of an image.
    """
    files = [file for file in folder.glob("metadata/*.npy") if file.stem.isdecimal()]
    rows = []
    for file in sorted(files, key=lambda path: int(path.stem)):
        for number, fields in enumerate(metadata(file), 1):
            if len(fields) < 4 or fields[3] not in ("0", "1"):
                raise UserError(f"{file}: row {number} is not FOLDER IMAGE NUMBER LABEL, with label 0 or 1")
            rows.append((folder / fields[0] / fields[1], int(fields[3])))
    if len(rows) < 10:
        takes = f"--from takes {Pathfinder.accepts}"
        raise UserError(f"{folder}/metadata/*.npy list {len(rows)} images instead of 10 or more: {takes}")
    return rows


def metadata(path: Path) -> list[list[str]]:
    """Returns the fields of each row of a metadata file.

    The published files are text despite their suffix; the published generator writes arrays of strings.
    """
    check_regular(path)
    try:
        return np.load(path, allow_pickle=False).astype(str).tolist()
    except ValueError:
        return [line.split() for line in read_lines(path)]


def read(row: tuple[Path, int]) -> np.ndarray:
    check_regular(row[0])
    return np.asarray(decode(row[0].read_bytes(), "L"))
