import math

import pytest

from fairseq_lrpe.utils.numbers import format_number


@pytest.mark.parametrize("arguments, expected", [
    ((8939.587, 2), "8,939.59"),
    ((8814.321, 2, 12.3456), "8,814.32 ± 12.35"),
    ((95.0, 2, math.nan), "95.00"),
    ((95.0, 0, None), "95"),
    ((math.nan, 2, 1.0), "diverged"),
    ((math.inf, 4), "diverged"),
])  # fmt: skip
def test_numbers_have_one_format(arguments, expected):
    assert format_number(*arguments) == expected
