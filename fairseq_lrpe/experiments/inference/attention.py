"""Attention weights of trained language models."""

import logging
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fairseq_lrpe.attention import SelfAttention
from fairseq_lrpe.attention.weights import attention_weights, relative_weights
from fairseq_lrpe.experiments.inference.load import find, load_model

BLOCKS = 16  # number of blocks of the test split, if it has as many, over which weights are averaged


@torch.no_grad()
def trained_weights(run: Path) -> Tensor:
    """Returns the mean attention weights (L,) of a run's model by distance, relative to uniform attention.

    The mean is taken over the first ``BLOCKS`` blocks of the test split, and over all heads and layers (see
    :func:`relative_weights`). L is the length of a block in training.
    """
    checkpoint, _ = find(run, ["language_modeling"])
    trained = load_model(checkpoint, cpu=True)
    weights = []
    # fairseq logs the number of examples.
    logging.getLogger("fairseq.data.data_utils").setLevel(logging.WARNING)
    trained.task.load_dataset("test")
    dataset = trained.task.dataset("test")
    for module in trained.model.modules():
        if isinstance(module, SelfAttention):
            module.attend = partial(_record_and_attend, module, module.attend, weights)
    batch = dataset.collater([dataset[i] for i in range(min(BLOCKS, len(dataset)))])
    trained.model(batch["net_input"]["src_tokens"])
    return relative_weights(torch.stack(weights))


def _record_and_attend(module, attend, weights, q, k, v, context, *args):
    # A delta rule has its gates in further columns of v.
    weights.append(attention_weights(module, q, k, context, v[..., module.head_dim :]))
    return attend(q, k, v, context, *args)
