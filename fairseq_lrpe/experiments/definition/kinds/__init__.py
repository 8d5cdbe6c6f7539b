"""Kinds of experiments: each file in this folder except base.py defines the kind with the file's name."""

import importlib
import pkgutil

from fairseq_lrpe.experiments.definition.kinds.base import Kind

KINDS: dict[str, Kind] = {}
for module in pkgutil.iter_modules(__path__):
    if module.name != "base":
        KINDS[module.name] = importlib.import_module(f"{__name__}.{module.name}").KIND

__all__ = ["KINDS", "Kind"]
