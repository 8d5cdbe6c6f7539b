"""Absolute positions of tokens, one file each; torch only. A new file in this folder registers itself."""

import importlib
import pkgutil

from fairseq_lrpe.positions.base import POSITIONS, AbsolutePosition, build_position, register_position

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["POSITIONS", "AbsolutePosition", "build_position", "register_position"]
