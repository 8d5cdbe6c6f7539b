"""The format in which commands, tables and plots show measured numbers."""

import math


def format_number(value: float, digits: int, std: float | None = None) -> str:
    """Returns a number as text, such as "8,939.59", with its standard deviation as "95.00 ± 3.00".

    Args:
        value: the number. If it is infinite or NaN, the text is "diverged".
        digits: number of decimals.
        std: standard deviation, which is omitted if it is None or NaN.
    """
    if not math.isfinite(value):
        return "diverged"
    text = f"{value:,.{digits}f}"
    if std is None or math.isnan(std):
        return text
    return f"{text} ± {std:,.{digits}f}"
