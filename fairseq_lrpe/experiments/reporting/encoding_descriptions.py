"""Descriptions of encodings, derived from their classes: kinds, for plots, and effects, for the atlas."""

import torch
from torch import Tensor

from fairseq_lrpe.attention.base import SelfAttention
from fairseq_lrpe.attention.delta import DeltaAttention
from fairseq_lrpe.encodings import ENCODINGS, Context, Encoding, InputsMixin, ScoresMixin, ValuesMixin
from fairseq_lrpe.encodings.base import overrides
from fairseq_lrpe.encodings.scores import log_weights
from fairseq_lrpe.encodings.transformations import needs_weights, random_features
from fairseq_lrpe.experiments.definition.table_settings import Row
from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.ops.decay import is_constant, is_of_features

TOKEN_POSITIONS = "token positions"
RELATIVE = ("decay", "relative, in q and k", "relative, in scores")
"""Kinds of encodings whose scores depend only on the query, the key and their distance."""
NORMS = {
    "denominator": "Divides by the sum of the weights.",
    "content": "Divides by the sum of the weights of the unencoded q and k, including a decay.",
    "layernorm": "Applies a LayerNorm instead of dividing by the sum of the weights.",
    "rmsnorm": "Applies an RMSNorm to each head instead of dividing by the sum of the weights.",
}
"""{value of --linear-norm: sentence that describes it}"""
RULES = {
    "delta": "Replaces what is stored for a key.",
    "gated_delta": "Replaces what is stored for a key, and multiplies the state by a gate of each head.",
    "kda": "Replaces what is stored for a key, and multiplies the state by gates of the features.",
}
"""{value of --linear-rule: sentence that describes it}"""


def encoding_kind(method: str) -> str:
    """Returns the kind of a method's encoding, such as "decay", which says how it represents positions."""
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


def effect(module: SelfAttention, attention: str) -> str:
    """Returns sentences that describe the effect of a module's encoding.

    Args:
        module: an attention module with the encoding.
        attention: type of the module's attention, "linear" or "softmax".
    """
    encoding = module.encoding
    if isinstance(module, DeltaAttention):
        return f"{RULES[module.rule]} {NORMS['rmsnorm']}"
    decay = encoding.log_decay(Context(features=features_of_random_inputs(encoding, 1, 1)))
    sentences = []
    if overrides(encoding, "forward"):
        sentences.append(f"Transforms queries and keys{' after the feature map' * (attention == 'linear')}.")
    if attention == "softmax":
        sentences += _effect_on_scores(encoding, decay)
    if decay is not None:
        sentences.append(_effect_of_decay(encoding, decay, attention))
    if isinstance(encoding, ValuesMixin) and not encoding.needs_weights:
        also = ", and the output back" if "decode_output" in vars(type(encoding)) else ""
        sentences.append(f"Transforms the values{also}.")
    if attention == "softmax" and needs_weights(encoding):
        sentences.append("Adds a term to the output that depends on the weights.")
    if not sentences:
        sentences = ["Changes nothing in attention."]
    if attention == "linear":
        sentences.append(NORMS[module.linear_norm])
    return " ".join(sentences)


def _effect_on_scores(encoding, decay):
    sentences = []
    if decay is None and overrides(encoding, "bias"):
        sentences.append("Adds a term to the scaled scores.")
    if decay is None and _has_own_scores(encoding):
        sentences.append("Replaces the formula of the scores.")
    if log_weights(encoding):
        sentences.append("Replaces the softmax: the scores are logarithms of the weights.")
    return sentences


def _effect_of_decay(encoding, decay, attention):
    each = "each feature" if is_of_features(decay) else "each head"
    what = "a decay with the distance" if is_constant(decay) else "gates of the positions between"
    if attention == "linear":
        return f"Multiplies the weights by {what} in {each}."
    if is_of_features(decay) or _has_own_scores(encoding):
        return f"Multiplies the products of q and k by {what} in {each}."
    return f"Adds the logarithm of {what} to the scores of {each}."


def _has_own_scores(encoding):
    return isinstance(encoding, ScoresMixin) and type(encoding).scores is not ScoresMixin.scores


def features_of_random_inputs(encoding: Encoding, rows: int, length: int) -> Tensor | None:
    """Returns the features of an encoding for random inputs that are the same in each call, or None.

    Args:
        encoding: an encoding; the result is None if it computes no features of the inputs.
        rows: number of sequences.
        length: number of positions of each sequence.
    """
    torch.manual_seed(1)
    return random_features(encoding, rows, length)
