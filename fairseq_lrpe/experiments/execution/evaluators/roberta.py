"""Evaluation of masked language models by the perplexity of masked tokens."""

from fairseq_lrpe.experiments.execution.evaluators.base import Evaluator


class RobertaEvaluator(Evaluator):
    def evaluate(self, name):
        measured = self.validate(name)
        return {"perplexity": float(measured["ppl"]), "bits": float(measured["loss"])}


EVALUATOR = RobertaEvaluator
