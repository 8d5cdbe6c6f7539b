"""Encodings in linear attention with a delta rule, which removes what is stored for a key.

For an encoded key k, I − β k kᵀ removes the share β only if ‖k‖ = 1. So encodings have to rotate keys, and
the rule has the only decay.
"""

import torch
from torch import Tensor

from fairseq_lrpe.encodings.base import ENCODINGS, Encoding, overrides
from fairseq_lrpe.encodings.mixins import ValuesMixin


def check_delta_rule(rule: str, encoding: Encoding) -> None:
    """Raises a ValueError if an encoding cannot be combined with a delta rule.

    Args:
        rule: "delta", "gated_delta" or "kda".
        encoding: the encoding.
    """
    if not encoding.causal:
        raise ValueError(
            f"the linear rule {rule} works only in causal attention: use it in a language model or a decoder"
        )
    if not _only_rotates(encoding):
        raise ValueError(
            f"the linear rule {rule} needs an encoding that only rotates queries and keys, not "
            f"{encoding.name!r}: use {', '.join(filter(_only_rotates, sorted(ENCODINGS)))}"
        )
    check_norms(encoding)
    rotated = encoding.rotated_features
    if rule == "kda" and (rotated == "all" or (rotated and encoding.head_dim % 2)):
        raise ValueError(
            f"the linear rule kda decays features, which {encoding.name} mixes in other ways than in pairs: "
            "use gated_delta, or an encoding that rotates pairs of features and an even head dimension"
        )


def check_norms(encoding: Encoding) -> None:
    """Raises a ValueError if the scaling of an encoding's angles also multiplies keys."""
    scaling = getattr(encoding, "rope_scaling", None)
    if scaling is not None and scaling.attention_factor != 1.0:
        raise ValueError(
            f"the scaling {scaling.type} multiplies keys, whose norms must be 1 in a delta rule: use ntk"
        )


def _only_rotates(encoding):
    """Returns whether an encoding, or a class of encodings for some options, only rotates q and k."""
    cls = ENCODINGS[encoding] if isinstance(encoding, str) else type(encoding)
    transforms = overrides(cls, "forward") and not cls.rotated_features
    others = overrides(cls, "log_decay") or issubclass(cls, ValuesMixin)
    return cls.decomposable and not (transforms or others)


def decay_of_rotated_features(log_decay: Tensor, rotated: str, width: int) -> Tensor:
    """Returns log decays of encoded features, (B, H, L, width), from those of features (B, H, L, d).

    Features that are rotated together have the same decay, because only then a score depends on the
    difference of positions: that of the feature of which they are the real and imaginary part, or the
    geometric mean of the decays of a pair.

    Args:
        log_decay: log decays before the encoding.
        rotated: the trait ``rotated_features`` of the encoding, except "all".
        width: number of features of an encoded key, d or 2d.
    """
    if not rotated:
        return log_decay
    if width == log_decay.size(-1):
        log_decay = log_decay.unflatten(-1, (-1, 2)).mean(-1)
    if rotated == "halves":
        return torch.cat([log_decay, log_decay], dim=-1)
    return log_decay.repeat_interleave(2, dim=-1)
