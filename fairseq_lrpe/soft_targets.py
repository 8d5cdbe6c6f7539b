"""fairseq's criterion for pictures: the cross entropy with targets that share one among classes."""

import math

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.logging import metrics

BEST = (1, 5)
"""Among so many of the most probable classes the right one counts, in percent: accuracy and accuracy5."""


def accuracy_of(best: int) -> str:
    """Returns the name of an accuracy."""
    return "accuracy" if best == 1 else f"accuracy{best}"


@register_criterion("soft_target_cross_entropy")
class SoftTargetCrossEntropy(FairseqCriterion):
    """-Σ target · log softmax(logits), where a target is (classes) or, in validation, a label."""

    def forward(self, model, sample, reduce=True):
        """Returns the loss in nats, summed over the batch, how many pictures it has, and what is logged."""
        target = sample["target"]
        log_probabilities = model.get_normalized_probs(model(**sample["net_input"]), log_probs=True)
        if target.dim() == 2:
            losses = -(target * log_probabilities).sum(-1)
            labels, hits = 0, torch.zeros_like(log_probabilities)
        else:
            losses = -log_probabilities.gather(-1, target[:, None])[:, 0]
            most = min(max(BEST), log_probabilities.size(-1))
            labels, hits = len(target), log_probabilities.topk(most).indices == target[:, None]
        # All batches tell numbers and tensors under the same names: fairseq adds up what processes tell by
        # its place, and gives one that has no batch left some other, perhaps of validation.
        logged = {name: sample["nsentences"] for name in ("sample_size", "nsentences", "ntokens")}
        logged |= {accuracy_of(best): hits[:, :best].sum() for best in BEST}
        loss = losses.sum()
        return loss, len(target), {"loss": loss.data, "labels": labels, **logged}

    @classmethod
    def reduce_metrics(cls, logging_outputs) -> None:
        """Tells of all processes' batches the mean loss in bits, and the accuracies of labels in percent."""
        total = sum(log.get("sample_size", 0) for log in logging_outputs)
        loss = sum(log.get("loss", 0) for log in logging_outputs)
        metrics.log_scalar("loss", loss / total / math.log(2), total, round=3)
        if labels := sum(log.get("labels", 0) for log in logging_outputs):
            for name in map(accuracy_of, BEST):
                hits = sum(log.get(name, 0) for log in logging_outputs)
                metrics.log_scalar(name, 100 * hits / labels, labels, round=3)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True
