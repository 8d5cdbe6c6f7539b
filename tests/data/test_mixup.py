"""Mixup and CutMix of a batch, compared with their definitions."""

import math

import numpy as np
import torch
from scipy.stats import kstest

from fairseq_lrpe.data import mixup as module
from fairseq_lrpe.data.mixup import cutmix_box, random_mixing, soft_targets

LABELS = torch.tensor([2, 0, 1, 3, 3])


def test_soft_targets():
    """As in timm: smoothing / classes, plus 1 - smoothing at the label."""
    found = soft_targets(LABELS, 4, 0.1)
    expected = torch.full((5, 4), 0.025, dtype=torch.float64)
    for row, label in enumerate(LABELS):
        expected[row, label] = 0.925
    torch.testing.assert_close(found, expected)
    assert torch.equal(soft_targets(LABELS, 4, 0.0), torch.nn.functional.one_hot(LABELS, 4).double())


def mixed(seed):
    """Returns a batch, the mixed batch, and the weight of the original images in its targets."""
    pixels = torch.rand(5, 3, 12, 18, generator=torch.Generator().manual_seed(seed))
    targets = soft_targets(torch.arange(5), 5, 0.0)
    mixing, found = random_mixing(12, 18, np.random.default_rng(seed)), pixels.clone()
    mixing.mix_images(found)
    soft = mixing.mix_targets(targets)
    left = soft[0, 0].item()
    torch.testing.assert_close(soft, left * targets + (1 - left) * targets.flip(0))
    return pixels, found, left


def test_pixels_match_targets():
    """Pixels are λ x + (1 - λ) x', or x' in one box with 1 - λ of the area and x elsewhere."""
    kinds = {"mixup": [], "cutmix": []}
    for seed in range(300):
        x, found, left = mixed(seed)
        other = x.flip(0)
        pasted = (found[:2] == other[:2]).all(1)
        if ((found[:2] == x[:2]).all(1) | pasted).all():
            kinds["cutmix"].append(left)
            box = pasted[0]
            assert torch.equal(pasted[0], pasted[1]) and left == 1 - box.sum().item() / box.numel()
            assert box.sum() == box.any(0).sum() * box.any(1).sum()
            assert torch.equal(found, torch.where(box, other, x))
        else:
            kinds["mixup"].append(left)
            torch.testing.assert_close(found, left * x + (1 - left) * other)
        assert torch.equal(found[2], x[2])  # with itself
    assert 110 < len(kinds["cutmix"]) < 190


def test_distribution_of_lambda(monkeypatch):
    """Beta(0.8, 0.8) in Mixup; uniform in CutMix, before clipping the box."""
    drawn, mixup = [], []
    monkeypatch.setattr(
        module, "cutmix_box", lambda h, w, left, rng: drawn.append(left) or (slice(0, 1),) * 2
    )
    for seed in range(3000):
        before = len(drawn)
        mixing = random_mixing(2, 2, np.random.default_rng(seed))
        assert (mixing.box is None) == (len(drawn) == before)
        if mixing.box is None:
            mixup.append(mixing.weight)
    assert abs(len(mixup) - 1500) < 140
    assert kstest(mixup, "beta", args=(0.8, 0.8)).pvalue > 1e-3 > kstest(mixup, "uniform").pvalue
    assert kstest(drawn, "uniform").pvalue > 1e-3


def test_distribution_of_boxes():
    """√(1 - λ) of each side, around a uniform pixel, clipped to the image."""
    rng = np.random.default_rng(0)
    for _ in range(2000):
        left = rng.uniform()
        rows, columns = cutmix_box(100, 60, left, rng)
        for side, found in ((100, rows), (60, columns)):
            half = int(side * math.sqrt(1 - left)) // 2
            assert 0 <= found.start <= found.stop <= side and found.stop - found.start <= 2 * half
            if found.start > 0 and found.stop < side:
                assert found.stop - found.start == 2 * half
    starts = [cutmix_box(1000, 1000, 1 - 1e-5, rng) for _ in range(2000)]
    for axis in (0, 1):
        middles = np.array([(box[axis].start + box[axis].stop) / 2 for box in starts])
        assert kstest(middles / 1000, "uniform").pvalue > 1e-3
