"""Registers every architecture when it is imported; each model says only which layer it is made of."""

import fairseq_lrpe.checkpoint  # noqa: F401  (so that torch reads their checkpoints)
from fairseq_lrpe import decay, soft_targets
from fairseq_lrpe.literals import replace_eval
from fairseq_lrpe.models import classifier, lm, question_generator, roberta, transformer, vit
from fairseq_lrpe.models.door import check_command_line, guard_commands
from fairseq_lrpe.models.roberta import RobertaModel
from fairseq_lrpe.ngrams import mend_blocking
from fairseq_lrpe.tasks import (
    classification,
    image_classification,
    memory_lm,
    question_generation,
    synthetic_lm,
)

__all__ = [
    "RobertaModel",
    "classification",
    "classifier",
    "decay",
    "image_classification",
    "lm",
    "memory_lm",
    "question_generation",
    "question_generator",
    "roberta",
    "soft_targets",
    "synthetic_lm",
    "transformer",
    "vit",
]

replace_eval()
mend_blocking()
guard_commands()
check_command_line()
