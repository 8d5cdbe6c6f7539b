"""RandAugment (Cubuk et al. 2020) as in DeiT: rand-m9-mstd0.5-inc1 of timm 0.3.2 (timm/data/auto_augment.py).

Two operations of 15, which may be the same, are drawn; each is done with probability 0.5 and a level of its
own from N(9, 0.5), cut to 0..10. What an operation does with a level is in the table; with more, it changes
more ("increasing"). Pixels from outside are the mean colour, and new places of pixels are bicubic, since
DeiT's --train-interpolation is.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from fairseq_lrpe.images.augment import MEAN

OPERATIONS_EACH, PROBABILITY = 2, 0.5
LEVEL, LEVEL_STD, MOST = 9, 0.5, 10
FILL = tuple(round(255 * mean) for mean in MEAN)
PLACED = {"resample": Image.Resampling.BICUBIC, "fillcolor": FILL}


def moved(matrix: Callable[[Image.Image, float], tuple], image: Image.Image, value: float) -> Image.Image:
    """Returns a picture whose pixel (x, y) is the one at (a x + b y + c, d x + e y + f) before."""
    return image.transform(image.size, Image.Transform.AFFINE, matrix(image, value), **PLACED)


def turned(image: Image.Image, degrees: float) -> Image.Image:
    """Returns a picture turned around its middle."""
    return image.rotate(degrees, **PLACED)


def enhanced(kind: type, image: Image.Image, factor: float) -> Image.Image:
    """Returns a picture with this part of its colour, contrast, brightness or sharpness."""
    return kind(image).enhance(factor)


def posterized(image: Image.Image, bits: int) -> Image.Image:
    """Returns a picture of whose values the first bits stay; unlike in Pillow, there may be none."""
    return image.point([value >> 8 - bits << 8 - bits for value in range(256)] * 3)


def brightened(image: Image.Image, add: int) -> Image.Image:
    """Returns a picture with ``add`` more in all that is darker than 128."""
    return image.point([min(255, value + add) if value < 128 else value for value in range(256)] * 3)


class Operation(NamedTuple):
    """What is done to a picture, with which number at which level, and whether its sign is random."""

    apply: Callable[[Image.Image, float], Image.Image]
    number: Callable[[float], float] | None = None
    signed: bool = False

    def __call__(self, image: Image.Image, level: float, negative: bool) -> Image.Image:
        """Returns the changed picture."""
        if self.number is None:
            return self.apply(image)
        return self.apply(image, self.number(-level if negative and self.signed else level))


def change(kind: type) -> Operation:
    """Returns the operation that goes with the level from 1 to 0.1 or to 1.9 of what ``kind`` enhances."""
    return Operation(partial(enhanced, kind), lambda level: 1 + 0.9 * level / MOST, signed=True)


def move(matrix: Callable[[Image.Image, float], tuple], most: float) -> Operation:
    """Returns the operation that goes up to ``most`` or -``most``."""
    return Operation(partial(moved, matrix), lambda level: most * level / MOST, signed=True)


OPERATIONS = {
    "AutoContrast": Operation(ImageOps.autocontrast),
    "Equalize": Operation(ImageOps.equalize),
    "Invert": Operation(ImageOps.invert),
    "Rotate": Operation(turned, lambda level: 30 * level / MOST, signed=True),
    "Posterize": Operation(posterized, lambda level: 4 - int(4 * level / MOST)),
    "Solarize": Operation(ImageOps.solarize, lambda level: 256 - int(256 * level / MOST)),
    "SolarizeAdd": Operation(brightened, lambda level: int(110 * level / MOST)),
    "Color": change(ImageEnhance.Color),
    "Contrast": change(ImageEnhance.Contrast),
    "Brightness": change(ImageEnhance.Brightness),
    "Sharpness": change(ImageEnhance.Sharpness),
    "ShearX": move(lambda image, x: (1, x, 0, 0, 1, 0), 0.3),
    "ShearY": move(lambda image, y: (1, 0, 0, y, 1, 0), 0.3),
    "TranslateX": move(lambda image, x: (1, 0, x * image.width, 0, 1, 0), 0.45),
    "TranslateY": move(lambda image, y: (1, 0, 0, 0, 1, y * image.height), 0.45),
}


def rand_augment(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Returns a picture after the operations that are drawn."""
    operations = list(OPERATIONS.values())
    for number in rng.integers(len(operations), size=OPERATIONS_EACH):
        if rng.random() < PROBABILITY:
            level = min(max(rng.normal(LEVEL, LEVEL_STD), 0), MOST)
            image = operations[number](image, level, rng.random() < 0.5)
    return image
