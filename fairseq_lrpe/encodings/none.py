"""No encoding inside attention."""

from fairseq_lrpe.encodings.base import Encoding, register_encoding


@register_encoding("none")
class NoEncoding(Encoding):
    """Leaves q and k unchanged, as in NoPE or in a baseline with absolute position embeddings only."""
