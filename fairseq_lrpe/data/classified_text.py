"""Tokenization of raw text as data_prep tokenizes the corpora of the task ``classification``."""

from collections.abc import Callable, Collection

BYTES = [f"0x{value:02x}" for value in range(256)]
OPERATORS = ["[MIN", "[MAX", "[MED", "[SM"]  # of ListOps


def encoder(symbols: Collection[str]) -> Callable[[str], list[str]]:
    """Returns the function that splits a text into symbols, given the symbols of the data's dictionary."""
    if BYTES[0] in symbols:
        return lambda text: [BYTES[value] for value in text.encode()]
    if OPERATORS[0] in symbols:
        return split_expression
    from fairseq_lrpe.data.penn_treebank import tokenize_penn

    return lambda text: tokenize_penn(text).split()


def split_expression(text: str) -> list[str]:
    return text.replace("(", " ").replace(")", " ").split()
