"""Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019) of a batch, as in DeiT: timm/data/mixup.py 0.3.2."""

import math

import numpy as np
import torch
from torch import Tensor

MIXUP, CUTMIX = 0.8, 1.0
"""λ is of Beta(α, α) with this α (deit's --mixup and --cutmix)."""
SWITCH = 0.5
"""The probability that it is CutMix (deit's --mixup-switch-prob)."""


def soft_targets(labels: Tensor, classes: int, smoothing: float) -> Tensor:
    """Returns (B, classes): 1 - smoothing at the label, and smoothing / classes more everywhere.

    They are float64, of which fairseq makes no half precision.
    """
    targets = torch.full((len(labels), classes), smoothing / classes, dtype=torch.float64)
    targets[torch.arange(len(labels)), labels] += 1 - smoothing
    return targets


def mix(pixels: Tensor, targets: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Mixes a batch with itself in the opposite order, with one λ; ``pixels`` are changed in their place.

    Mixup is λ x + (1 - λ) x'. CutMix puts a box of x' into x, of a part 1 - λ of the picture before what
    stands out of it is cut off; λ is then what is left of x. Targets are mixed by λ. A picture in the middle
    is mixed with itself.

    Args:
        pixels: (B, 3, H, W).
        targets: (B, classes), as :func:`soft_targets` makes them of labels.
    """
    if rng.random() < SWITCH:
        rows, columns = cut_box(*pixels.shape[2:], rng.beta(CUTMIX, CUTMIX), rng)
        place = pixels[:, :, rows, columns]
        place.copy_(place.flip(0))
        left = 1 - place[0, 0].numel() / pixels[0, 0].numel()
    else:
        left = rng.beta(MIXUP, MIXUP)
        pixels.lerp_(pixels.flip(0), 1 - left)
    return pixels, left * targets + (1 - left) * targets.flip(0)


def cut_box(height: int, width: int, left: float, rng: np.random.Generator) -> tuple[slice, slice]:
    """Returns rows and columns of the box that replaces 1 - ``left`` of a picture, around a uniform pixel."""
    sides = []
    for side in (height, width):
        half, centre = int(side * math.sqrt(1 - left)) // 2, int(rng.integers(side))
        sides.append(slice(max(centre - half, 0), min(centre + half, side)))
    return tuple(sides)
