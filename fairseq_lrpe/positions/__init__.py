"""Absolute position embeddings, which depend only on torch; all files here are imported and registered."""

import importlib
import pkgutil

from fairseq_lrpe.positions.base import POSITIONS, AbsolutePosition, build_position, register_position

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["POSITIONS", "AbsolutePosition", "build_position", "register_position"]
