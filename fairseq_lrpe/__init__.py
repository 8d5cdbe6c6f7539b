"""fairseq-lrpe: positional encodings for linear and softmax attention, as a fairseq plugin.

``fairseq-train --user-dir fairseq_lrpe`` imports this package and then its ``models``, which registers
every architecture; in Python, ``import fairseq_lrpe.models`` does. ``fairseq_lrpe.ops``, ``encodings``,
``positions`` and ``attention`` need only torch.
"""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

# fairseq's import sets the root logger to DEBUG, at which Pillow would log every chunk of a PNG file.
logging.getLogger("PIL").setLevel(logging.INFO)


def load_results(results: "str | Path") -> "pd.DataFrame":
    """Loads every measurement below a results folder as a tidy DataFrame.

    See :func:`fairseq_lrpe.experiments.reporting.measurements.load_results` for its columns.
    """
    from fairseq_lrpe.experiments.reporting import measurements

    return measurements.load_results(results)


def published() -> "pd.DataFrame":
    """Loads the papers' published numbers as a tidy DataFrame.

    See :func:`fairseq_lrpe.experiments.reporting.measurements.published` for its columns.
    """
    from fairseq_lrpe.experiments.reporting import measurements

    return measurements.published()
