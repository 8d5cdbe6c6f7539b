"""No encoding inside attention."""

from fairseq_lrpe.encodings.base import Encoding, register_encoding


@register_encoding("none")
class NoEncoding(Encoding):
    """Leaves q and k unchanged: NoPE, or the baseline with absolute position embeddings."""
