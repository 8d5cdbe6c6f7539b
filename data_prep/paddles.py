"""Geometry and drawing of paddles, the dashes of Pathfinder's contours."""

import math
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw
from scipy.ndimage import binary_dilation

LENGTH = 2  # length of a paddle in pixels
MARGIN = 1  # width of the margin around a paddle in pixels
PADDING = 1  # width of the window's border without paddles in pixels
FINER = 2  # supersampling factor of drawings, in which a paddle is one pixel thick
FULL = 1.8  # sum of the coverages of a pixel, from 0 to 1 each, at which two paddles overlap

REACH = LENGTH + MARGIN + 1  # distance in pixels from the center of a paddle's masks to their edges
FRAME = 2 * REACH  # width in pixels of a frame around the window, so that masks need no clipping

Point = tuple[int, int]  # (row, column)


class Paddle(NamedTuple):
    """A dash that starts at distance MARGIN from ``pivot`` and ends at ``head``; its angle is in radians."""

    pivot: Point
    head: Point
    angle: float


def beginning(paddle: Paddle) -> Point:
    return step(paddle.head, paddle.angle, -LENGTH)


def step(point: Point, angle: float, distance: float) -> Point:
    y, x = shift(angle, distance)
    return point[0] + y, point[1] + x


@cache
def shift(angle: float, distance: float) -> Point:
    """Returns the offset (rows, columns) in pixels that corresponds to a distance at an angle in radians.

    The products of the distance with sine and cosine are first rounded to six digits, because further digits
    differ between machines.
    """
    y = round(round(distance * math.sin(angle), 6))
    x = round(round(distance * math.cos(angle), 6))
    return y, x


@cache
def paddle_masks(angle: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns two masks of a paddle that ends at the center, without and with its margin.

    The masks are squares of 2 REACH + 1 pixels per side.
    """
    center = FINER * REACH
    drawing = Image.new("L", (2 * center + 1, 2 * center + 1))
    y, x = step((center, center), angle, -FINER * LENGTH)
    ImageDraw.Draw(drawing).line([(center, center), (x, y)], fill=255)
    line = np.asarray(drawing) > 0
    covered = binary_dilation(line, disc(2 * FINER * MARGIN + 1, (MARGIN, MARGIN), MARGIN))
    return downsample(line, 2 * REACH + 1), downsample(covered, 2 * REACH + 1)


def disc(size: int, center: Point, radius: float) -> np.ndarray:
    """Returns the mask (size, size) of a disc, supersampled by FINER; center and radius are in pixels."""
    y, x = np.ogrid[:size, :size]
    return (y - FINER * center[0]) ** 2 + (x - FINER * center[1]) ** 2 <= (FINER * radius) ** 2


def downsample(fine: np.ndarray, size: int) -> np.ndarray:
    """Returns a mask downsampled to (size, size) by a Lanczos filter; its values are from 0 to 1."""
    image = Image.fromarray(255 * fine.astype(np.uint8))
    return np.asarray(image.resize((size, size), Image.Resampling.LANCZOS), np.float32) / 255


@cache
def empty(window: int) -> np.ndarray:
    """Returns the mask of the taken area of an empty window: 1 in the frame and the border, 0 inside."""
    return np.pad(np.zeros((window - 2 * PADDING,) * 2, np.float32), PADDING + FRAME, constant_values=1)


def patch(framed: np.ndarray, head: Point) -> np.ndarray:
    """Returns the part of a window with a frame that the masks of a paddle with the head ``head`` cover."""
    y = head[0] + FRAME - REACH
    x = head[1] + FRAME - REACH
    return framed[y : y + 2 * REACH + 1, x : x + 2 * REACH + 1]


def fits(taken: np.ndarray, paddle: Paddle) -> bool:
    # numpy 2 would round FULL to float32, which gives other images than numpy 1.
    return float((patch(taken, paddle.head) + paddle_masks(paddle.angle)[1]).max()) < FULL


def cover(taken: np.ndarray, paddles: Iterator[Paddle], margin: bool = True) -> None:
    for paddle in paddles:
        part = patch(taken, paddle.head)
        np.maximum(part, paddle_masks(paddle.angle)[margin], out=part)


def draw_paddles(window: int, paddles: Iterator[Paddle]) -> np.ndarray:
    light = np.zeros((window + 2 * FRAME,) * 2, np.float32)
    cover(light, paddles, margin=False)
    return light[FRAME:-FRAME, FRAME:-FRAME]
