"""Names of settings: those that do not identify a run, and the flags of methods and encodings."""

from functools import cache

from fairseq_lrpe.methods import METHODS

NON_IDENTIFYING = (
    "source",
    "data",
    "seeds",
    "starts_from",
    "grid",
    "choose",
    "evaluate",
    "evaluations",
    "batch.per_gpu",
    "train.log_interval",
    "train.num_workers",
    "train.data_buffer_size",
    "train.linear_backend",  # changes the rounding only, as the next one
    "train.compile",
    "train.stop_time_hours",  # a training that it stops is continued
)
"""Settings that do not identify a run: its data folder, use of the machine, evaluation and choice of runs."""
PREFIXES = tuple(f"{name}." for name in NON_IDENTIFYING)
SHARED_FLAGS = (
    "linear_norm",
    "linear_rule",
    "feature_map",
    "scale_queries",
    "linear_backend",
    "token_positions",
)
"""Flags of a method that are not options of its encoding."""


def is_non_identifying(key: str) -> bool:
    """Returns whether a key is one of ``NON_IDENTIFYING``, or inside one."""
    return f"{key}.".startswith(PREFIXES)


@cache
def option_flags() -> dict[str, str]:
    """Returns {flag of an option of an encoding: the encoding}."""
    from fairseq_lrpe.encodings import ENCODINGS, encoding_options  # imports torch, which takes seconds

    flags = {}
    for name, cls in ENCODINGS.items():
        for option in encoding_options(cls):
            flags[f"{name}_{option.rstrip('_')}"] = name
    return flags


def method_flags() -> list[str]:
    return [*SHARED_FLAGS, *option_flags()]


def foreign_encoding(key: str, method: str) -> str | None:
    """Returns the encoding with the option ``key``; None without one, or if the method has this encoding."""
    encoding = option_flags().get(key.removeprefix("train."))
    return None if method in METHODS and METHODS[method].encoding == encoding else encoding
