"""Numbers of tokens in the files that fairseq maps into memory."""

import logging
from pathlib import Path

import numpy as np


def token_file(prefix: Path, types: int):
    """Returns fairseq's builder of ``prefix``.bin, for rows of numbers below ``types``."""
    return builder(prefix, np.uint16 if types <= 1 << 16 else np.int32)


def builder(prefix: Path, dtype: type):
    """Returns fairseq's builder of ``prefix``.bin, for rows of numbers of this type.

    ``add_item`` takes a row as a tensor, ``finalize`` the path ``prefix``.idx at the end.
    """
    logging.disable(logging.INFO)  # fairseq's import tells of packages that it could use
    from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder  # seconds

    logging.disable(logging.NOTSET)
    return MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
