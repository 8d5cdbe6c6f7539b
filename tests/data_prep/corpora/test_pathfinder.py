"""Pathfinder: images of two long contours, and whether two discs are at the ends of the same one."""

import json
import math
from itertools import chain, pairwise

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage
from small_corpora import SPLITS, classified, error_of, prepare

from data_prep.corpora import pathfinder

SMALL = ["--window", 16, "--contour-length", 4, "--rows", 24, 8, 8]
DISC = pathfinder.downsample(pathfinder.disc(14, (3, 3), pathfinder.RADIUS), 7)


@pytest.fixture(scope="module")
def thousand():
    return [pathfinder.draw(1, 32, 14, index) for index in range(1000)]


def discs_in(grey):
    """Returns the pixels that look like the center of a disc, relative to the brightest one."""
    padded = np.pad(grey.astype(float), 3)
    part = [np.roll(padded, (3 - y, 3 - x), (0, 1)) / DISC[y, x] for y, x in np.argwhere(DISC > 0.2)]
    like = np.min(part, axis=0)[3:-3, 3:-3]
    return {tuple(place) for place in np.argwhere(like > 0.85 * like.max())}


def ends(contour):
    """Returns the start and the end of a contour, not rounded to pixels."""
    first, last = contour[0], contour[-1]
    y, x = first.head[0] - 2 * math.sin(first.angle), first.head[1] - 2 * math.cos(first.angle)
    return (y, x), last.head


def components(drawing):
    """Returns the number of connected components of a drawing, including connections at corners."""
    return ndimage.label(drawing, np.ones((3, 3)))[1]


def values_in(folder, split):
    """Returns (gray values, label) of each row of a prepared split."""
    return [([*map(int, text.split())], int(name)) for text, name in classified(folder, split)]


def test_labels_match_the_images(thousand):
    """Discs are found in the image; each contour, drawn alone, is one piece apart from its gaps."""
    agree = 0
    for picture in thousand:
        grey = picture.render()
        alone = [pathfinder.draw_paddles(32, contour) for contour in picture.long]
        for one in alone:
            dashes = one > 0.25
            thicker = ndimage.binary_dilation(dashes, np.ones((3, 3)))
            assert components(dashes) > 3 and components(thicker) == 1
            assert grey[dashes].min() > 40  # all of it is inside the image
        discs = discs_in(grey)
        assert discs == set(picture.discs) and len(discs) == 2
        owners = []
        for disc in discs:
            first, second = ([math.dist(disc, end) for end in ends(contour)] for contour in picture.long)
            owners.append(int(min(second) < min(first)))
            assert min(first + second) < 0.75 < sorted(first + second)[1]  # at exactly one end
        if owners[0] == owners[1]:  # at both ends
            for end in ends(picture.long[owners[0]]):
                assert min(math.dist(end, disc) for disc in discs) < 0.75
        assert picture.label == (owners[0] == owners[1])
        by_ink = {int(alone[1][disc] > alone[0][disc]) for disc in discs}
        agree += picture.label == (len(by_ink) == 1)
    assert agree >= 995  # except where the other contour is brighter at a disc than the weak end of its own


def test_labels_are_balanced_and_the_padding_is_empty(thousand):
    assert sum(picture.label for picture in thousand) == 500
    for picture in thousand:
        paddles = [*chain(*picture.long, *picture.short)]
        light = pathfinder.draw_paddles(32, paddles)
        light[1:-1, 1:-1] = 0
        assert light.max() < 0.05  # side lobes of the Lanczos filter
        grey = picture.render()
        assert grey.shape == (32, 32) and grey.dtype == np.uint8 and grey.max() == 255


def test_contours_have_the_published_measures(thousand):
    straight, lengths = [], set()
    for picture in thousand:
        assert [len(contour) for contour in picture.long] == [14, 14]
        assert len(picture.short) <= 5 and {len(contour) for contour in picture.short} <= {4}
        lengths.add(len(picture.short))
        first, second = (pathfinder.beginning(contour[0]) for contour in picture.long)
        assert 6 < math.dist(first, second) < 8
        assert all(14 <= x < 18 for x in first)
        for contour in chain(picture.long, picture.short):
            for before, after in pairwise(contour):
                gap = math.dist(before.head, pathfinder.beginning(after))
                turn = abs(math.remainder(after.angle - before.angle, math.tau))
                assert 0.9 < gap < 3.7 and turn < math.pi / 2
                straight.append(turn < math.pi / 4 + 0.01)
        paddles = [*chain(*picture.long)]
        middles = np.array([np.subtract(x.head, (math.sin(x.angle), math.cos(x.angle))) for x in paddles])
        far = np.linalg.norm(middles[:, None] - middles, axis=-1) + 9 * np.eye(len(middles))
        assert far.min() > 1  # no overlap
    assert max(lengths) == 5 and np.mean(straight) > 0.7


def test_distribution_of_turns():
    """max(cos(min(c Δ, π/2)), 0)² with c = 1, over the pixels of a circle of radius 3."""
    heads, near, weights = pathfinder.turns(0.0, 100)
    expected = {head: math.cos(math.atan2(*head)) ** 2 for head in pathfinder.HEADS if head[1] > 0}
    assert dict(zip(heads, weights, strict=True)) == pytest.approx(expected)
    assert all(2.5 < math.hypot(*head) < 3.7 for head in pathfinder.HEADS) and len(pathfinder.HEADS) > 16
    assert [*near[0]] == [100 * y + x for y, x in heads]


def test_prepared_images(tmp_path):
    folder = tmp_path / "out" / "bin"
    prepare("pathfinder", ["--out", tmp_path / "out", *SMALL])
    assert json.loads((folder / "about.json").read_text()) == {
        "inputs": 1,
        "labels": ["0", "1"],
        "rows": {"train": 24, "valid": 8, "test": 8},
        "shape": [16, 16],
        "pixels": {"mean": 127.5, "std": 127.5},
    }
    assert (folder / "dict.txt").read_text() == "".join(f"{value} 1\n" for value in range(256))
    rows = {split: values_in(folder, split) for split in SPLITS}
    for i, (values, label) in enumerate(chain(*rows.values())):
        picture = pathfinder.draw(1, 16, 4, i)
        assert picture.label == label and [*picture.render().ravel()] == values
    assert all(2 * sum(label for _, label in part) == len(part) for part in rows.values())


@pytest.fixture
def archive(tmp_path):
    """Two batches of published images, 9 before 10, and (gray values, label) of each image."""
    folder, rows = tmp_path / "curv_contour_length_14", []
    (folder / "metadata").mkdir(parents=True)
    for batch in (9, 10):
        lines = []
        (folder / "imgs" / str(batch)).mkdir(parents=True)
        for i in range(10):
            grey = np.random.default_rng(len(rows)).integers(256, size=(8, 8), dtype=np.uint8)
            Image.fromarray(grey).save(folder / "imgs" / str(batch) / f"sample_{i}.png")
            rows.append((grey.ravel().tolist(), i % 3 % 2))
            lines.append(f"imgs/{batch} sample_{i}.png {i} {i % 3 % 2} 1.0 14 4 2 0.5 1 1")
        (folder / "metadata" / f"{batch}.npy").write_text("".join(f"{line}\n" for line in lines))
    return folder, rows


def test_published_images(archive, tmp_path, capsys):
    """Rows as text and as an array of strings; an empty image, as among the published ones."""
    folder, rows = archive
    text, image = folder / "metadata" / "10.npy", folder / "imgs/9/sample_0.png"
    np.save(text, np.array([line.split() for line in text.read_text().splitlines()]))
    image.write_bytes(b"")
    prepare("pathfinder", ["--from", folder, "--out", tmp_path / "out", "--workers", 2])
    data = tmp_path / "out" / "bin"
    [line] = (data / "unreadable.txt").read_text().splitlines()
    assert line == f"{image}: it is not a JPEG, PNG, PPM, BMP, TIFF or WEBP file"
    assert "skipped: 1 unreadable images, see " in capsys.readouterr().out
    found = [values_in(data, split) for split in SPLITS]
    assert [len(part) for part in found] == [15, 2, 2] and [*chain(*found)] == rows[1:]
    assert json.loads((data / "about.json").read_text())["shape"] == [8, 8]
    image.unlink()
    assert f"{image} cannot be read" in error_of("pathfinder", "--from", folder, "--out", tmp_path / "new")
