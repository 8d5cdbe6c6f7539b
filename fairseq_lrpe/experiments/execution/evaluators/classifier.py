"""Evaluation of classifiers on the labels that they predict."""

from fairseq_lrpe.experiments.execution.evaluators.base import Evaluator
from fairseq_lrpe.experiments.execution.evaluators.predictions import (
    label_metrics,
    majority_metrics,
    predict_split,
)
from fairseq_lrpe.utils.files import REPOSITORY


class ClassifierEvaluator(Evaluator):
    def evaluate(self, name):
        predicted, target = predict_split(self, name, REPOSITORY / self.job.cfg.data)
        measured = label_metrics(predicted, target)
        measured["majority"] = majority_metrics(target)["accuracy"]
        measured["rows"] = len(target)
        return measured


EVALUATOR = ClassifierEvaluator
