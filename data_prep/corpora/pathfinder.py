"""Pathfinder of Long-Range Arena (Linsley et al. 2018; Tay et al. 2021), for the task ``classification``.

Grayscale images of two long dashed contours, distracting short contours and two discs. The label is 1 if the
discs are at both ends of one contour, and 0 if they are at ends of different ones; half of the images have
label 1. The parameters are those of Long-Range Arena's hard set of 32 x 32 pixels; with another --window, the
distance of the long contours and the number of short ones scale with its size. Published images are split in
order: 80% for training, 10% for validation, 10% for test. Dashes are called paddles, as in the original.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw
from scipy.ndimage import binary_dilation

from data_prep.binarize import SPLITS
from data_prep.generated import Generated
from data_prep.parallel import ordered_map
from fairseq_lrpe.data.image_files import decode
from fairseq_lrpe.utils.files import read_file

LENGTH = 2  # of a paddle, in pixels
MARGIN = 1  # around a paddle
PADDING = 1  # pixels at the window's border without paddles
APART = 7  # distance of the starts of the long contours in a window of 32 pixels
PADDLES = 20  # of the short contours, in a window of 32 pixels
CONTINUITY = 1.0  # straightness of contours
RADIUS = 1.5  # of a disc
SHORT, LONG, DISC = 2, 2 * 0.75, 1  # brightness
FINER = 2  # supersampling factor; a paddle is one fine pixel thick
FULL = 1.8  # maximum coverage of a pixel by two paddles
TRIALS = 3  # per paddle
TRIALS_SHORT = 5  # per short contour
TRIALS_LONG = 5000  # per pair of long contours, before giving up

REACH = LENGTH + MARGIN + 1  # radius of a stamp
FRAME = 2 * REACH  # around the window, so that stamps need no clipping
BLOCK = 20  # images per task

Point = tuple[int, int]


class Paddle(NamedTuple):
    """A dash that ends at ``head``; ``pivot`` is MARGIN before its start."""

    pivot: Point
    head: Point
    angle: float


class Scene(NamedTuple):
    """Contents of an image; the label is whether both discs are on the same contour."""

    window: int
    long: list[list[Paddle]]
    short: list[list[Paddle]]
    discs: tuple[Point, Point]
    label: int

    def render(self) -> np.ndarray:
        """Returns the grayscale image; its brightest pixel is 255."""
        light = LONG * ink(self.window, chain(*self.long))
        light = np.maximum(light, SHORT * ink(self.window, chain(*self.short)))
        for middle in self.discs:
            light = np.maximum(
                light, DISC * downsample(disc(FINER * self.window, middle, RADIUS), self.window)
            )
        return np.rint(255 / light.max() * light).astype(np.uint8)


class Pathfinder(Generated):
    """Images of contours and whether two discs are connected; ``inputs``: paths and labels."""

    accepts = "imgs/K/sample_N.png and metadata/K.npy as published (default: generate images)"
    defaults = {"window": [32], "contour_length": [14], "rows": [160_000, 20_000, 20_000], "seed": [1]}
    types = [*map(str, range(256))]
    labels = ["0", "1"]

    def add_options(self, parser):
        self.add_numbers(parser, "window", 8, "width and height of an image in pixels")
        self.add_numbers(parser, "contour_length", 2, "paddles per long contour; short ones have a third")
        super().add_options(parser)

    def check(self, args):
        if args.source:
            rows = published(args.source)
            args.window = [len(read(rows[0][0]))]
            ends = [len(rows) * part // 10 for part in (0, 8, 9, 10)]
            return {split: rows[a:b] for split, a, b in zip(SPLITS, ends, ends[1:], strict=False)}
        window, length, random = args.window[0], args.contour_length[0], Random(f"{args.seed[0]} 0")
        if not any(long_contours(random, window, length) for _ in range(TRIALS_LONG)):
            raise ValueError(
                f"--contour-length {length}: in {TRIALS_LONG:,} trials no two contours of this length "
                f"fit into a window of {window} pixels: choose a smaller length or a larger --window"
            )

    def metadata(self, args):
        return {"shape": 2 * args.window, "pixels": {"mean": 127.5, "std": 127.5}}

    def generated(self, args):
        generate = partial(generate_block, args.seed[0], args.window[0], args.contour_length[0])
        return self.rows(generate, range(sum(args.rows)), args.workers)

    def read(self, args, rows):
        return self.rows(partial(pixels, args.window[0]), rows, args.workers)

    def rows(self, function, items, workers):
        """Yields the rows that a function computes from blocks of items."""
        blocks = (items[i : i + BLOCK] for i in range(0, len(items), BLOCK))
        for block in ordered_map(function, blocks, workers):
            for values, label in block:
                yield values.ravel(), label


def generate_block(seed: int, window: int, length: int, indices: range) -> list[tuple[np.ndarray, int]]:
    """Returns (grayscale values, label) of the images with the given indices."""
    scenes = (draw(seed, window, length, i) for i in indices)
    return [(scene.render(), scene.label) for scene in scenes]


def draw(seed: int, window: int, length: int, index: int) -> Scene:
    """Generates image number ``index``, whose long contours have ``length`` paddles."""
    random, label = Random(f"{seed} {index}"), index % 2
    while not (long := long_contours(random, window, length)):
        pass
    taken = empty(window).copy()
    cover(taken, chain(*long))
    short = short_contours(random, taken, max(length // 3, 1))
    start = pick(random, 2)
    end = start if label else 1 - start
    return Scene(window, long, short, (beginning(long[start][0]), long[end][-1].head), label)


def long_contours(random: Random, window: int, length: int) -> list[list[Paddle]] | None:
    """Returns two contours that start near the center, or None if they do not fit."""
    apart = APART * window // 32
    tail = tuple(2 * apart + pick(random, window - 4 * apart) for _ in range(2))
    return grow(random, empty(window), [tail, step(tail, direction(random), apart)], length)


def short_contours(random: Random, taken: np.ndarray, length: int) -> list[list[Paddle]]:
    """Adds short contours to the free area, as many as fit, and returns them."""
    width, contours = len(taken), []
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
    """Grows a contour of ``length`` paddles from each of the ``tails``, or returns None if one is stuck.

    They grow alternately and avoid the ``taken`` area, each other and themselves.
    """
    around = [taken.copy() for _ in tails]  # area that each contour avoids, without its last paddle
    contours = [[] for _ in tails]
    for _ in range(length):
        for own, contour in enumerate(contours):
            last = contour[-1:]
            paddle = extend(random, around[own], *last) if last else begin(random, around[own], tails[own])
            if paddle is None:
                return None
            contour.append(paddle)
            for other, part in enumerate(around):
                cover(part, last if other == own else [paddle])
    return contours


def begin(random: Random, taken: np.ndarray, tail: Point) -> Paddle | None:
    """Returns a paddle from ``tail`` in a random direction, or None if it does not fit."""
    angle = direction(random)
    paddle = Paddle(step(tail, angle, -MARGIN), step(tail, angle, LENGTH), angle)
    return paddle if fits(taken, paddle) else None


def extend(random: Random, taken: np.ndarray, last: Paddle) -> Paddle | None:
    """Returns a paddle that continues the ``last`` one, or None if none fits.

    Its head is a pixel on a circle around its pivot, with probability proportional to its free share times
    max(cos(min(c Δ, π/2)), 0)², where c is CONTINUITY and Δ the turning angle.
    """
    pivot = step(last.pivot, last.angle, LENGTH + 2 * MARGIN)
    heads, near, weights = turns(last.angle, taken.shape[1])
    place = (pivot[0] + FRAME) * taken.shape[1] + pivot[1] + FRAME
    sums = (weights * (1 - taken.take(near + place).max(0))).cumsum()
    if sums[-1] < 1e-4:
        return None
    for _ in range(TRIALS):
        y, x = heads[sums.searchsorted(random.random() * sums[-1], side="right")]
        paddle = Paddle(pivot, (pivot[0] + y, pivot[1] + x), math.atan2(y, x))
        if fits(taken, paddle):
            return paddle
    return None


def beginning(paddle: Paddle) -> Point:
    """Returns the start of a paddle."""
    return step(paddle.head, paddle.angle, -LENGTH)


def step(point: Point, angle: float, distance: float) -> Point:
    """Returns the pixel at an angle and distance from a point."""
    y, x = shift(angle, distance)
    return point[0] + y, point[1] + x


@cache
def shift(angle: float, distance: float) -> Point:
    """Returns an offset in whole pixels; sines are rounded because machines differ."""
    y, x = (round(round(distance * part, 6)) for part in (math.sin(angle), math.cos(angle)))
    return y, x


def pick(random: Random, count: int) -> int:
    """Returns a random integer in [0, count); only ``Random.random`` is stable across Python versions."""
    return int(count * random.random())


def direction(random: Random) -> float:
    """Returns one of 360 directions."""
    return math.radians(pick(random, 360))


HEADS = sorted({shift(math.radians(degrees), MARGIN + LENGTH) for degrees in range(360)})
"""Pixels on a circle around a pivot."""


@cache
def turns(angle: float, width: int) -> tuple[list[Point], np.ndarray, np.ndarray]:
    """Returns the possible continuations of a contour.

    Returns:
        Heads relative to the pivot; memory offsets from the pivot, in rows of length ``width``, of these
        pixels (first row) and of their neighbors at distance MARGIN; and the heads' weights.
    """
    weights = {}
    for head in HEADS:
        turn = abs(math.remainder(math.atan2(*head) - angle, math.tau))
        weight = max(math.cos(min(CONTINUITY * turn, math.pi / 2)), 0) ** 2
        if weight > 1e-9:
            weights[head] = round(weight, 9)
    places = np.array([y * width + x for y, x in weights])
    beside = np.array([0, MARGIN, -MARGIN, MARGIN * width, -MARGIN * width])
    return list(weights), places + beside[:, None], np.array(list(weights.values()))


@cache
def stamp(angle: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns two masks with values in [0, 1]: a dash that ends at the center, and it with its margin."""
    middle, drawing = FINER * REACH, Image.new("L", (2 * FINER * REACH + 1,) * 2)
    y, x = step((middle, middle), angle, -FINER * LENGTH)
    ImageDraw.Draw(drawing).line([(middle, middle), (x, y)], fill=255)
    line = np.asarray(drawing) > 0
    covered = binary_dilation(line, disc(2 * FINER * MARGIN + 1, (MARGIN, MARGIN), MARGIN))
    return downsample(line, 2 * REACH + 1), downsample(covered, 2 * REACH + 1)


def disc(size: int, middle: Point, radius: float) -> np.ndarray:
    """Returns a mask of a disc on a supersampled grid of ``size`` x ``size`` pixels."""
    y, x = np.ogrid[:size, :size]
    return (y - FINER * middle[0]) ** 2 + (x - FINER * middle[1]) ** 2 <= (FINER * radius) ** 2


def downsample(fine: np.ndarray, size: int) -> np.ndarray:
    """Downsamples a mask with a Lanczos filter, to values from 0 to 1."""
    image = Image.fromarray(255 * fine.astype(np.uint8))
    return np.asarray(image.resize((size, size), Image.Resampling.LANCZOS), np.float32) / 255


@cache
def empty(window: int) -> np.ndarray:
    """Returns the taken area of an empty window with a frame around it."""
    return np.pad(np.zeros((window - 2 * PADDING,) * 2, np.float32), PADDING + FRAME, constant_values=1)


def at(framed: np.ndarray, head: Point) -> np.ndarray:
    """Returns the view of a framed window that a paddle's stamp covers."""
    y, x = head[0] + FRAME - REACH, head[1] + FRAME - REACH
    return framed[y : y + 2 * REACH + 1, x : x + 2 * REACH + 1]


def fits(taken: np.ndarray, paddle: Paddle) -> bool:
    """Returns whether a paddle with its margin avoids the taken area."""
    return (at(taken, paddle.head) + stamp(paddle.angle)[1]).max() < FULL


def cover(taken: np.ndarray, paddles: Iterator[Paddle]) -> None:
    """Marks the area of the paddles and their margins as taken."""
    for paddle in paddles:
        part = at(taken, paddle.head)
        np.maximum(part, stamp(paddle.angle)[1], out=part)


def ink(window: int, paddles: Iterator[Paddle]) -> np.ndarray:
    """Draws paddles, with values from 0 to 1."""
    light = np.zeros((window + 2 * FRAME,) * 2, np.float32)
    for paddle in paddles:
        part = at(light, paddle.head)
        np.maximum(part, stamp(paddle.angle)[0], out=part)
    return light[FRAME:-FRAME, FRAME:-FRAME]


def published(folder: Path) -> list[tuple[Path, int]]:
    """Returns the paths and labels of the published images: fields 0, 1 and 3 of the metadata.

    The published metadata files are text despite their suffix .npy; the generator writes string arrays.
    """
    files = [path for path in folder.glob("metadata/*.npy") if path.stem.isdecimal()]
    rows = []
    for file in sorted(files, key=lambda path: int(path.stem)):
        for number, fields in enumerate(metadata(file), 1):
            if len(fields) < 4 or fields[3] not in ("0", "1"):
                raise ValueError(f"{file} row {number} is not a folder, file, number and label 0 or 1")
            path = folder / fields[0] / fields[1]
            if not path.is_file():
                raise ValueError(f"{path}, listed in {file}, is missing")
            rows.append((path, int(fields[3])))
    if len(rows) < 10:
        raise ValueError(
            f"{folder}/metadata/*.npy list {len(rows)} images instead of 10 or more: "
            f"--from takes {Pathfinder.accepts}"
        )
    return rows


def metadata(path: Path) -> list[list[str]]:
    """Returns the fields of each row of a metadata file."""
    with suppress(UnicodeDecodeError):
        return [line.split() for line in read_file(path).decode().splitlines()]
    try:
        return np.load(path, allow_pickle=False).astype(str).tolist()
    except (ValueError, EOFError):
        raise ValueError(f"{path} is neither text nor an array of strings") from None


def read(path: Path) -> np.ndarray:
    """Returns the grayscale values of a square image."""
    try:
        values = np.asarray(decode(read_file(path), "L"))
    except ValueError as error:
        raise ValueError(f"{path} is not a complete image ({error})") from None
    if values.shape[0] != values.shape[1]:
        raise ValueError(f"{path} has {values.shape[1]} x {values.shape[0]} pixels: a square image is needed")
    return values


def pixels(window: int, rows: list[tuple[Path, int]]) -> list[tuple[np.ndarray, int]]:
    """Returns (grayscale values, label) of published images of ``window`` x ``window`` pixels."""
    found = []
    for path, label in rows:
        values = read(path)
        if len(values) != window:
            raise ValueError(f"{path} has {len(values)} pixels per side, but the first image has {window}")
        found.append((values, label))
    return found
