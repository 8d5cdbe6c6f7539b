"""Pathfinder: pictures of two long contours, and whether two discs are the ends of one of them."""

import json
import math
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import binary_dilation, distance_transform_edt, label
from small_corpora import classified, contents, prepare, refused

from data_prep import generated, pathfinder

SMALL = ["--window", 16, "--contour-length", 4, "--rows", 24, 8, 8]
SPLITS = ("train", "valid", "test")
CROSS = [(0, 0), (0, 1), (1, 0), (0, -1), (-1, 0)]


@pytest.fixture(scope="module")
def thousand():
    return [pathfinder.draw(1, 32, 14, index) for index in range(1000)]


def bright_discs(grey):
    """The pixels that are as bright as a disc together with their four neighbours: a paddle has none."""
    near = [np.roll(grey, shift, (0, 1)) for shift in CROSS]
    whole = np.min(near, axis=0)
    return np.argwhere(whole > 0.95 * whole.max())


def dashes(picture, contour):
    """A contour drawn alone."""
    return pathfinder.ink(picture.window, contour) > 0.25


def test_labels_are_what_the_drawings_show(thousand):
    """The discs are looked for in the picture, and each contour, drawn alone, is one piece but for its gaps."""
    for picture in thousand:
        alone = [dashes(picture, contour) for contour in picture.long]
        for one in alone:
            pieces, number = label(one, np.ones((3, 3)))
            _, whole = label(binary_dilation(one, iterations=2), np.ones((3, 3)))
            assert number > 1 and whole == 1
        found = bright_discs(picture.grey())
        far = np.stack([distance_transform_edt(~one) for one in alone])
        owners = []
        for disc in picture.discs:
            assert min(math.dist(disc, place) for place in found) < 1.5
            owners.append(int(far[:, *disc].argmin()))
            assert far[owners[-1], *disc] < far[1 - owners[-1], *disc]
        assert all(min(math.dist(disc, place) for disc in picture.discs) < 1.5 for place in found)
        assert picture.label == (owners[0] == owners[1])


def test_discs_are_at_the_ends_of_contours(thousand):
    """Without the paddle at a disc, a contour is still one piece but for its gaps; and its ends differ."""
    for picture in thousand:
        first, last = picture.discs
        assert first in [pathfinder.beginning(contour[0]) for contour in picture.long]
        assert last in [contour[-1].head for contour in picture.long]
