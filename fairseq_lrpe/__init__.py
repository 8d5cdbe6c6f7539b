"""fairseq-lrpe: positional encodings for linear and softmax attention, as a fairseq plugin.

``fairseq-train --user-dir fairseq_lrpe`` registers all architectures and tasks of this plugin, as does
``import fairseq_lrpe.models`` in Python. The packages ``ops``, ``encodings``, ``positions`` and
``attention``, except ``attention.fairseq_adapter``, depend only on torch.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from fairseq_lrpe.utils.root_logger import unchanged_root_logger

if sys.version_info < (3, 10):  # noqa: UP036  (a checkout is used without pip)
    raise ImportError("fairseq-lrpe needs Python 3.10 or newer")
if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from fairseq_lrpe.attention import DeltaAttention, LinearAttention, SoftmaxAttention
    from fairseq_lrpe.encodings import build_encoding, register_encoding
    from fairseq_lrpe.experiments.inference.load import TrainedModel
    from fairseq_lrpe.methods import register_method
    from fairseq_lrpe.ops import linear_attention

__version__ = "2.0.0"

__all__ = [
    "DeltaAttention",
    "LinearAttention",
    "SoftmaxAttention",
    "build_encoding",
    "linear_attention",
    "load_model",
    "load_results",
    "published",
    "register_encoding",
    "register_method",
]

_MODULES = {
    "DeltaAttention": "fairseq_lrpe.attention",
    "LinearAttention": "fairseq_lrpe.attention",
    "SoftmaxAttention": "fairseq_lrpe.attention",
    "build_encoding": "fairseq_lrpe.encodings",
    "linear_attention": "fairseq_lrpe.ops",
    "register_encoding": "fairseq_lrpe.encodings",
    "register_method": "fairseq_lrpe.methods",
}
"""{exported name: its package, which is imported on first use, because torch takes seconds to import}"""


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__():
    return [*__all__, "__version__"]


def load_results(results: "str | Path") -> "pd.DataFrame":
    """Returns all measurements in a results folder and its subfolders as a tidy DataFrame.

    See :func:`fairseq_lrpe.experiments.reporting.measurements.load_results` for its columns.
    """
    from fairseq_lrpe.experiments.reporting import measurements

    return measurements.load_results(results)


def published() -> "pd.DataFrame":
    """Returns the published numbers of the papers as a tidy DataFrame.

    See :func:`fairseq_lrpe.experiments.reporting.measurements.published` for its columns.
    """
    from fairseq_lrpe.experiments.reporting import measurements

    return measurements.published()


def load_model(
    run_or_checkpoint: "str | Path",
    *,
    data: "str | Path | None" = None,
    cpu: bool = False,
    rope_scaling: "str | None" = None,
) -> "TrainedModel":
    """Loads a trained model for inference, from a run's folder or a checkpoint file.

    See :func:`fairseq_lrpe.experiments.inference.load.load_model` for the arguments, and for what the
    returned model of each family can do.
    """
    with unchanged_root_logger():
        from fairseq_lrpe.experiments.inference import load

    return load.load_model(run_or_checkpoint, data=data, cpu=cpu, rope_scaling=rope_scaling)
