"""Numbers of tokens in the files that fairseq maps into memory."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import torch


class Rows(Protocol):
    """Takes rows of tokens, one after the other."""

    def add_item(self, tokens: torch.Tensor) -> None:
        """Writes a row."""


@contextmanager
def token_file(prefix: Path, types: int) -> Iterator[Rows]:
    """Yields what writes ``prefix``.bin and ``prefix``.idx, of numbers below ``types``."""
    logging.disable(logging.INFO)  # fairseq's import tells of packages that it could use
    from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder  # seconds

    logging.disable(logging.NOTSET)
    kind = np.uint16 if types <= 1 << 16 else np.int32
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=kind)
    yield builder
    builder.finalize(f"{prefix}.idx")
