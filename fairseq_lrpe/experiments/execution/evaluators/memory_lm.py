"""Evaluation of language models with memories of different lengths."""

from fairseq_lrpe.experiments.definition.kinds.memory_lm import STATE
from fairseq_lrpe.experiments.execution.evaluators.lm import LMEvaluator
from fairseq_lrpe.utils.errors import UserError


class MemoryEvaluator(LMEvaluator):
    def evaluate(self, name):
        flags = self.memory_flags(self.settings(name))
        context = flags["memory_length"] + flags["tokens_per_sample"]
        limit, reason = self.model.limit
        if context > limit:
            wrong = f"memory and segment have {context:,} tokens, but the model reads at most {limit:,}"
            raise UserError(f"evaluations.{name}: {wrong}, because {reason}: reduce memory or segment")
        return self.perplexity(name, flags)

    def memory_flags(self, evaluation: dict) -> dict[str, object]:
        """Returns the flags of fairseq-eval-lm for an evaluation, whose defaults are those of training."""
        cfg = self.job.cfg
        train = cfg.train
        is_state = evaluation.get("memory") == STATE
        memory_length = evaluation.get("memory", train.get("memory_length", 0))
        streams = cfg.evaluate.flags.get("streams", cfg.batch.total)
        return {
            "task": self.job.kind.task,
            "memory": STATE if is_state else "hidden",
            "memory_length": 0 if is_state else memory_length,
            "tokens_per_sample": evaluation.get("segment", train.tokens_per_sample),
            "streams": evaluation.get("streams", streams),
            "clamp_length": evaluation.get("clamp", 0),
            "same_length": evaluation.get("same_length", False),
        }


EVALUATOR = MemoryEvaluator
