"""Positional encodings, which depend only on torch; all files in this folder are imported and registered."""

import importlib
import pkgutil

from fairseq_lrpe.encodings.base import (
    ENCODINGS,
    START,
    Context,
    Encoding,
    TableEncoding,
    build_encoding,
    check_choice,
    encoding_options,
    prepare_scores,
    register_encoding,
    softmax_scores,
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "ENCODINGS",
    "START",
    "Context",
    "Encoding",
    "TableEncoding",
    "build_encoding",
    "check_choice",
    "encoding_options",
    "prepare_scores",
    "register_encoding",
    "softmax_scores",
]
