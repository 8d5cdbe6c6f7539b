"""fairseq models; importing this registers every architecture. Each says only which layer it is made of."""

import fairseq_lrpe.checkpoint  # noqa: F401
from fairseq_lrpe.models import lm, roberta, transformer
from fairseq_lrpe.models.roberta import RobertaModel

__all__ = ["RobertaModel", "lm", "roberta", "transformer"]
