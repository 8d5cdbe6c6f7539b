"""Language models with a memory of previous segments, evaluated with memories of different lengths."""

from typing import Any

from pydantic import NonNegativeInt, PositiveInt, field_validator

from fairseq_lrpe.experiments.definition.kinds.base import Evaluation, TrainingSettings
from fairseq_lrpe.experiments.definition.kinds.lm import LM, max_length, model_flags, perplexity
from fairseq_lrpe.experiments.definition.run import Run
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

    def flags(self, job):
        check_method(job.run, self.evaluations(job.cfg))
        return {**super().flags(job), "streams": job.cfg.batch.total}

    def evaluations(self, cfg):
        state = cfg.train.get("memory") == STATE
        found = super().evaluations(cfg)
        return {name: e for name, e in found.items() if (e.get("memory") == STATE) == state}

    def evaluate(self, job, name):
        evaluation, train = self.evaluations(job.cfg)[name], job.cfg.train
        state = evaluation.get("memory") == STATE
        flags = {
            "task": self.task,
            "memory": STATE if state else "hidden",
            "memory_length": 0 if state else evaluation.get("memory", train.get("memory_length", 0)),
            "tokens_per_sample": evaluation.get("segment", train.tokens_per_sample),
            "streams": evaluation.get("streams", job.cfg.evaluate.flags.get("streams", job.cfg.batch.total)),
            "clamp_length": evaluation.get("clamp", 0),
            "same_length": evaluation.get("same_length", False),
        }
        context = flags["memory_length"] + flags["tokens_per_sample"]
        limit, reason = max_length(model_flags(job))
        if context > limit:
            wrong = f"memory and segment have {context:,} tokens, but the model reads at most {limit:,}"
            raise UserError(f"evaluations.{name}: {wrong}: {reason}")
        return perplexity(self.run_evaluation(job, name, "fairseq-eval-lm", "gen_subset", **flags))


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
