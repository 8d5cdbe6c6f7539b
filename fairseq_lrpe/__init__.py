"""fairseq-lrpe: positional encodings for linear and softmax attention, as a fairseq plugin.

``fairseq-train --user-dir fairseq_lrpe`` registers all architectures and tasks of this plugin, as does
``import fairseq_lrpe.models`` in Python. The packages ``ops``, ``encodings``, ``positions`` and ``attention``
depend only on torch.
"""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

# Importing fairseq sets the root logger to DEBUG, a level at which Pillow logs every chunk of a PNG file.
logging.getLogger("PIL").setLevel(logging.INFO)


def load_results(results: "str | Path") -> "pd.DataFrame":
    """Returns all measurements in a results folder and its subfolders as a tidy DataFrame.

    See :func:`fairseq_lrpe.experiments.reporting.measurements.load_results` for its columns.
    """
    from fairseq_lrpe.experiments.reporting import measurements

    return measurements.load_results(results)


def published() -> "pd.DataFrame":
    """Returns the numbers that the papers published as a tidy DataFrame.

    See :func:`fairseq_lrpe.experiments.reporting.measurements.published` for its columns.
    """
    from fairseq_lrpe.experiments.reporting import measurements

    return measurements.published()
