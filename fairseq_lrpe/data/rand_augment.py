"""RandAugment (Cubuk et al. 2020) as in DeiT: rand-m9-mstd0.5-inc1 of timm 0.3.2 (timm/data/auto_augment.py).

Two of 15 operations are drawn with replacement, and each is applied with probability 0.5. The magnitude of an
operation is drawn from a normal distribution with mean 9 and standard deviation 0.5, and clipped to 0..10.
Greater magnitudes cause stronger changes ("inc1"). Pixels from outside the image get ImageNet's mean color.
Resampling is bicubic, like DeiT's --train-interpolation.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from fairseq_lrpe.data.image_transforms import MEAN

NUM_OPERATIONS = 2
PROBABILITY = 0.5
LEVEL = 9
LEVEL_STD = 0.5
MAX_LEVEL = 10
FILL = tuple(round(255 * mean) for mean in MEAN)
RESAMPLING = {"resample": Image.Resampling.BICUBIC, "fillcolor": FILL}


def affine(matrix: Callable[[Image.Image, float], tuple], image: Image.Image, value: float) -> Image.Image:
    """Returns an affinely transformed image.

    The output pixel (x, y) is the input pixel (a x + b y + c, d x + e y + f), where (a, b, c, d, e, f) is
    ``matrix(image, value)``.
    """
    return image.transform(image.size, Image.Transform.AFFINE, matrix(image, value), **RESAMPLING)


def rotate(image: Image.Image, degrees: float) -> Image.Image:
    return image.rotate(degrees, **RESAMPLING)


def enhance(kind: type, image: Image.Image, factor: float) -> Image.Image:
    return kind(image).enhance(factor)


def posterize(image: Image.Image, bits: int) -> Image.Image:
    """Returns an image with only the leading bits of each value; unlike Pillow's, with 0 bits, too."""
    return image.point([value >> 8 - bits << 8 - bits for value in range(256)] * 3)


def solarize_add(image: Image.Image, add: int) -> Image.Image:
    return image.point([min(255, value + add) if value < 128 else value for value in range(256)] * 3)


class Operation(NamedTuple):
    """An image operation.

    Attributes:
        apply: function of an image and, if ``number`` is not None, a number.
        number: function that maps the magnitude, from 0 to 10, to this number.
        signed: whether the magnitude gets a random sign.
    """

    apply: Callable[[Image.Image, float], Image.Image]
    number: Callable[[float], float] | None = None
    signed: bool = False

    def __call__(self, image: Image.Image, level: float, negative: bool) -> Image.Image:
        """Returns the transformed image for a magnitude ``level``, negative if ``negative`` and signed."""
        if self.number is None:
            return self.apply(image)
        return self.apply(image, self.number(-level if negative and self.signed else level))


def enhance_operation(kind: type) -> Operation:
    """Returns the operation :func:`enhance` with the factor 1 at level 0 and 1 ± 0.9 at the maximum."""
    return Operation(partial(enhance, kind), lambda level: 1 + 0.9 * level / MAX_LEVEL, signed=True)


def affine_operation(matrix: Callable[[Image.Image, float], tuple], maximum: float) -> Operation:
    """Returns the operation :func:`affine` with ± ``maximum`` at the maximum level and 0 at level 0."""
    return Operation(partial(affine, matrix), lambda level: maximum * level / MAX_LEVEL, signed=True)


OPERATIONS = {
    "AutoContrast": Operation(ImageOps.autocontrast),
    "Equalize": Operation(ImageOps.equalize),
    "Invert": Operation(ImageOps.invert),
    "Rotate": Operation(rotate, lambda level: 30 * level / MAX_LEVEL, signed=True),
    "Posterize": Operation(posterize, lambda level: 4 - int(4 * level / MAX_LEVEL)),
    "Solarize": Operation(ImageOps.solarize, lambda level: 256 - int(256 * level / MAX_LEVEL)),
    "SolarizeAdd": Operation(solarize_add, lambda level: int(110 * level / MAX_LEVEL)),
    "Color": enhance_operation(ImageEnhance.Color),
    "Contrast": enhance_operation(ImageEnhance.Contrast),
    "Brightness": enhance_operation(ImageEnhance.Brightness),
    "Sharpness": enhance_operation(ImageEnhance.Sharpness),
    "ShearX": affine_operation(lambda image, x: (1, x, 0, 0, 1, 0), 0.3),
    "ShearY": affine_operation(lambda image, y: (1, 0, 0, y, 1, 0), 0.3),
    "TranslateX": affine_operation(lambda image, x: (1, 0, x * image.width, 0, 1, 0), 0.45),
    "TranslateY": affine_operation(lambda image, y: (1, 0, 0, 0, 1, y * image.height), 0.45),
}


def rand_augment(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    operations = list(OPERATIONS.values())
    for number in rng.integers(len(operations), size=NUM_OPERATIONS):
        if rng.random() < PROBABILITY:
            level = min(max(rng.normal(LEVEL, LEVEL_STD), 0), MAX_LEVEL)
            image = operations[number](image, level, rng.random() < 0.5)
    return image
