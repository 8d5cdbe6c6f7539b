"""RoPER's algorithmic tasks: language models trained on problems that are generated on the fly."""

import json
import math
from types import SimpleNamespace

from fairseq_lrpe.experiments.definition.kinds.base import Curve, Kind, TrainingSettings
from fairseq_lrpe.tasks.synthetic_problems import build_problem


class SyntheticSettings(TrainingSettings):
    data: str = ""  # the problems are generated during training


class SyntheticLM(Kind):
    """Trains language models with the task ``synthetic_lm`` and evaluates their answers to problems.

    ``nats`` is the loss per character, ``correct`` is the number of correct results among 128 problems,
    ``accuracy`` is the percentage of correct characters in answers with teacher forcing, and ``floor`` is the
    lowest possible loss of the problem Search.
    """

    settings = SyntheticSettings
    task = "synthetic_lm"
    family = "lm"
    metrics = {"nats": "lower", "correct": "higher", "accuracy": "higher", "floor": "lower"}
    decimals = {**Kind.decimals, "floor": 4}
    curve = Curve(
        "valid_loss", "validation loss in nats per character", factor=math.log(2), decimals=4, show_all=True
    )

    def check(self, cfg):
        flags = {key: value for key, value in cfg.train.items() if value is not None}
        build_problem(flags["problem"], SimpleNamespace(**flags), flags["tokens_per_sample"])

    def evaluate(self, job, name):
        measured = {"nats": math.log(2) * float(self.validate(job, name)["loss"])}
        out = job.folder / f"problems-{name}.json"
        program = ["python", "-m", "fairseq_lrpe", "evaluate-synthetic", str(job.checkpoint), str(out)]
        job.call([*program, *["--cpu"] * job.cpu], f"{name}-problems")
        return measured | json.loads(out.read_text())["measured"]


KIND = SyntheticLM()
