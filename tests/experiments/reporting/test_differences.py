"""The rule by which methods differ."""

import math
import re
from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from fairseq_lrpe.cli.results import RECORDED
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.reporting import differences
from fairseq_lrpe.experiments.reporting.cells import measure
from fairseq_lrpe.experiments.reporting.differences import Differences, quantile
from fairseq_lrpe.experiments.reporting.records import read_runs

METHODS, SEEDS, WORLDS = 38, 3, 2000
INTERVAL = re.compile(r"(-?[\d.]+)\s\[(-?[\d.]+),\s(-?[\d.]+)\]")


@pytest.mark.parametrize("methods, freedom", [(2, 4), (10, 2.5), (38, 76)])
def test_quantile(methods, freedom):
    assert quantile(methods, freedom) == pytest.approx(
        stats.studentized_range.ppf(0.95, methods, freedom), 1e-3
    )


def column(*samples):
    return {name: dict(enumerate(values, 1)) for name, values in enumerate(samples)}


def test_two_methods():
    """The interval is the wider one of Student's and Welch's, whose degrees of freedom are rounded down."""
    a, b = [22.0, 18.5, 19.0], [23.0, 21.5, 22.5]
    found = Differences(column(a, b), "accuracy").between(0, 1)
    student, welch = (stats.ttest_ind(a, b, equal_var=x).confidence_interval() for x in (True, False))
    assert welch.low < student.low
    assert found["difference"] == pytest.approx(np.mean(a) - np.mean(b)) and found["common_seeds"] == 3
    assert (found["low"], found["high"]) == pytest.approx((welch.low, welch.high), rel=0.05)
    assert found["low"] <= welch.low + 1e-3


def test_intervals_of_tukey():
    """With equal variances, the interval is that of scipy's Tukey test."""
    samples = [[x, x + 1, x + 2.5] for x in (1, 2.25, 30)]
    among, expected = Differences(column(*samples), None), stats.tukey_hsd(*samples).confidence_interval()
    found = among.between(0, 2)
    assert found["low"] <= expected.low[0, 2] + 1e-2 and found["high"] >= expected.high[0, 2] - 1e-2
    assert among.is_different(0, 2) and not among.is_different(0, 1) and found["compared"] == 3


def test_perplexities_are_compared_by_logarithms():
    samples = column([10.0, 11.0, 12.5], [20.0, 23.0, 21.0])
    found = Differences(samples, "perplexity").between(0, 1)
    logarithms = {name: {seed: math.log(x) for seed, x in of.items()} for name, of in samples.items()}
    base = stats.gmean([*samples[1].values()])
    expected = Differences(logarithms, "nats").between(0, 1)
    for name in ("difference", "low", "high"):
        assert found[name] == pytest.approx(base * math.expm1(expected[name]))


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_tell_nothing(seeds):
    among = Differences(column([1.0, 1.01, 1.02][:seeds], [9.0, 9.01, 9.02][:seeds]), None)
    assert math.isnan(among.between(0, 1)["low"]) and not among.is_different(0, 1)


def test_diverged_runs():
    among = Differences(column([1.0, 1.1, math.nan], [9.0, 9.1, 9.2], [1.0, 1.1, 1.05]), "perplexity")
    assert math.isnan(among.between(0, 1)["low"]) and among.is_different(1, 2)


def simulated(world):
    """Returns the fraction of worlds in which the rule tells any two methods apart.

    Only pairs are compared that one of the rule's two intervals could tell apart.
    """
    rng, false = np.random.default_rng(1), 0
    for _ in range(WORLDS):
        values = world(rng)
        among = Differences(dict(enumerate(dict(enumerate(of)) for of in values.tolist())), None)
        means, errors = values.mean(1), values.var(1, ddof=1) / SEEDS
        pooled = quantile(METHODS, among.freedom) * math.sqrt(among.variance / SEEDS)
        own = quantile(METHODS, 2 * (SEEDS - 1)) * np.sqrt((errors[:, None] + errors) / 2)
        pairs = np.argwhere(means[:, None] - means > np.minimum(pooled, own)).tolist()
        false += any(among.is_different(*pair) for pair in pairs)
    return false / WORLDS


SHAPE = METHODS, SEEDS
UNEQUAL = np.where(np.arange(METHODS) < 5, 10, 1)[:, None]
WORLD = {
    "equal variances": lambda rng: rng.normal(size=SHAPE),
    "unequal variances": lambda rng: rng.normal(size=SHAPE) * UNEQUAL,
    "log-normal variances": lambda rng: rng.normal(size=SHAPE) * np.exp(0.7 * rng.normal(size=(METHODS, 1))),
    "solved or not": lambda rng: np.where(rng.random(SHAPE) < 0.5, 100.0, 0.0),
    "rarely solved": lambda rng: np.where(rng.random(SHAPE) < 0.1, 100.0, 0.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLD)
def test_few_false_differences(name):
    """Among 38 equal encodings, at most 5% of the worlds have a difference."""
    assert simulated(WORLD[name]) <= 0.05


def test_a_large_difference_is_found():
    """A method that is 12 standard deviations behind is told apart from the best one in most worlds."""
    rng, found = np.random.default_rng(2), 0
    for _ in range(50):
        values = rng.normal(size=SHAPE)
        values[0] += 12
        among = Differences(dict(enumerate(dict(enumerate(of)) for of in values.tolist())), None)
        found += among.is_different(0, int(values.mean(1).argmin()))
    assert found > 40


def intervals(name, runs):
    """Yields (difference, low, high) of all pairs of rows of a table, by the rule."""
    columns, table = {}, Table(name, "mini")
    for cell in table.cells:
        if cell.runs or cell.trials:
            key = cell.attention, cell.column, cell.metric
            columns.setdefault(key, {})[cell.row] = measure(cell, runs).values
    for (*_, metric), rows in columns.items():
        among = Differences(rows, metric)
        for pair in permutations(rows, 2):
            found = among.between(*pair)
            if math.isfinite(found["low"]):
                yield found["difference"], found["low"], found["high"]


@pytest.mark.slow
def test_intervals_in_notes():
    """Each interval in a commentary is that of two rows of its table."""
    runs = {record.run: record for record in read_runs(RECORDED) if record.problem is None}
    checked = 0
    for path in sorted((RECORDED / "notes").glob("*.md")):
        quoted = INTERVAL.findall(path.read_text("utf-8"))
        if not quoted or path.stem == "quickstart":  # whose table has one seed
            continue
        known = np.array(list(intervals(path.stem, runs)))
        for texts in quoted:
            digits = [len(text.partition(".")[2]) for text in texts]
            numbers, precision = np.array(texts, dtype=float), 0.51 * 10.0 ** -np.array(digits)
            is_close = (np.abs(known - numbers) <= precision).all(1)
            is_reversed = (np.abs(known[:, [0, 2, 1]] + numbers) <= precision).all(1)
            assert (is_close | is_reversed).any(), (path.name, texts)
            checked += 1
    assert checked > 5


def test_words():
    expected = "corrected for all pairs of 8 or 38 methods of a column and attention"
    assert differences.corrected_for([38, 0, 8, 38]) == expected
    assert differences.corrected_for([0, 0]) == "fewer than three seeds: no intervals"
