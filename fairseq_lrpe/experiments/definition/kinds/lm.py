"""Language models, evaluated by perplexity at the training's block length or at other lengths."""

import math

from pydantic import NonNegativeInt, PositiveInt

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.definition.kinds.base import Curve, Kind, in_folder
from fairseq_lrpe.experiments.definition.language_model import ModelFlags
from fairseq_lrpe.experiments.definition.settings import Evaluation, TrainingSettings, train_flags
from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import REPOSITORY


class BlockEvaluation(Evaluation):
    length: PositiveInt | None = None  # tokens per block; the default is that of the training
    context_window: NonNegativeInt = 0  # number of tokens at the start of a block that are only context
    # How angles of rotations are scaled: TYPE, TYPE:FACTOR or TYPE:FACTOR:LENGTH of ``RopeScaling``. The
    # default factor is ``length`` divided by the length in training, or 1 if that is longer.
    rope_scaling: str | None = None


class LM(Kind):
    settings = TrainingSettings[BlockEvaluation]
    task = "language_modeling"
    family = "lm"
    metrics = {"perplexity": "lower", "bits": "lower", "nats": "lower"}
    curve = Curve("valid_ppl", "validation perplexity")

    def check(self, cfg):
        for name, evaluation in self.evaluations(cfg).items():
            length = evaluation.get("length") or cfg.train.get("tokens_per_sample") or math.inf
            if evaluation.get("context_window", 0) >= length:
                raise UserError(
                    f"evaluations.{name}.context_window must be below the {length} tokens of a block"
                )
            if evaluation.get("rope_scaling") and not evaluation.get("length"):
                raise UserError(f"evaluations.{name}.rope_scaling needs evaluations.{name}.length: set both")

    def data(self, cfg):
        return in_folder(REPOSITORY / cfg.data, layout.text(self.splits(cfg)))

    def flags(self, run, cfg, starts_from):
        # Without fairseq's defaults, which a trained model has.
        model = {"encoding": "none", "tokens_per_sample": 1}
        if run.method in METHODS:
            model |= METHODS[run.method].flags
        model |= train_flags(cfg, run.method)
        for evaluation in self.evaluations(cfg).values():
            scaling = evaluation.get("rope_scaling")
            if scaling:
                ModelFlags(model).rope_scaling(scaling, evaluation["length"])
        return super().flags(run, cfg, starts_from)


KIND = LM()
