"""Protection of the root logger, which importing fairseq configures."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unchanged_root_logger() -> Iterator[None]:
    """Restores the level and the handlers of the root logger at the end of the block."""
    level = logging.root.level
    handlers = list(logging.root.handlers)
    try:
        yield
    finally:
        logging.root.setLevel(level)
        logging.root.handlers[:] = handlers
