"""fairseq models; importing this registers every architecture. Each says only which layer it is made of."""

from fairseq_lrpe.models import lm

__all__ = ["lm"]
