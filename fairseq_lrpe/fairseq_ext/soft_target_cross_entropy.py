"""fairseq criterion for image classification: cross entropy with soft targets."""

import math

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.logging import metrics

ACCURACIES = {"accuracy": 1, "accuracy5": 5}
"""{metric: k}: the percentage of images whose label is among the k likeliest classes."""


@register_criterion("soft_target_cross_entropy")
class SoftTargetCrossEntropy(FairseqCriterion):
    """Cross entropy with soft targets (B, classes) in training, and with labels (B,) in validation."""

    def forward(self, model, sample, reduce=True):
        """Returns the summed loss in nats, the number of images, and the logging output."""
        target = sample["target"]
        log_probabilities = model.get_normalized_probs(model(**sample["net_input"]), log_probs=True)
        if target.dim() == 2:
            losses = -(target * log_probabilities).sum(-1)
            labels = 0
            hits = torch.zeros_like(log_probabilities)
        else:
            losses = -log_probabilities.gather(-1, target[:, None])[:, 0]
            k = min(max(ACCURACIES.values()), log_probabilities.size(-1))
            labels = len(target)
            hits = log_probabilities.topk(k).indices == target[:, None]
        # The keys and types must be the same for all batches, because fairseq sums the outputs of processes
        # in order, and a process without a training batch may use a validation batch.
        loss = losses.sum()
        logged = {"loss": loss.data, "labels": labels}
        for name in ("sample_size", "nsentences", "ntokens"):
            logged[name] = sample["nsentences"]
        for name, k in ACCURACIES.items():
            logged[name] = hits[:, :k].sum()
        return loss, len(target), logged

    @classmethod
    def reduce_metrics(cls, logging_outputs) -> None:
        """Logs the mean loss in bits and the accuracies in percent."""
        images = _total(logging_outputs, "sample_size")
        loss = _total(logging_outputs, "loss")
        metrics.log_scalar("loss", loss / images / math.log(2), images, round=3)
        if labels := _total(logging_outputs, "labels"):
            for name in ACCURACIES:
                hits = _total(logging_outputs, name)
                metrics.log_scalar(name, 100 * hits / labels, labels, round=3)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def _total(logging_outputs, name):
    return sum(log.get(name, 0) for log in logging_outputs)
