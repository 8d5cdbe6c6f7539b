"""Models with this plugin's attention; the import registers architectures and tasks, and patches fairseq."""

from fairseq_lrpe.fairseq_ext import fairseq_import, optim, patches, soft_target_cross_entropy  # noqa: F401
from fairseq_lrpe.models import classifier, lm, question_generator, roberta, transformer, vit  # noqa: F401
from fairseq_lrpe.models.argument_validation import check_arguments, check_command_line
from fairseq_lrpe.models.roberta import RobertaModel  # noqa: F401
from fairseq_lrpe.tasks import image_classification, question_generation, synthetic_lm  # noqa: F401

patches.apply(check_command_line, check_arguments)
