"""Progress bars, which appear on a terminal in steps that take more than a few seconds."""

from collections.abc import Iterable

from tqdm import tqdm

DELAY = 5  # seconds until a bar is shown


def progress(iterable: Iterable | None, description: str, unit: str = "B", **options) -> tqdm:
    """Returns a tqdm progress bar that appears after ``DELAY`` seconds and disappears at the end."""
    options = {"unit_scale": unit == "B", "disable": None, "leave": False, **options}
    return tqdm(iterable, description, unit=unit, delay=DELAY, **options)
