"""Evaluation of language models by perplexity."""

import math
import re
from functools import cached_property
from pathlib import Path

from fairseq_lrpe.experiments.execution.evaluators.base import Evaluator
from fairseq_lrpe.experiments.execution.trained_lm import TrainedLM
from fairseq_lrpe.utils.errors import UserError

BATCH_TOKENS = 2048
"""Maximum number of tokens in a batch of several blocks; a longer block is a batch of its own."""


class LMEvaluator(Evaluator):
    @cached_property
    def model(self) -> TrainedLM:
        """The trained model; its checkpoint is read on the first access."""
        return TrainedLM(self.job)

    def evaluate(self, name):
        evaluation = self.settings(name)
        flags = {}
        if "context_window" in evaluation:
            flags["context_window"] = evaluation["context_window"]
        if not evaluation.get("length"):
            return self.perplexity(name, flags)
        self.model.check_length(evaluation["split"], evaluation["length"])
        flags |= self.length_flags(evaluation)
        return self.perplexity(name, flags, self.model.tokens(evaluation["split"]))

    def length_flags(self, evaluation: dict) -> dict[str, object]:
        """Returns the flags of fairseq-eval-lm for the block length of an evaluation."""
        length = evaluation["length"]
        flags = {"tokens_per_sample": length, "batch_size": None, "max_tokens": max(length, BATCH_TOKENS)}
        overrides = {}
        if length > self.model.trained_length:
            overrides["max_target_positions"] = length
        if evaluation.get("rope_scaling"):
            overrides["rope_scaling"] = str(self.model.rope_scaling(evaluation["rope_scaling"], length))
        if overrides:
            # Checkpoints of earlier versions have no key rope_scaling, which only a nested override adds.
            flags["model_overrides"] = repr({"model": overrides})
        return flags

    def perplexity(self, name: str, flags: dict, expected: int | None = None) -> dict[str, float]:
        """Runs fairseq-eval-lm and returns its metrics; see :func:`read_perplexity`."""
        log = self.run_fairseq(name, "fairseq-eval-lm", "gen_subset", **flags)
        return read_perplexity(log, expected)


def read_perplexity(log: Path, expected: int | None = None) -> dict[str, float]:
    """Returns {metric: value} from the log of fairseq-eval-lm.

    Raises:
        UserError: if the number of evaluated tokens is 0 or not ``expected``, because fairseq-eval-lm skipped
            blocks that are too long for the model.
    """
    text = log.read_text("utf-8")
    evaluated = re.search(r"Evaluated ([\d,]+) tokens", text)[1]
    tokens = int(evaluated.replace(",", ""))
    is_complete = expected is None or tokens == expected
    if not tokens or not is_complete:
        wrong = f"fairseq-eval-lm evaluated only {tokens:,} tokens of the split"
        cause = f"because it skips blocks that are too long for the model (see {log})"
        raise UserError(f"{wrong}, {cause}: use shorter blocks")
    bits, perplexity = re.search(r"Loss \(base 2\): ([\w.]+), Perplexity: ([\w.]+)", text).groups()
    nats = math.log(2) * float(bits)
    return {"perplexity": float(perplexity), "bits": float(bits), "nats": nats, "tokens": tokens}


EVALUATOR = LMEvaluator
