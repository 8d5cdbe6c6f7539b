"""Attention weights of trained language models."""

import logging
from pathlib import Path

import torch
from torch import Tensor

from fairseq_lrpe.attention import SelfAttention
from fairseq_lrpe.attention.weights import attention_weights, relative_weights
from fairseq_lrpe.experiments.inference.load import data_folder, find, load_checkpoint

BLOCKS = 16  # number of blocks of the test split over which weights are averaged


@torch.no_grad()
def trained_weights(run: Path) -> Tensor:
    """Returns the mean weight (L,) at each distance, relative to uniform attention, of a language model.

    The mean is over the first blocks of the test split, whose length L is that of training, and over all
    heads and layers (see :func:`relative_weights`).

    Args:
        run: folder of the run.

    Raises:
        UserError: if the run has no checkpoint, or its data does not exist.
    """
    found = find(run, ["language_modeling"])
    model, task = load_checkpoint(found.checkpoint, cpu=True, data=str(data_folder(found)))
    logging.getLogger("fairseq.data.data_utils").setLevel(logging.WARNING)  # it logs the number of examples
    task.load_dataset("test")
    blocks = [task.dataset("test")[i] for i in range(BLOCKS)]
    weights = []
    for module in model.modules():
        if isinstance(module, SelfAttention):
            module.attend = _recording(module, weights)
    model(task.dataset("test").collater(blocks)["net_input"]["src_tokens"])
    return relative_weights(torch.stack(weights))


def _recording(module, weights):
    """Returns the method ``attend`` of a module, which then also appends the weights to a list."""
    attend = module.attend

    def record_and_attend(q, k, v, context, *args):
        weights.append(attention_weights(module, q, k, context.features))
        return attend(q, k, v, context, *args)

    return record_and_attend
