"""Kinds of encodings by how they represent positions, derived from their classes, for the atlas and plots."""

from fairseq_lrpe.encodings import ENCODINGS, InputsMixin
from fairseq_lrpe.encodings.base import overrides
from fairseq_lrpe.experiments.definition.table_settings import Row
from fairseq_lrpe.methods import METHODS

TOKEN_POSITIONS = "token positions"
RELATIVE = ("decay", "relative, in q and k", "relative, in scores")
"""Kinds of encodings whose scores depend on query, key and distance only."""


def encoding_kind(method: str) -> str:
    cls = ENCODINGS[METHODS[method].encoding]
    if "linear_rule" in METHODS[method].flags:
        return "contextual"
    if cls.name == "none":
        return "none" if "token_positions" in METHODS[method].flags else "absolute"
    if cls.uses_absolute_positions:
        return "absolute and relative"
    if issubclass(cls, InputsMixin):
        return "contextual"
    if overrides(cls, "log_decay"):
        return "decay"
    if cls.decomposable:
        return "relative, in q and k"
    return "relative, in scores" if cls.bidirectional else "contextual"


def row_kind(row: Row) -> str:
    if row.method not in METHODS:  # a published row without a method, or fairseq's model
        return "other"
    return TOKEN_POSITIONS if "train.token_positions" in row.changes else encoding_kind(row.method)
