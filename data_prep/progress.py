"""What a preparation shows of a step that takes more than a few seconds, on a terminal."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

AFTER = 5  # seconds
LAYOUT = "{desc}: {n_fmt}B written, {elapsed}"


@contextmanager
def written(what: str, folder: Path) -> Iterator[None]:
    """Shows how long what is done inside takes, and how much it has written into ``folder``.

    It is for a program that tells nothing of that itself.
    """
    bar = tqdm(desc=what, bar_format=LAYOUT, unit_scale=True, disable=None, delay=AFTER, leave=False)
    done = threading.Event()

    def tell():
        wait = AFTER
        while not done.wait(wait):
            bar.n = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            bar.refresh()
            wait = 1

    thread = threading.Thread(target=tell, daemon=True)
    if not bar.disable:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if thread.ident:
            thread.join()
        bar.close()
