"""No encoding inside attention."""

from fairseq_lrpe.encodings.base import Encoding, register_encoding


@register_encoding("none")
class NoEncoding(Encoding):
    """q̃ = q, k̃ = k: NoPE, or the base, whose positions are absolute embeddings of the tokens."""
