"""Language models with a memory of the segments before, measured with a memory of any length."""

from fairseq_lrpe.experiments.spec.kinds.base import Kind
from fairseq_lrpe.experiments.spec.kinds.language_modeling import (
    LanguageModeling,
    longest,
    model_of,
    perplexity,
)
from fairseq_lrpe.experiments.spec.run import Run
from fairseq_lrpe.methods import METHODS

STATE = "state"
COUNTS = {"memory": 0, "segment": 1, "streams": 1, "clamp": 0}
"""{what an evaluation may say: the least number of it}"""


class MemoryLM(LanguageModeling):
    """Trains by our memory_lm on as many streams as the total batch has sequences.

    An evaluation says how many positions before a segment are its ``memory``, or "state", the running sums of
    all of them, which is for trainings with it, and the only one for these. It says how long a ``segment``
    is, how many ``streams`` the split is read in, from which distance on all count as this one (``clamp``),
    and whether each position sees as many (``same_length``).
    """

    task = "memory_lm"
    evaluation_keys = ("split", *COUNTS, "same_length")

    def check(self, cfg):
        if cfg.batch.unit != "sequences":
            raise ValueError(f"batch.unit={cfg.batch.unit}: a batch has streams, which are sequences")
        for name, evaluation in Kind.evaluations(self, cfg).items():  # of both kinds of memory
            for key, least in COUNTS.items():
                value = evaluation.get(key, least)
                if (key, value) != ("memory", STATE) and not (isinstance(value, int) and value >= least):
                    what = f"a whole number from {least} on" + " or state" * (key == "memory")
                    raise ValueError(f"evaluations.{name}.{key}: {what} is needed, not {value!r}")

    def flags(self, job):
        check_method(job.run, self.evaluations(job.cfg))
        return {**super().flags(job), "streams": job.cfg.batch.total}

    def evaluations(self, cfg):
        """Returns those of the training's kind of memory."""
        state = cfg.train.get("memory") == STATE
        found = super().evaluations(cfg)
        return {name: e for name, e in found.items() if (e.get("memory") == STATE) == state}

    def evaluate(self, job, name):
        """Returns the perplexity, the loss in bits and in nats, and how many tokens they are of."""
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
        seen, (limit, reason) = flags["memory_length"] + flags["tokens_per_sample"], longest(model_of(job))
        if seen > limit:
            raise ValueError(f"this model sees at most {limit:,} tokens, not {seen:,}: {reason}")
        return perplexity(self.evaluated(job, name, "fairseq-eval-lm", "gen_subset", **flags))


def check_method(run: Run, evaluations: dict[str, dict]) -> None:
    """Raises ValueError, before a run's training, where its method cannot be evaluated as asked."""
    from fairseq_lrpe.encodings import ENCODINGS  # imports torch, which takes seconds

    if run.method not in METHODS:
        raise ValueError(f"the method {run.method} has no memory: choose one of ours")
    encoding = METHODS[run.method].encoding
    for name, evaluation in evaluations.items():
        if evaluation.get("clamp") and not ENCODINGS[encoding].uses_distance_table:
            why = f"is for encodings that look distances up, which {run.method} does not"
            raise ValueError(f"evaluations.{name}.clamp {why}: give evaluations.{name}.clamp=0")
        if evaluation.get("same_length") and run.attention == "linear":
            key = f"evaluations.{name}.same_length"
            raise ValueError(f"{key} hides what linear attention has added up: give {key}=false")


KIND = MemoryLM()
