"""RandAugment: operations compared with their definitions, magnitudes, and distributions."""

import math

import numpy as np
import pytest
from PIL import Image
from scipy.stats import chisquare, kstest, norm

from fairseq_lrpe.data import rand_augment as module
from fairseq_lrpe.data.rand_augment import FILL, OPERATIONS, Operation, rand_augment

VALUES = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)
SLOPE = np.repeat(np.arange(20, 220, dtype=np.uint8)[None, :, None], 120, axis=0).repeat(3, axis=2)
"""Values proportional to x, which bicubic resampling reproduces exactly."""

NUMBERS = {  # at the levels 0, 9 and 10
    "Rotate": (0, 27, 30),
    "Posterize": (4, 1, 0),
    "Solarize": (256, 26, 0),
    "SolarizeAdd": (0, 99, 110),
    **dict.fromkeys(("Color", "Contrast", "Brightness", "Sharpness"), (1, 1.81, 1.9)),
    **dict.fromkeys(("ShearX", "ShearY"), (0, 0.27, 0.3)),
    **dict.fromkeys(("TranslateX", "TranslateY"), (0, 0.405, 0.45)),
}


def done(name, level, negative=False, values=VALUES):
    return np.asarray(OPERATIONS[name](Image.fromarray(values), level, negative)).astype(int)


def near(found, expected, atol=1):
    np.testing.assert_allclose(found, np.clip(expected, 0, 255), rtol=0, atol=atol)


@pytest.mark.parametrize("name", OPERATIONS)
def test_arguments_of_operations(name):
    number, signed = OPERATIONS[name].number, OPERATIONS[name].signed
    if name not in NUMBERS:
        assert number is None and not signed
        return
    assert [number(level) for level in (0, 9, 10)] == pytest.approx(NUMBERS[name])
    assert signed == (name not in ("Posterize", "Solarize", "SolarizeAdd"))
    if signed:
        assert number(-9) == pytest.approx(2 * number(0) - number(9))


def test_operations_on_values():
    x = VALUES.astype(int)
    near(done("Invert", 9), 255 - x, 0)
    near(done("Posterize", 9), x & 128, 0)
    near(done("Posterize", 10), 0 * x, 0)
    near(done("Solarize", 9), np.where(x < 26, x, 255 - x), 0)
    near(done("SolarizeAdd", 9), np.where(x < 128, x + 99, x), 0)
    for negative, factor in ((False, 1.81), (True, 0.19)):
        grey = x @ (0.299, 0.587, 0.114)
        near(done("Brightness", 9, negative), factor * x, 1)
        near(done("Color", 9, negative), grey[..., None] + factor * (x - grey[..., None]), 2)
        near(done("Contrast", 9, negative), grey.mean() + factor * (x - grey.mean()), 2)


@pytest.mark.parametrize("negative", [False, True])
def test_geometric_operations(negative):
    """Output pixel (x, y) is the input pixel at the transformed position, or FILL outside of the image."""
    sign = -1 if negative else 1
    y, x = np.mgrid[:120, :200] + 0.5
    cos, sin = math.cos(math.radians(27)), sign * math.sin(math.radians(27))
    places = {
        "ShearX": (x + 0.27 * sign * y, y),
        "ShearY": (x, y + 0.27 * sign * x),
        "TranslateX": (x + 0.405 * sign * 200, y),
        "TranslateY": (x, y + 0.405 * sign * 120),
        "Rotate": (100 + cos * (x - 100) - sin * (y - 60), 60 + sin * (x - 100) + cos * (y - 60)),
    }
    for name, (columns, rows) in places.items():
        found = done(name, 9, negative, SLOPE)
        within = (columns > 3) & (columns < 197) & (rows > 3) & (rows < 117)
        outside = (columns < -1) | (columns > 201) | (rows < -1) | (rows > 121)
        assert within.sum() > 5000 and outside.sum() > 500
        near(found[within], (19.5 + columns[within])[:, None].repeat(3, axis=1), 1)
        assert (found[outside] == FILL).all() and FILL == (124, 116, 104)


def test_distribution_of_operations(monkeypatch):
    """Two of 15 with probability 0.5 each, half of them negative, with magnitudes from N(9, 0.5) up to 10."""
    seen = []
    numbers = {
        name: Operation(lambda image, value, name=name: seen.append((name, value)) or image, float, True)
        for name in OPERATIONS
    }
    monkeypatch.setattr(module, "OPERATIONS", numbers)
    rng, counts = np.random.default_rng(3), np.zeros(3)
    for _ in range(4000):
        before = len(seen)
        rand_augment(None, rng)
        counts[len(seen) - before] += 1
    assert chisquare(counts, [1000, 2000, 1000]).pvalue > 1e-3
    each = [sum(name == other for other, _ in seen) for name in OPERATIONS]
    assert len(each) == 15 and chisquare(each).pvalue > 1e-3
    levels, normal = np.abs([level for _, level in seen]), norm(9, 0.5)
    assert levels.max() == 10 and abs((levels == 10).mean() - 0.0228) < 0.01
    assert kstest(levels[levels < 10], lambda x: normal.cdf(x) / normal.cdf(10)).pvalue > 1e-3
    assert abs(np.mean([level > 0 for _, level in seen]) - 0.5) < 0.04
