"""Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019) as in DeiT (timm 0.3.2, timm/data/mixup.py)."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fairseq_lrpe.data.image_transforms import Region

MIXUP_ALPHA = 0.8
CUTMIX_ALPHA = 1.0
"""Parameter α of the distribution λ ~ Beta(α, α) (DeiT's --mixup and --cutmix)."""
CUTMIX_PROBABILITY = 0.5
"""Probability of CutMix instead of Mixup (DeiT's --mixup-switch-prob)."""


def soft_targets(labels: Tensor, classes: int, smoothing: float) -> Tensor:
    """Returns smoothed one-hot targets (B, classes): (1 - smoothing) one_hot(label) + smoothing / classes.

    The targets are float64 because fairseq would convert float32 to half precision.
    """
    targets = torch.full((len(labels), classes), smoothing / classes, dtype=torch.float64)
    targets[torch.arange(len(labels)), labels] += 1 - smoothing
    return targets


@dataclass
class Mixing:
    """Mixing of each image x of a batch with the image x' at its place in the reversed batch.

    Args:
        weight: weight λ of x in the targets and, without a box, in the pixels: λ x + (1 - λ) x' (Mixup).
        box: rows and columns of the pixels that are copied from x' to x (CutMix); None for Mixup.
    """

    weight: float
    box: Region | None = None

    def mix_images(self, pixels: Tensor) -> None:
        if self.box:
            region = pixels[(..., *self.box)]
            region.copy_(region.flip(0))
        else:
            pixels.lerp_(pixels.flip(0), 1 - self.weight)

    def mix_targets(self, targets: Tensor) -> Tensor:
        """Returns λ t + (1 - λ) t' for :func:`soft_targets` t (B, classes), which are t' in reverse order."""
        return self.weight * targets + (1 - self.weight) * targets.flip(0)


def random_mixing(height: int, width: int, rng: np.random.Generator) -> Mixing:
    """Returns Mixup or CutMix with a random λ.

    The box of CutMix covers a share 1 - λ of the area; it is clipped to the image, and λ is recomputed from
    the clipped box.
    """
    if rng.random() >= CUTMIX_PROBABILITY:
        return Mixing(rng.beta(MIXUP_ALPHA, MIXUP_ALPHA))
    box = cutmix_box(height, width, rng.beta(CUTMIX_ALPHA, CUTMIX_ALPHA), rng)
    rows, columns = box
    area = (rows.stop - rows.start) * (columns.stop - columns.start)
    return Mixing(1 - area / (height * width), box)


def cutmix_box(height: int, width: int, weight: float, rng: np.random.Generator) -> Region:
    """Returns the rows and columns of a box with a random center.

    The box covers a share 1 - ``weight`` of the area before it is clipped to the image.
    """
    sides = []
    for side in (height, width):
        half = int(side * math.sqrt(1 - weight)) // 2
        center = int(rng.integers(side))
        sides.append(slice(max(center - half, 0), min(center + half, side)))
    return tuple(sides)
