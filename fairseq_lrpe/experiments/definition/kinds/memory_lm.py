"""Language models with a memory of previous segments, evaluated with memories of different lengths."""

from typing import Any

from pydantic import NonNegativeInt, PositiveInt, field_validator

from fairseq_lrpe.experiments.definition.kinds.lm import LM
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.settings import Evaluation, TrainingSettings
from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.utils.errors import UserError

STATE = "state"


class MemoryEvaluation(Evaluation):
    # The number of previous positions whose hidden states are kept, or "state" for the sums of linear
    # attention over all previous positions, which is evaluated only if training used it, too.
    memory: Any = 0
    segment: PositiveInt = 1  # tokens per segment
    streams: PositiveInt = 1  # number of contiguous parts of the split that are read in parallel
    clamp: NonNegativeInt = 0  # maximum distance, which replaces all larger distances; 0 disables it
    same_length: bool = False  # whether each position attends to the same number of positions

    @field_validator("memory")
    @classmethod
    def check_memory(cls, memory: object) -> object:
        if memory != STATE and not (isinstance(memory, int) and memory >= 0):
            raise UserError(f"must be a non-negative integer or {STATE!r}, not {memory!r}")
        return memory


class MemoryLM(LM):
    settings = TrainingSettings[MemoryEvaluation]
    task = "memory_lm"

    def check(self, cfg):
        if cfg.batch.unit != "sequences":
            raise UserError(f"batch.unit={cfg.batch.unit}: memory_lm needs batch.unit=sequences")

    def flags(self, run, cfg, starts_from):
        check_method(run, self.evaluations(cfg))
        return {**super().flags(run, cfg, starts_from), "streams": cfg.batch.total}

    def evaluations(self, cfg):
        is_trained_with_state = cfg.train.get("memory") == STATE
        evaluations = {}
        for name, settings in super().evaluations(cfg).items():
            if (settings.get("memory") == STATE) == is_trained_with_state:
                evaluations[name] = settings
        return evaluations


def check_method(run: Run, evaluations: dict[str, dict]) -> None:
    if run.method not in METHODS:
        raise UserError(f"the method {run.method} has no memory: choose a method of this plugin")
    encoding = METHODS[run.method].encoding_class
    for name, evaluation in evaluations.items():
        key = f"evaluations.{name}"
        if evaluation.get("clamp") and not encoding.uses_distance_table:
            wrong = f"needs a table of distances, which {run.method} does not have"
            raise UserError(f"{key}.clamp {wrong}: set {key}.clamp=0")
        if evaluation.get("same_length") and run.attention == "linear":
            raise UserError(f"{key}.same_length needs softmax attention: set {key}.same_length=false")


KIND = MemoryLM()
