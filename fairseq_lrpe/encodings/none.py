"""No encoding inside attention."""

from fairseq_lrpe.encodings.base import Encoding, register_encoding


@register_encoding("none")
class NoEncoding(Encoding):
    """Leaves q and k as they are: NoPE, or the base with its absolute embeddings of the positions."""
