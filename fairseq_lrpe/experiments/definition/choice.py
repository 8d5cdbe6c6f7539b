"""The choice of the best of several scores, those of trials, of a table's columns, or of runs."""

import math
from collections.abc import Sequence


def best_by_score(scores: Sequence[float], better: str) -> int:
    """Returns the index of the best score; if several scores are the best, the index of the first.

    Args:
        scores: measured values. NaN, the score of a diverged run, is worse than any number.
        better: "higher" or "lower".
    """
    sign = 1 if better == "higher" else -1

    def rank(index):
        score = scores[index]
        return (False, 0.0) if math.isnan(score) else (True, sign * score)

    return max(range(len(scores)), key=rank)
