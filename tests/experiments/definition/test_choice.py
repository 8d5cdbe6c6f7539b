"""The best of several scores."""

import math

import pytest

from fairseq_lrpe.experiments.definition.choice import best_by_score


@pytest.mark.parametrize("scores, lowest, highest", [
    ([3.0, 1.0, 2.0], 1, 0),
    ([2.0, 1.0, 1.0, 2.0], 1, 0),  # the first of equal ones
    ([math.nan, 5.0, math.nan], 1, 1),
    ([math.nan, math.inf], 1, 1),
    ([math.inf, 7.0, -math.inf], 2, 0),
    ([math.nan, math.nan], 0, 0),
])  # fmt: skip
def test_best_score(scores, lowest, highest):
    assert best_by_score(scores, "lower") == lowest
    assert best_by_score(scores, "higher") == highest
