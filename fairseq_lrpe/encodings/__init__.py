"""Positional encodings, which depend only on torch; all files in this folder are imported and registered."""

import importlib
import pkgutil

from fairseq_lrpe.encodings.base import (
    ENCODINGS,
    Encoding,
    build_encoding,
    encoding_options,
    register_encoding,
)
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.mixins import InputsMixin, ScoresMixin, ShiftMixin, ValuesMixin
from fairseq_lrpe.encodings.scores import modifies_scores, prepare_scores, softmax_scores
from fairseq_lrpe.encodings.table import TableEncoding

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "ENCODINGS",
    "START",
    "Context",
    "Encoding",
    "InputsMixin",
    "ScoresMixin",
    "ShiftMixin",
    "TableEncoding",
    "ValuesMixin",
    "build_encoding",
    "encoding_options",
    "modifies_scores",
    "prepare_scores",
    "register_encoding",
    "softmax_scores",
]
