"""Crops, flips, evaluation, normalization and erasing, compared with their definitions."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import kstest

from fairseq_lrpe.data import image_transforms

RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 256, (60, 80, 3), np.uint8)


def uniform(values, limits):
    """Returns whether numbers between the limits are uniformly distributed."""
    low, high = limits
    return kstest((np.array(values) - low) / (high - low), "uniform").pvalue > 1e-3


def test_distribution_of_crops():
    """In a square, all draws with an area below 0.7 fit."""
    side, rng = 100_000, np.random.default_rng(1)
    boxes = np.array([image_transforms.random_crop_box(side, side, rng) for _ in range(4000)], float)
    left, top, right, bottom = boxes.T
    width, height = right - left, bottom - top
    area, ratio = width * height / side**2, width / height
    assert area.min() >= 0.0799 and area.max() <= 1 and ratio.min() > 0.7499 and ratio.max() < 1.3334
    small = area < 0.7
    assert uniform(area[small], (0.08, 0.7)) and 0.674 < small.mean() < 0.85
    assert uniform(np.log(ratio[small]), (math.log(3 / 4), math.log(4 / 3)))
    assert uniform(left / (side - width + 1), (0, 1)) and uniform(top / (side - height + 1), (0, 1))
    assert abs(np.corrcoef(area[small], np.log(ratio[small]))[0, 1]) < 0.06


@pytest.mark.parametrize(
    ("size", "box"), [((1000, 9), (494, 0, 506, 9)), ((9, 1000), (0, 494, 9, 506)), ((1, 1), (0, 0, 1, 1))]
)
def test_the_center_is_used_if_no_crop_fits(size, box):
    assert image_transforms.random_crop_box(*size, np.random.default_rng(0)) == box


def test_crops_are_resized_alone_and_half_are_flipped():
    image, flipped = Image.fromarray(NOISE), 0
    for seed in range(200):
        found = image_transforms.random_resized_crop(image, 24, np.random.default_rng(seed))
        box = image_transforms.random_crop_box(*image.size, np.random.default_rng(seed))
        alone = Image.fromarray(NOISE[box[1] : box[3], box[0] : box[2]])
        expected = np.asarray(alone.resize((24, 24), Image.Resampling.BICUBIC))
        is_flipped = not np.array_equal(found, expected)
        assert np.array_equal(found, expected[:, ::-1] if is_flipped else expected)
        flipped += is_flipped
    assert 70 < flipped < 130


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (300, 300), (100, 80)])
def test_the_center_is_evaluated(size):
    """The shorter side becomes 256, then 224 x 224 are cropped."""
    values = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), np.uint8)
    image = Image.fromarray(values)
    shorter = min(size)
    width, height = (256 * side // shorter for side in size)
    resized = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
    top, left = ((side - 224) // 2 for side in (height, width))
    found = image_transforms.resize_and_center_crop(image, 224)
    assert np.array_equal(found, resized[top : top + 224, left : left + 224])


def test_images_of_the_requested_size_are_unchanged():
    image = Image.fromarray(NOISE[:32, :32])
    assert image_transforms.resize_and_center_crop(image, 32) is image
    smaller = image.resize((27, 27), Image.Resampling.BICUBIC)
    assert np.array_equal(image_transforms.resize_and_center_crop(image, 24), np.asarray(smaller)[2:26, 2:26])


def test_normalized_values():
    pixels = image_transforms.to_tensor(Image.fromarray(NOISE))
    assert pixels.dtype == torch.uint8 and pixels.is_contiguous()
    found = image_transforms.normalize(torch.stack([pixels, pixels.flip(1)]))
    expected = (NOISE / 255 - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    assert found.dtype == torch.float32 and found.is_contiguous()
    np.testing.assert_allclose(found[0], expected.transpose(2, 0, 1), rtol=0, atol=1e-6)
    assert torch.equal(found[1], found[0].flip(2))


def test_distribution_of_erased_rectangles(monkeypatch):
    """Rectangles that are not too long are uniform in area, log ratio and position."""
    side, rng = 100_000, np.random.default_rng(2)
    monkeypatch.setattr(image_transforms, "ERASE_PROBABILITY", 1)
    boxes = [image_transforms.random_erase_box(side, side, rng) for _ in range(4000)]
    top, bottom, left, right = np.array([(y.start, y.stop, x.start, x.stop) for y, x in boxes], float).T
    height, width = bottom - top, right - left
    area, ratio = height * width / side**2, height / width
    assert area.min() > 0.0199 and area.max() < 0.3334 and ratio.min() > 0.2999 and ratio.max() < 3.334
    short = abs(np.log(ratio)) < math.log(2.9)
    assert uniform(area[short], (0.02, 1 / 3))
    assert uniform(np.log(ratio[short]), (-math.log(2.9), math.log(2.9)))
    assert uniform(top / (side - height + 1), (0, 1)) and uniform(left / (side - width + 1), (0, 1))
    assert max(bottom.max(), right.max()) <= side


def test_a_quarter_of_the_images_is_erased():
    boxes = [image_transforms.random_erase_box(40, 50, np.random.default_rng(seed)) for seed in range(400)]
    assert 70 < sum(box is not None for box in boxes) < 130


def test_erased_values_are_noise():
    """N(0, 1) noise in the rectangles, independent for each value; nothing else changes."""
    boxes = [(slice(3, 33), slice(5, 50)), None, (slice(0, 40), slice(10, 20))] * 2
    found = torch.full((6, 3, 40, 50), 7.0)
    image_transforms.erase(found, boxes, 1)
    noise = []
    for image, box in zip(found, boxes, strict=True):
        changed = torch.zeros(40, 50, dtype=torch.bool)
        if box:
            changed[box] = True
            noise.append(image[:, changed].flatten())
        assert torch.equal(image != 7, changed.expand(3, 40, 50))
    noise = torch.cat(noise).double()
    assert kstest(noise.numpy(), "norm").pvalue > 1e-3 and len(set(noise.tolist())) > 0.99 * len(noise)
    for seed, same in ((1, True), (2, False)):
        again = torch.full((6, 3, 40, 50), 7.0)
        image_transforms.erase(again, boxes, seed)
        assert torch.equal(again, found) == same
