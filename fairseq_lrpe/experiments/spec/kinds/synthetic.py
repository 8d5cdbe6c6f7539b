"""RoPER's algorithmic tasks: language models of problems that are made while they train."""

import json
import math
from dataclasses import dataclass
from types import SimpleNamespace

from fairseq_lrpe.experiments.spec.kinds.base import Curve, Kind, TrainingSettings, validated
from fairseq_lrpe.tasks.synthetic_problems import build_problem


@dataclass
class SyntheticSettings(TrainingSettings):
    """There is no data to prepare."""

    data: str = ""


class Synthetic(Kind):
    """Trains by our synthetic_lm; measures nats a character and the problems it solves.

    ``correct`` counts the right results of 128 problems, and ``accuracy`` is the percentage of right
    characters in answers, each predicted from the true ones before it. ``floor`` is the least loss of Search.
    """

    settings = SyntheticSettings
    task = "synthetic_lm"
    family = "lm"
    metrics = {"loss": "lower", "correct": "higher", "accuracy": "higher", "floor": "lower"}
    decimals = {**Kind.decimals, "floor": 4}
    curve = Curve(
        "valid_loss", "validation loss in nats a character", factor=math.log(2), decimals=4, whole=True
    )

    def check(self, cfg):
        given = {key: value for key, value in cfg.train.items() if value is not None}
        build_problem(given["problem"], SimpleNamespace(**given), given["tokens_per_sample"])

    def data(self, cfg):
        return []

    def folders(self, cfg):
        return []

    def evaluate(self, job, name):
        """Returns the loss in nats, and what there is of the other metrics."""
        log = self.evaluated(job, name, "fairseq-validate", "valid_subset", task=self.task)
        loss = validated(log, self.evaluations(job.cfg)[name]["split"])["loss"]
        found = {"loss": math.log(2) * float(loss)}
        out = job.folder / f"problems-{name}.json"
        program = ["python", "-m", "fairseq_lrpe", "evaluate-synthetic", str(job.checkpoint), str(out)]
        job.call([*program, *["--cpu"] * job.launch.cpu], f"{name}-problems")
        return found | json.loads(out.read_text())["measured"]


KIND = Synthetic()
