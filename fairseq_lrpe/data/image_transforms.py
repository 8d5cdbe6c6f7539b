"""Image transforms of DeiT (Touvron et al. 2021): crops, random flip, normalization and random erasing.

The constants are those of DeiT's code (facebookresearch/deit, main.py) and of timm 0.3.2, which it uses. All
random numbers are drawn from the argument ``rng``, except for noise, which is drawn on the images' device.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""Mean and deviation of ImageNet's color channels, for values from 0 to 1 (timm/data/constants.py)."""
CROP_AREA = (0.08, 1.0)
CROP_RATIO = (3 / 4, 4 / 3)
"""Ranges of a crop's relative area, and of its width / height (timm/data/transforms_factory.py)."""
ERASE_PROBABILITY = 0.25
"""Probability of erasing a rectangle (DeiT's --reprob)."""
ERASE_AREA = (0.02, 1 / 3)
ERASE_RATIO = (0.3, 1 / 0.3)
"""Ranges of the rectangle's relative area, and of its height / width (timm/data/random_erasing.py)."""
MAX_TRIALS = 10
"""Maximum number of draws until a crop or rectangle fits into the image."""
RESIZE_RATIO = 256 / 224
"""Shorter side of the resized image, relative to the side of its center crop, in evaluation."""

Box = tuple[int, int, int, int]
"""Left, top, right and bottom of a rectangle, in pixels."""
Region = tuple[slice, slice]
"""Rows and columns of a rectangle in an image."""


def log_uniform(limits: tuple[float, float], rng: np.random.Generator) -> float:
    return math.exp(rng.uniform(*map(math.log, limits)))


def random_crop_box(width: int, height: int, rng: np.random.Generator) -> Box:
    """Returns a random crop (left, top, right, bottom) of an image.

    The area is uniform in CROP_AREA, the aspect ratio log-uniform in CROP_RATIO, the position uniform.
    If no draw fits into the image, the largest centered crop with a valid aspect ratio is returned.
    """
    for _ in range(MAX_TRIALS):
        area = rng.uniform(*CROP_AREA) * width * height
        ratio = log_uniform(CROP_RATIO, rng)
        w = round(math.sqrt(area * ratio))
        h = round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left = int(rng.integers(width - w + 1))
            top = int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    w = min(width, round(height * CROP_RATIO[1]))
    h = min(height, round(width / CROP_RATIO[0]))
    return center_box(width, height, w, h)


def center_box(width: int, height: int, w: int, h: int) -> Box:
    """Returns the box (left, top, right, bottom) of size ``w`` x ``h`` at the center of an image."""
    left = round((width - w) / 2)
    top = round((height - h) / 2)
    return left, top, left + w, top + h


def random_resized_crop(image: "Image", size: int, rng: np.random.Generator) -> "Image":
    """Returns a random crop, resized to ``size`` x ``size`` and flipped horizontally with probability 0.5."""
    from PIL.Image import Resampling, Transpose

    # resize(box=...) would also use the pixels around the box.
    crop = image.crop(random_crop_box(*image.size, rng)).resize((size, size), Resampling.BICUBIC)
    return crop.transpose(Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else crop


def resize_and_center_crop(image: "Image", size: int) -> "Image":
    """Returns the ``size`` x ``size`` center crop of an image resized to a shorter side of 256/224 ``size``.

    An image of ``size`` x ``size`` is returned unchanged, as in DeiT's evaluation on CIFAR.
    """
    from PIL.Image import Resampling

    width, height = image.size
    if (width, height) == (size, size):
        return image
    shorter = int(size * RESIZE_RATIO)
    w = int(shorter * width / min(width, height))
    h = int(shorter * height / min(width, height))
    return image.resize((w, h), Resampling.BICUBIC).crop(center_box(w, h, size, size))


def to_tensor(image: "Image") -> Tensor:
    return torch.from_numpy(np.array(image))


def normalize(pixels: Tensor) -> Tensor:
    """Returns (byte / 255 - MEAN) / STD (B, 3, height, width) in float32 for bytes (B, height, width, 3)."""
    mean, std = mean_std_255(pixels.device)
    # Permuting bytes is faster than permuting floats.
    return pixels.permute(0, 3, 1, 2).contiguous().to(torch.float32).sub_(mean).div_(std)


@lru_cache
def mean_std_255(device: torch.device) -> list[Tensor]:
    """Returns MEAN and STD of bytes, 255 times those of values from 0 to 1, (3, 1, 1) each."""
    mean = 255 * torch.tensor(MEAN, device=device)[:, None, None]
    std = 255 * torch.tensor(STD, device=device)[:, None, None]
    return [mean, std]


def random_erase_box(height: int, width: int, rng: np.random.Generator) -> Region | None:
    """Returns a random rectangle to erase, or None with probability 1 - ERASE_PROBABILITY.

    The area is uniform in ERASE_AREA, the aspect ratio log-uniform in ERASE_RATIO, the position uniform. The
    result is also None if no draw fits into the image.
    """
    if rng.random() >= ERASE_PROBABILITY:
        return None
    for _ in range(MAX_TRIALS):
        area = rng.uniform(*ERASE_AREA) * height * width
        ratio = log_uniform(ERASE_RATIO, rng)
        h = round(math.sqrt(area * ratio))
        w = round(math.sqrt(area / ratio))
        if h < height and w < width:
            top = int(rng.integers(height - h + 1))
            left = int(rng.integers(width - w + 1))
            return slice(top, top + h), slice(left, left + w)
    return None


def erase(pixels: Tensor, boxes: Sequence[Region | None], seed: int) -> None:
    """Fills one rectangle of each image with N(0, 1) noise, in place.

    Args:
        pixels: normalized images (B, 3, height, width).
        boxes: the rectangle of each image; None leaves the image unchanged.
        seed: seed of the noise.
    """
    generator = torch.Generator(pixels.device).manual_seed(seed)
    for image, box in zip(pixels, boxes, strict=True):
        if box:
            image[(..., *box)].normal_(generator=generator)
