"""Names of the flags that belong to methods and to encodings."""

from functools import cache

from fairseq_lrpe.methods import METHODS


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


def foreign_encoding(key: str, method: str) -> str | None:
    """Returns the encoding with the option ``key``; None without one, or if the method has this encoding."""
    encoding = option_flags().get(key.removeprefix("train."))
    return None if method in METHODS and METHODS[method].encoding == encoding else encoding
