"""Parameters of tests."""

from collections.abc import Sequence

import pytest


def slow_after(count: int, cases: Sequence) -> list:
    """Returns the parameters of a test; those after the first ``count`` are marked slow and exhaustive."""
    marked = []
    for case in cases[count:]:
        values = case if isinstance(case, tuple) else (case,)
        marked.append(pytest.param(*values, marks=[pytest.mark.slow, pytest.mark.exhaustive]))
    return [*cases[:count], *marked]
