"""fairseq's loss of masked tokens, computed without reading the number of these tokens from a GPU."""

from collections.abc import Callable

from fairseq import modules
from fairseq.criterions.masked_lm import MaskedLmLoss
from torch import Tensor

from fairseq_lrpe.fairseq_ext.host_copies import on_both, on_host


def selected(x: Tensor, mask: Tensor) -> Tensor:
    """Returns x[mask] for x (B, L, ...) and a mask (B, L).

    On a GPU, indexing by a mask would wait for the number of selected rows, which is read from a copy of the
    mask on the CPU.
    """
    copy = on_host(mask)
    if copy is mask:
        return x[mask]
    order = mask.flatten().byte().sort(descending=True, stable=True).indices
    return x.flatten(0, 1).index_select(0, order[: int(copy.sum())])


def loss(forward: Callable, criterion: MaskedLmLoss, model, sample, reduce: bool = True):
    """Computes fairseq's loss; ``forward`` is fairseq's function, used if targets have no copy on the CPU."""
    mask = on_both(lambda target: target.ne(criterion.padding_idx), sample["target"])
    copy = on_host(mask)
    if copy is mask or not copy.any():
        return forward(criterion, model, sample, reduce)
    logits = model(**sample["net_input"], masked_tokens=mask)[0]
    targets = selected(model.get_targets(sample, [logits]), mask)
    total = modules.cross_entropy(logits, targets, reduction="sum", ignore_index=criterion.padding_idx)
    sample_size = mask.int().sum()  # a tensor as in fairseq, because processes sum it together
    logged = {
        "loss": total.data,
        "sample_size": sample_size,
        "ntokens": sample["ntokens"],
        "nsentences": sample["nsentences"],
    }
    return total, sample_size, logged
