"""What becomes of a picture on its way into the model: cropped, flipped, changed, standardized, erased.

These are the steps of DeiT (Touvron et al. 2021), with the numbers of its code (facebookresearch/deit,
main.py) and, where that says nothing, of timm 0.3.2, which it uses. All randomness is of the generator that
is given.
"""

import math

import numpy as np
import torch
from PIL import Image
from torch import Tensor

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's, of values from 0 to 1 (timm/data/constants.py)."""
OF_255 = [255 * torch.tensor(numbers)[:, None, None] for numbers in (MEAN, STD)]
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
"""The least and the most of a crop: of all area, and width / height (timm/data/transforms_factory.py)."""
ERASED = 0.25
"""The probability that a rectangle is erased (deit's --reprob)."""
ERASED_AREA, ERASED_RATIO = (0.02, 1 / 3), (0.3, 1 / 0.3)
"""The least and the most of it: of all area, and height / width (timm/data/random_erasing.py)."""
TRIALS = 10
"""Of a crop or a rectangle, until one fits."""
EVALUATED = 256 / 224
"""How much longer than a crop the shorter side of a picture is that is evaluated."""

Box = tuple[int, int, int, int]


def log_uniform(limits: tuple[float, float], rng: np.random.Generator) -> float:
    """Returns a number between the two whose logarithm is uniform."""
    return math.exp(rng.uniform(*map(math.log, limits)))


def random_box(width: int, height: int, rng: np.random.Generator) -> Box:
    """Returns left, top, right and bottom of a crop.

    Its area is uniform in AREA and the logarithm of its ratio in that of RATIO; then its place is uniform.
    Where ten in a row do not fit, it is the largest one in the middle with a ratio that is allowed.
    """
    for _ in range(TRIALS):
        area, ratio = rng.uniform(*AREA) * width * height, log_uniform(RATIO, rng)
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = (int(rng.integers(room + 1)) for room in (width - w, height - h))
            return left, top, left + w, top + h
    w = min(width, round(height * RATIO[1]))
    h = min(height, round(width / RATIO[0]))
    return middle(width, height, w, h)


def middle(width: int, height: int, w: int, h: int) -> Box:
    """Returns the box of this size in the middle."""
    left, top = round((width - w) / 2), round((height - h) / 2)
    return left, top, left + w, top + h


def cropped(image: Image.Image, size: int, rng: np.random.Generator) -> Image.Image:
    """Returns a random crop of a picture in ``size`` x ``size`` pixels, half of the time its mirror image."""
    # Pillow's resize with a box would look at the pixels around it, too.
    crop = image.crop(random_box(*image.size, rng)).resize((size, size), Image.Resampling.BICUBIC)
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else crop


def evaluated(image: Image.Image, size: int) -> Image.Image:
    """Returns the middle of a picture, ``size`` x ``size``, once its shorter side is 256 for 224 pixels.

    A picture that has just this size stays as it is, as the small ones of CIFAR do in DeiT.
    """
    width, height = image.size
    if (width, height) == (size, size):
        return image
    shorter = int(size * EVALUATED)
    w, h = (int(shorter * side / min(width, height)) for side in (width, height))
    return image.resize((w, h), Image.Resampling.BICUBIC).crop(middle(w, h, size, size))


def standardized(image: Image.Image) -> Tensor:
    """Returns the values (3, height, width) of a picture: from 0 to 1, then less MEAN and by STD."""
    # Bytes change their order faster than floats do.
    values = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().to(torch.float32)
    return values.sub_(OF_255[0]).div_(OF_255[1])


def erased_box(height: int, width: int, rng: np.random.Generator) -> tuple[slice, slice] | None:
    """Returns the rows and columns of a rectangle, or None if ten in a row do not fit.

    Its area is uniform in ERASED_AREA and the logarithm of its ratio in that of ERASED_RATIO; then its place.
    """
    for _ in range(TRIALS):
        area, ratio = rng.uniform(*ERASED_AREA) * height * width, log_uniform(ERASED_RATIO, rng)
        h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if h < height and w < width:
            top, left = (int(rng.integers(room + 1)) for room in (height - h, width - w))
            return slice(top, top + h), slice(left, left + w)
    return None


def erase(pixels: Tensor, rng: np.random.Generator) -> None:
    """Fills, with probability ERASED, a rectangle of standardized ``pixels`` with noise of N(0, 1) each."""
    if rng.random() < ERASED and (box := erased_box(*pixels.shape[1:], rng)):
        place = pixels[:, *box]
        place.copy_(torch.from_numpy(rng.standard_normal(tuple(place.shape), np.float32)))
