"""Evaluation of models fine-tuned on GLUE, from the labels or scores that they predict."""

from fairseq_lrpe.data.glue_tasks import get_task
from fairseq_lrpe.experiments.execution.evaluators.base import Evaluator
from fairseq_lrpe.experiments.execution.evaluators.predictions import (
    label_metrics,
    majority_metrics,
    predict_split,
    score_metrics,
)


class GlueEvaluator(Evaluator):
    def evaluate(self, name):
        cfg = self.job.cfg
        predicted, target = predict_split(self, name, self.job.kind.folder(cfg))
        return task_metrics(cfg.task, predicted, target)


def task_metrics(name: str, predicted: list[str], target: list[str]) -> dict[str, float]:
    """Returns {metric: value in percent} of predictions for the GLUE task ``name``, and the number of "rows".

    "score" is the task's official metric, and "majority" is the score of always predicting the most frequent
    label; the regression task STS-B has no "majority".
    """
    task = get_task(name)
    if not task.labels:
        values = score_metrics([float(x) for x in predicted], [float(x) for x in target])
        return {"score": values[task.measure], **values, "rows": len(target)}
    values = label_metrics(predicted, target)
    majority = majority_metrics(target)
    return {"score": values[task.measure], **values, "majority": majority[task.measure], "rows": len(target)}


EVALUATOR = GlueEvaluator
