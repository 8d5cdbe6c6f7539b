"""Progress bars, which appear on a terminal in steps that take more than a few seconds."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

DELAY = 5  # seconds until a bar is shown
LAYOUT = "{desc}: {n_fmt}B written, {elapsed}"


def progress(iterable: Iterable | None, description: str, unit: str = "B", **options) -> tqdm:
    """Returns a tqdm progress bar that appears after ``DELAY`` seconds and disappears at the end."""
    options = {"unit_scale": unit == "B", "disable": None, "leave": False, **options}
    return tqdm(iterable, description, unit=unit, delay=DELAY, **options)


@contextmanager
def show_written(description: str, folder: Path) -> Iterator[None]:
    """Shows the elapsed time and the size of ``folder`` while the body of the ``with`` statement runs."""
    bar = progress(None, description, bar_format=LAYOUT)
    done = threading.Event()

    def refresh():
        wait = DELAY
        while not done.wait(wait):
            bar.n = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            bar.refresh()
            wait = 1

    thread = threading.Thread(target=refresh, daemon=True)
    if not bar.disable:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if thread.ident:
            thread.join()
        bar.close()
