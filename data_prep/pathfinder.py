"""Pathfinder of Long-Range Arena (Linsley et al. 2018; Tay et al. 2021), for our task classification.

Grey pictures of two long contours of dashes, called paddles, of short contours that distract, and of two
discs: the label is 1 if these are the two ends of one long contour, and 0 if each is an end of another one.
Half of the pictures have label 1. The measures are those of Long-Range Arena's hard set of 32 x 32 pixels; in
another --window, how far apart the long contours begin and how many short ones there are goes with its size.
Of published pictures, in their order, the first 80% are for training, the next and the last 10% for
validation and test.
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

from data_prep.binarise import SPLITS
from data_prep.classified import as_types
from data_prep.generated import Generated
from data_prep.processes import in_order

LENGTH = 2  # of a paddle, in pixels
MARGIN = 1  # before and after a paddle, and around it
PADDING = 1  # of the window, where no paddle is
APART = 7  # in a window of 32 pixels, where the long contours begin
PADDLES = 20  # of the short contours, in a window of 32 pixels
CONTINUITY = 1.0  # how straight contours are
RADIUS = 1.5  # of a disc
SHORT, LONG, DISC = 2, 2 * 0.75, 1  # how bright they are
FINER = 2  # times as many pixels are drawn, then made fewer; a paddle is one of these thick
FULL = 1.8  # what two paddles may cover of a pixel together
TRIALS = 3  # of a paddle at a place
TRIALS_SHORT = 5  # of a short contour
TRIALS_LONG = 5000  # of two long contours, before they are said not to fit

REACH = LENGTH + MARGIN + 1  # of a stamp, around its middle
FRAME = 2 * REACH  # around a window, so that stamps need not be cut
BLOCK = 20  # pictures that a process takes at a time

Point = tuple[int, int]


class Paddle(NamedTuple):
    """A dash that ends at ``head``; ``pivot`` is MARGIN before its beginning."""

    pivot: Point
    head: Point
    angle: float


class Picture(NamedTuple):
    """What is in a picture; the label is whether the two discs are of one long contour."""

    window: int
    long: list[list[Paddle]]
    short: list[list[Paddle]]
    discs: tuple[Point, Point]
    label: int

    def grey(self) -> np.ndarray:
        """Returns the picture; its brightest pixel is 255."""
        light = LONG * ink(self.window, chain(*self.long))
        light = np.maximum(light, SHORT * ink(self.window, chain(*self.short)))
        for middle in self.discs:
            light = np.maximum(light, DISC * shrunk(disc(FINER * self.window, middle, RADIUS), self.window))
        return np.rint(255 / light.max() * light).astype(np.uint8)


class Pathfinder(Generated):
    """Pictures of contours, and whether two discs are the ends of one; ``found``: paths and labels."""

    accepts = "imgs/K/sample_N.png and metadata/K.npy as published (default: draw pictures)"
    defaults = {"window": [32], "contour_length": [14], "rows": [160_000, 20_000, 20_000], "seed": [1]}
    types = [*map(str, range(256))]
    labels = ["0", "1"]

    def add_options(self, parser):
        self.add_numbers(parser, "window", 8, "how many pixels a picture is wide and high")
        self.add_numbers(parser, "contour_length", 2, "paddles of a long contour; a short one has a third")
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
                f"--contour-length {length}: in {TRIALS_LONG:,} trials no two contours of so many paddles "
                f"fitted into a window of {window} pixels: ask for shorter ones or a larger --window"
            )

    def about(self, args):
        return {"shape": 2 * args.window, "pixels": {"mean": 127.5, "std": 127.5}}

    def generated(self, args):
        some = partial(drawn, args.seed[0], args.window[0], args.contour_length[0])
        return self.rows(some, range(sum(args.rows)), args.workers)

    def read(self, args, rows):
        return self.rows(partial(pixels, args.window[0]), rows, args.workers)

    def rows(self, function, items, workers):
        """Yields the rows that a function makes of some items at a time."""
        blocks = (items[i : i + BLOCK] for i in range(0, len(items), BLOCK))
        for block in in_order(function, blocks, workers):
            for grey, label in block:
                yield as_types(grey.ravel()), label


def drawn(seed: int, window: int, length: int, indices: range) -> list[tuple[np.ndarray, int]]:
    """Returns (grey values, label) of the pictures of these numbers."""
    pictures = (draw(seed, window, length, i) for i in indices)
    return [(picture.grey(), picture.label) for picture in pictures]


def draw(seed: int, window: int, length: int, index: int) -> Picture:
    """Returns the picture of this number, whose long contours have ``length`` paddles."""
    random, label = Random(f"{seed} {index}"), index % 2
    while not (long := long_contours(random, window, length)):
        pass
    taken = empty(window).copy()
    cover(taken, chain(*long))
    short = short_contours(random, taken, max(length // 3, 1))
    start = pick(random, 2)
    end = start if label else 1 - start
    return Picture(window, long, short, (beginning(long[start][0]), long[end][-1].head), label)


def long_contours(random: Random, window: int, length: int) -> list[list[Paddle]] | None:
    """Returns two contours that begin near the middle, or None if they come in each other's way."""
    apart = APART * window // 32
    tail = tuple(2 * apart + pick(random, window - 4 * apart) for _ in range(2))
    return grow(random, empty(window), [tail, step(tail, direction(random), apart)], length)


def short_contours(random: Random, taken: np.ndarray, length: int) -> list[list[Paddle]]:
    """Returns contours in what is left free, and covers it; fewer than wanted if there is no place."""
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
    """Returns a contour of ``length`` paddles from each of the ``tails`` on, or None if one is stuck.

    They grow by turns, and keep off what is ``taken``, off one another, and off themselves.
    """
    around = [taken.copy() for _ in tails]  # what each contour keeps off: not its last paddle
    contours = [[] for _ in tails]
    for _ in range(length):
        for own, contour in enumerate(contours):
            last = contour[-1:]
            paddle = go_on(random, around[own], *last) if last else begin(random, around[own], tails[own])
            if paddle is None:
                return None
            contour.append(paddle)
            for other, part in enumerate(around):
                cover(part, last if other == own else [paddle])
    return contours


def begin(random: Random, taken: np.ndarray, tail: Point) -> Paddle | None:
    """Returns a paddle from ``tail`` on in any direction, or None if it does not fit."""
    angle = direction(random)
    paddle = Paddle(step(tail, angle, -MARGIN), step(tail, angle, LENGTH), angle)
    return paddle if fits(taken, paddle) else None


def go_on(random: Random, taken: np.ndarray, last: Paddle) -> Paddle | None:
    """Returns a paddle that goes on from the ``last`` one, or None if none fits.

    Its head is one of the pixels of a circle around its pivot, of a probability that goes with how free it
    is times max(cos(min(c Δ, π/2)), 0)², where c is CONTINUITY and Δ the angle that it turns by.
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
    """Returns where a paddle begins."""
    return step(paddle.head, paddle.angle, -LENGTH)


def step(point: Point, angle: float, distance: float) -> Point:
    """Returns the pixel at a distance."""
    y, x = shift(angle, distance)
    return point[0] + y, point[1] + x


@cache
def shift(angle: float, distance: float) -> Point:
    """Returns a distance in whole pixels; the last bits of a sine, which machines may differ in, are cut."""
    y, x = (round(round(distance * part, 6)) for part in (math.sin(angle), math.cos(angle)))
    return y, x


def pick(random: Random, count: int) -> int:
    """Returns one of 0 .. count - 1; of a Random, only this method's numbers stay the same for ever."""
    return int(count * random.random())


def direction(random: Random) -> float:
    """Returns one of 360 directions."""
    return math.radians(pick(random, 360))


HEADS = sorted({shift(math.radians(degrees), MARGIN + LENGTH) for degrees in range(360)})
"""The pixels of a circle around a pivot."""


@cache
def turns(angle: float, width: int) -> tuple[list[Point], np.ndarray, np.ndarray]:
    """Returns how a contour may go on: heads as seen from a pivot, and the weight of each.

    Between them: how far in memory these pixels (first row), and those MARGIN beside them (the other rows),
    are from the pivot, where rows are ``width`` long.
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
    """Returns a paddle that ends in the middle, as drawn, and with the margin that it covers; from 0 to 1."""
    middle, drawing = FINER * REACH, Image.new("L", (2 * FINER * REACH + 1,) * 2)
    y, x = step((middle, middle), angle, -FINER * LENGTH)
    ImageDraw.Draw(drawing).line([(middle, middle), (x, y)], fill=255)
    line = np.asarray(drawing) > 0
    covered = binary_dilation(line, disc(2 * FINER * MARGIN + 1, (MARGIN, MARGIN), MARGIN))
    return shrunk(line, 2 * REACH + 1), shrunk(covered, 2 * REACH + 1)


def disc(size: int, middle: Point, radius: float) -> np.ndarray:
    """Returns which of so many finer pixels, each way, are in a disc."""
    y, x = np.ogrid[:size, :size]
    return (y - FINER * middle[0]) ** 2 + (x - FINER * middle[1]) ** 2 <= (FINER * radius) ** 2


def shrunk(fine: np.ndarray, size: int) -> np.ndarray:
    """Returns what was drawn with finer pixels by Lanczos's filter, from 0 to 1."""
    image = Image.fromarray(255 * fine.astype(np.uint8))
    return np.asarray(image.resize((size, size), Image.Resampling.LANCZOS), np.float32) / 255


@cache
def empty(window: int) -> np.ndarray:
    """Returns what is taken of a window, and of a frame around it, before anything is drawn."""
    return np.pad(np.zeros((window - 2 * PADDING,) * 2, np.float32), PADDING + FRAME, constant_values=1)


def at(framed: np.ndarray, head: Point) -> np.ndarray:
    """Returns the part where the stamp of a paddle goes."""
    y, x = head[0] + FRAME - REACH, head[1] + FRAME - REACH
    return framed[y : y + 2 * REACH + 1, x : x + 2 * REACH + 1]


def fits(taken: np.ndarray, paddle: Paddle) -> bool:
    """Whether a paddle, with its margin, is off what is taken."""
    return (at(taken, paddle.head) + stamp(paddle.angle)[1]).max() < FULL


def cover(taken: np.ndarray, paddles: Iterator[Paddle]) -> None:
    """Takes the place of the paddles and their margins."""
    for paddle in paddles:
        part = at(taken, paddle.head)
        np.maximum(part, stamp(paddle.angle)[1], out=part)


def ink(window: int, paddles: Iterator[Paddle]) -> np.ndarray:
    """Returns paddles as drawn, from 0 to 1."""
    light = np.zeros((window + 2 * FRAME,) * 2, np.float32)
    for paddle in paddles:
        part = at(light, paddle.head)
        np.maximum(part, stamp(paddle.angle)[0], out=part)
    return light[FRAME:-FRAME, FRAME:-FRAME]


def published(folder: Path) -> list[tuple[Path, int]]:
    """Returns the published pictures' paths and labels, in their order; the fields 0, 1 and 3 of metadata.

    The archive's metadata is text, though its name says .npy; the generator's own is an array of strings.
    """
    files = [path for path in folder.glob("metadata/*.npy") if path.stem.isdecimal()]
    rows = []
    for file in sorted(files, key=lambda path: int(path.stem)):
        for number, fields in enumerate(metadata(file), 1):
            if len(fields) < 4 or fields[3] not in ("0", "1"):
                raise ValueError(f"{file} row {number} is no folder, file, number and label 0 or 1")
            path = folder / fields[0] / fields[1]
            if not path.is_file():
                raise ValueError(f"{path} is missing, which {file} names")
            rows.append((path, int(fields[3])))
    if len(rows) < 10:
        raise ValueError(
            f"{folder}/metadata/*.npy name {len(rows)} pictures, not 10 or more: "
            f"--from takes {Pathfinder.accepts}"
        )
    return rows


def metadata(path: Path) -> list[list[str]]:
    """Returns the fields of each row."""
    with suppress(UnicodeDecodeError):
        return [line.split() for line in path.read_text().splitlines()]
    try:
        return np.load(path, allow_pickle=False).astype(str).tolist()
    except (ValueError, EOFError):
        raise ValueError(f"{path} is neither text nor an array of strings") from None


def read(path: Path) -> np.ndarray:
    """Returns the grey values of a picture that is as wide as high."""
    try:
        with Image.open(path) as image:
            grey = np.asarray(image.convert("L"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise ValueError(f"{path} is no whole picture") from None
    if grey.shape[0] != grey.shape[1]:
        raise ValueError(f"{path} has {grey.shape[1]} x {grey.shape[0]} pixels: as many each way are needed")
    return grey


def pixels(window: int, rows: list[tuple[Path, int]]) -> list[tuple[np.ndarray, int]]:
    """Returns (grey values, label) of published pictures, which are ``window`` pixels wide and high."""
    found = []
    for path, label in rows:
        grey = read(path)
        if len(grey) != window:
            raise ValueError(f"{path} has {len(grey)} pixels each way, and the first picture {window}")
        found.append((grey, label))
    return found
