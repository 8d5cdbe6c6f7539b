"""Image transforms of DeiT (Touvron et al. 2021): random crop and flip, normalization, random erasing.

Constants are those of DeiT's code (facebookresearch/deit, main.py) and of timm 0.3.2, which it uses. All
randomness comes from the generator argument.
"""

import math

import numpy as np
import torch
from PIL import Image
from torch import Tensor

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet statistics for values from 0 to 1 (timm/data/constants.py)."""
MEAN_STD_255 = [255 * torch.tensor(numbers)[:, None, None] for numbers in (MEAN, STD)]
CROP_AREA, CROP_RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
"""Ranges of a crop's share of the area, and of its width / height (timm/data/transforms_factory.py)."""
ERASE_PROBABILITY = 0.25
"""Probability of erasing a rectangle (DeiT's --reprob)."""
ERASE_AREA, ERASE_RATIO = (0.02, 1 / 3), (0.3, 1 / 0.3)
"""Ranges of its share of the area, and of its height / width (timm/data/random_erasing.py)."""
MAX_TRIALS = 10
"""Maximum number of draws until a crop or rectangle fits."""
RESIZE_RATIO = 256 / 224
"""Shorter side of a resized evaluation image, relative to its crop."""

Box = tuple[int, int, int, int]


def log_uniform(limits: tuple[float, float], rng: np.random.Generator) -> float:
    """Samples a number from a range, uniformly in its logarithm."""
    return math.exp(rng.uniform(*map(math.log, limits)))


def random_crop_box(width: int, height: int, rng: np.random.Generator) -> Box:
    """Samples a crop (left, top, right, bottom).

    The area is uniform in CROP_AREA, the aspect ratio log-uniform in CROP_RATIO, and the position uniform.
    If no draw fits, the largest centered crop with a valid ratio is returned.
    """
    for _ in range(MAX_TRIALS):
        area, ratio = rng.uniform(*CROP_AREA) * width * height, log_uniform(CROP_RATIO, rng)
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = (int(rng.integers(room + 1)) for room in (width - w, height - h))
            return left, top, left + w, top + h
    w = min(width, round(height * CROP_RATIO[1]))
    h = min(height, round(width / CROP_RATIO[0]))
    return center_box(width, height, w, h)


def center_box(width: int, height: int, w: int, h: int) -> Box:
    """Returns the centered box of size ``w`` x ``h``."""
    left, top = round((width - w) / 2), round((height - h) / 2)
    return left, top, left + w, top + h


def random_resized_crop(image: Image.Image, size: int, rng: np.random.Generator) -> Image.Image:
    """Returns a random crop, resized to ``size`` pixels and flipped with probability 0.5."""
    # Not resize(box=...), which also uses the pixels around the box.
    crop = image.crop(random_crop_box(*image.size, rng)).resize((size, size), Image.Resampling.BICUBIC)
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else crop


def resize_and_center_crop(image: Image.Image, size: int) -> Image.Image:
    """Resizes the shorter side to 256/224 of ``size`` and returns the center crop, for evaluation.

    An image of exactly ``size`` x ``size`` is returned unchanged, as DeiT does for CIFAR.
    """
    width, height = image.size
    if (width, height) == (size, size):
        return image
    shorter = int(size * RESIZE_RATIO)
    w, h = (int(shorter * side / min(width, height)) for side in (width, height))
    return image.resize((w, h), Image.Resampling.BICUBIC).crop(center_box(w, h, size, size))


def normalize(image: Image.Image) -> Tensor:
    """Returns a (3, height, width) tensor, scaled to 0..1 and normalized by MEAN and STD."""
    # Permuting bytes is faster than permuting floats.
    values = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().to(torch.float32)
    return values.sub_(MEAN_STD_255[0]).div_(MEAN_STD_255[1])


def random_erase_box(height: int, width: int, rng: np.random.Generator) -> tuple[slice, slice] | None:
    """Samples the rows and columns of a rectangle, or returns None if no draw fits.

    The area is uniform in ERASE_AREA, the aspect ratio log-uniform in ERASE_RATIO, the position uniform.
    """
    for _ in range(MAX_TRIALS):
        area, ratio = rng.uniform(*ERASE_AREA) * height * width, log_uniform(ERASE_RATIO, rng)
        h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if h < height and w < width:
            top, left = (int(rng.integers(room + 1)) for room in (height - h, width - w))
            return slice(top, top + h), slice(left, left + w)
    return None


def random_erase(pixels: Tensor, rng: np.random.Generator) -> None:
    """Fills, with probability ERASE_PROBABILITY, a rectangle of normalized ``pixels`` with N(0, 1) noise."""
    if rng.random() < ERASE_PROBABILITY and (box := random_erase_box(*pixels.shape[1:], rng)):
        region = pixels[:, *box]
        region.copy_(torch.from_numpy(rng.standard_normal(tuple(region.shape), np.float32)))
