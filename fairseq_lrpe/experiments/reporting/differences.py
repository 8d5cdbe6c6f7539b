"""The rule that decides whether methods differ, for tables, the atlas, notes and ``lrpe compare``.

Methods a and b differ if the simultaneous 95% interval of the mean of a - b excludes 0. The interval covers
all pairs of the methods of a column at once, so that choosing the best method needs no further correction.
Its half width is the larger one of

- Tukey (1949), Kramer (1956): ``q(k, sum(n_i - 1)) * sqrt(s² (1 / n + 1 / n) / 2)``, where s² is the variance
  of the seeds, pooled over the k methods
- Games & Howell (1976): ``q(k, ν) * sqrt((s_a² / n + s_b² / n) / 2)`` with Welch's degrees of freedom ν

``q`` is the 95% quantile of the studentized range and n the number of seeds that a and b have in common.
Neither interval is sufficient: the first one is too narrow if the variances differ, the second one if three
seeds agree by chance, as they do if each training either solves a task or does not. docs/experiments.md has
the simulated error rates.
"""

import math
from collections.abc import Hashable, Iterable, Mapping
from functools import cache

import numpy as np
from scipy import integrate, special, stats

LEVEL = 0.95
LEAST_SEEDS = 3
"""Smallest number of common seeds for which an interval is computed."""
INTERVALS = "simultaneous 95% interval of three or more seeds"
LOGARITHMIC = ("perplexity",)
"""Metrics that are compared by their logarithms; a perplexity is the exponential of a mean loss."""
NO_DIFFERENCE = {"difference": math.nan, "low": math.nan, "high": math.nan, "common_seeds": 0, "compared": 0}
POINTS = 800  # of the integrals over the range and over the standard deviation


class Differences:
    """The differences between the methods of a column.

    Args:
        values: {method: {seed: value}}; methods with fewer than three finite values do not count.
        metric: name of the measured metric, or None.
    """

    def __init__(self, values: Mapping[Hashable, Mapping[int, float]], metric: str | None):
        self.values = values
        self.is_logarithmic = metric in LOGARITHMIC
        self.methods = 0
        self.freedom = 0
        squares = 0
        for seeds in values.values():
            sample = self._transformed(seeds.values())
            sample = sample[np.isfinite(sample)]
            if len(sample) >= LEAST_SEEDS:
                self.methods += 1
                self.freedom += len(sample) - 1
                squares += sample.var(ddof=1) * (len(sample) - 1)
        self.variance = squares / self.freedom if self.freedom else math.nan

    def between(self, ours: Hashable, base: Hashable) -> dict[str, float]:
        """Returns the mean difference ours - base over the common seeds with its simultaneous interval.

        The result has the keys difference, low, high, common_seeds, and compared, the number of methods for
        whose comparisons the interval is corrected. The interval is NaN for fewer than three common seeds.
        The difference of perplexities is that of their geometric means.
        """
        a = []
        b = []
        for seed, value in self.values[ours].items():
            if seed in self.values[base]:
                a.append(value)
                b.append(self.values[base][seed])
        if not a:
            return NO_DIFFERENCE
        a = self._transformed(a)
        b = self._transformed(b)
        with np.errstate(invalid="ignore"):  # if a run diverged
            mean = a.mean() - b.mean()
            half = self._half_width(a, b)
            interval = np.array([mean, mean - half, mean + half])
            if self.is_logarithmic:
                interval = np.exp(b.mean()) * np.expm1(interval)
        difference, low, high = interval.tolist()
        return {
            "difference": difference,
            "low": low,
            "high": high,
            "common_seeds": len(a),
            "compared": self.methods,
        }

    def is_different(self, ours: Hashable, base: Hashable) -> bool:
        difference = self.between(ours, base)
        return difference["low"] > 0 or difference["high"] < 0

    def _transformed(self, values):
        numbers = np.array([*values], dtype=float)
        with np.errstate(invalid="ignore", divide="ignore"):  # if a run diverged
            return np.log(numbers) if self.is_logarithmic else numbers

    def _half_width(self, a, b):
        if len(a) < LEAST_SEEDS or not np.isfinite([*a, *b]).all():
            return math.nan
        errors = np.array([a.var(ddof=1), b.var(ddof=1)]) / len(a)
        pooled = quantile(self.methods, self.freedom) * math.sqrt(self.variance / len(a))
        if not errors.any():
            return pooled
        freedom = errors.sum() ** 2 / (errors**2).sum() * (len(a) - 1)
        # Rounded down to one decimal, so that few different quantiles are computed.
        freedom = math.floor(freedom * 10 + 1e-9) / 10
        separate = quantile(self.methods, freedom) * math.sqrt(errors.sum() / 2)
        return max(pooled, separate)


def corrected_for(methods: Iterable[int]) -> str:
    """Returns a text that says for which comparisons intervals are corrected.

    Args:
        methods: number of compared methods of each column.
    """
    counts = sorted({number for number in methods if number > 1})
    if not counts:
        return "fewer than three seeds: no intervals"
    return f"corrected for all pairs of {' or '.join(map(str, counts))} methods of a column and attention"


@cache
def quantile(methods: int, freedom: float) -> float:
    """Returns the 95% quantile of the studentized range of ``methods`` means.

    scipy.stats.studentized_range.ppf returns the same within 0.1%, but takes a second for each value.

    Args:
        methods: the number of means.
        freedom: the degrees of freedom of the variance.
    """
    ranges, probabilities = _range_distribution(methods)
    levels = (np.arange(POINTS) + 0.5) / POINTS
    deviations = np.sqrt(stats.chi2.ppf(levels, freedom) / freedom)
    low = 0.0
    high = 1000.0
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        if np.interp(middle * deviations, ranges, probabilities).mean() < LEVEL:
            low = middle
        else:
            high = middle
    return high


@cache
def _range_distribution(methods):
    """Returns ranges r, and for each the probability that ``methods`` normal numbers have a range below r."""
    ranges = np.linspace(0, 12, POINTS)
    smallest = np.linspace(-9, 9, POINTS)
    inside = special.ndtr(smallest + ranges[:, None]) - special.ndtr(smallest)
    density = methods * stats.norm.pdf(smallest) * inside ** (methods - 1)
    return ranges, integrate.trapezoid(density, smallest, axis=1)
