"""Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019) as in DeiT (timm 0.3.2, timm/data/mixup.py)."""

import math

import numpy as np
import torch
from torch import Tensor

MIXUP_ALPHA, CUTMIX_ALPHA = 0.8, 1.0
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


def mix(pixels: Tensor, targets: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Mixes a batch of images x with the reversed batch x', by Mixup or CutMix with one random λ.

    Mixup computes λ x + (1 - λ) x'. CutMix copies a box with a share 1 - λ of the area from x' to x; the box
    is clipped to the image, and λ is recomputed from the clipped box.

    Args:
        pixels: Images (B, 3, H, W), changed in place.
        targets: Targets (B, classes) of :func:`soft_targets`.
        rng: Random number generator.

    Returns:
        ``pixels`` and the mixed targets, λ targets + (1 - λ) reversed targets.
    """
    if rng.random() < CUTMIX_PROBABILITY:
        rows, columns = cutmix_box(*pixels.shape[2:], rng.beta(CUTMIX_ALPHA, CUTMIX_ALPHA), rng)
        box = pixels[:, :, rows, columns]
        box.copy_(box.flip(0))
        weight = 1 - box[0, 0].numel() / pixels[0, 0].numel()
    else:
        weight = rng.beta(MIXUP_ALPHA, MIXUP_ALPHA)
        pixels.lerp_(pixels.flip(0), 1 - weight)
    return pixels, weight * targets + (1 - weight) * targets.flip(0)


def cutmix_box(height: int, width: int, weight: float, rng: np.random.Generator) -> tuple[slice, slice]:
    """Returns the rows and columns of a box with a random center.

    The box covers a share 1 - ``weight`` of the area before it is clipped to the image.
    """
    sides = []
    for side in (height, width):
        half, center = int(side * math.sqrt(1 - weight)) // 2, int(rng.integers(side))
        sides.append(slice(max(center - half, 0), min(center + half, side)))
    return tuple(sides)
