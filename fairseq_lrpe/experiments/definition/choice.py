"""The choice of the best of several scores: trials of a run, trials of a table's cell, columns, or runs."""

import math
from collections.abc import Sequence


def best_by_score(scores: Sequence[float], better: str) -> int:
    """Returns the index of the best score, the first one if several are equal.

    Args:
        scores: measured values, of which NaN, that of a diverged run, is the worst.
        better: "higher" or "lower".
    """
    sign = 1 if better == "higher" else -1

    def rank(index):
        score = scores[index]
        return (False, 0.0) if math.isnan(score) else (True, sign * score)

    return max(range(len(scores)), key=rank)
