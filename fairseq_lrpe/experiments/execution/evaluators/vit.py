"""Evaluation of vision transformers by their accuracy, with the number of their parameters."""

import re

from fairseq_lrpe.experiments.execution.evaluators.base import Evaluator

TRAINED = re.compile(r"num\. trained: ([\d,]+)\)")


class ViTEvaluator(Evaluator):
    def evaluate(self, name):
        measured = self.validate(name)
        log = (self.job.folder / "train.log").read_text("utf-8")
        parameters = int(TRAINED.search(log)[1].replace(",", ""))
        return {
            "accuracy": float(measured["accuracy"]),
            "accuracy5": float(measured["accuracy5"]),
            "parameters": parameters / 1e6,
        }


EVALUATOR = ViTEvaluator
