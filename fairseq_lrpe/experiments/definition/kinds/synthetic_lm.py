"""Synthetic tasks: language models trained on problems that are generated on the fly."""

import math
from types import SimpleNamespace
from typing import Literal

from pydantic import PositiveInt

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.definition.kinds.base import Curve, Kind, in_folder
from fairseq_lrpe.experiments.definition.settings import Evaluation, TrainingSettings
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import REPOSITORY


class SyntheticEvaluation(Evaluation):
    split: Literal["valid", "test"]
    # Sizes in place of those in training, for problems in which only answers are predicted.
    num_items: PositiveInt | None = None
    min_items: PositiveInt | None = None
    tokens_per_sample: PositiveInt | None = None


class SyntheticSettings(TrainingSettings[SyntheticEvaluation]):
    data: str = ""  # the text of the problem needle; the others are generated during training


class SyntheticLM(Kind):
    """Kind of experiments that train language models with the task ``synthetic_lm``.

    ``nats`` is the loss per predicted token, ``correct`` is the number of correct results among 128 problems,
    ``accuracy`` is the percentage of correct tokens in answers with teacher forcing, ``exact`` is the
    percentage of sequences without a wrong answer, ``quarter_n`` is ``exact`` for answers in the n-th quarter
    of a text, and ``floor`` is the lowest possible loss of the problem Search. Each problem has some of these
    metrics.
    """

    settings = SyntheticSettings
    task = "synthetic_lm"
    family = "lm"
    metrics = {
        "nats": "lower",
        "correct": "higher",
        "accuracy": "higher",
        "exact": "higher",
        "floor": "lower",
        "quarter_1": "higher",
        "quarter_2": "higher",
        "quarter_3": "higher",
        "quarter_4": "higher",
    }
    decimals = {**Kind.decimals, "floor": 4}
    curve = Curve(
        "valid_loss", "validation loss in nats per token", factor=math.log(2), decimals=4, show_all=True
    )

    def data(self, cfg):
        if not cfg.data:
            return []
        return in_folder(REPOSITORY / cfg.data, layout.text(self.splits(cfg)))

    def folders(self, cfg):
        return []

    def flags(self, run, cfg, starts_from):
        return {**super().flags(run, cfg, starts_from), "haystack": cfg.data or None}

    def check(self, cfg):
        from fairseq_lrpe.tasks.answer_problems import AnswerProblem  # imports torch, which takes seconds
        from fairseq_lrpe.tasks.synthetic_problems import build_problem

        flags = {key: value for key, value in cfg.train.items() if value is not None}
        flags["haystack"] = cfg.data
        for settings in ({}, *self.evaluations(cfg).values()):
            changed = changed_sizes(settings)
            sizes = flags | changed
            problem = build_problem(flags["problem"], SimpleNamespace(**sizes), sizes["tokens_per_sample"])
            if changed and not isinstance(problem, AnswerProblem):
                wrong = f"evaluations of {flags['problem']} use the sizes of its training"
                raise UserError(f"{wrong}: omit {', '.join(changed)}")


def changed_sizes(evaluation: dict) -> dict[str, int]:
    """Returns {name: size} of the sizes that an evaluation changes with respect to training."""
    return {key: value for key, value in evaluation.items() if key != "split" and value is not None}


KIND = SyntheticLM()
