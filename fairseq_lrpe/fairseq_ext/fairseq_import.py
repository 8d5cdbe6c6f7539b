"""Imports fairseq without its changes of the root logger; import this module before any use of fairseq.

Raises:
    ImportError: if torch is too old, or if fairseq was not built for the installed numpy. fairseq's commands
        exit with this message.
"""

import io
import sys
from contextlib import redirect_stderr
from importlib import import_module

import numpy as np
import torch

from fairseq_lrpe.utils.cli import is_fairseq_command
from fairseq_lrpe.utils.root_logger import unchanged_root_logger


def _fail(message):
    raise (SystemExit if is_fairseq_command() else ImportError)(f"fairseq_lrpe: {message}")


if not hasattr(torch.serialization, "add_safe_globals"):
    _fail(f"torch {torch.__version__} is too old: install torch 2.4 or newer")
with unchanged_root_logger():
    import fairseq  # noqa: F401
try:
    with redirect_stderr(io.StringIO()):  # numpy prints a traceback
        for module in ("data_utils_fast", "token_block_utils_fast"):
            import_module(f"fairseq.data.{module}")
except Exception as error:  # numpy raises several types
    cause = str(error).partition(" (")[0]
    # Where torch is found, fairseq 0.12.2 builds an extension of which its source archive lacks a file.
    original = sys.version_info < (3, 11)
    package = "fairseq==0.12.2" if original else "--no-build-isolation fairseq-fixed"
    _fail(
        f"fairseq was not built for numpy {np.__version__} ({cause}): run `pip install "
        f"--no-cache-dir --force-reinstall --no-deps {package}`"
    )
