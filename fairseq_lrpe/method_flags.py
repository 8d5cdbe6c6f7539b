"""Names of the flags that belong to methods and to encodings."""

from collections.abc import Mapping
from functools import cache

from fairseq_lrpe.methods import METHODS

ENCODING_FLAGS = ("encoding", "interval_encoding")
"""Flags that select the encodings of a model."""


@cache
def option_flags() -> dict[str, str]:
    """Returns {flag of an option of an encoding: the encoding}."""
    from fairseq_lrpe.encodings import ENCODINGS, encoding_options  # imports torch, which takes seconds

    flags = {}
    for name, cls in ENCODINGS.items():
        for option in encoding_options(cls):
            flags[f"{name}_{option.rstrip('_')}"] = name
    return flags


def flag_names() -> list[str]:
    """Returns the names of all flags of methods and of options of encodings."""
    from fairseq_lrpe.method_validation import SHARED_FLAGS

    return [*SHARED_FLAGS, *option_flags()]


def foreign_encoding(key: str, method: str, settings: Mapping[str, object]) -> str | None:
    """Returns the encoding with the option ``key``; None without one, or if a model has this encoding.

    Args:
        key: the key of a setting, such as "train.lrpe_core".
        method: the model's method, whose encoding ``settings`` can replace.
        settings: {flag: value} of the settings of the model.
    """
    encoding = option_flags().get(key.removeprefix("train."))
    encodings = [settings.get(flag) for flag in ENCODING_FLAGS]
    if method in METHODS:
        encodings.append(METHODS[method].encoding)
    return None if encoding in encodings else encoding
