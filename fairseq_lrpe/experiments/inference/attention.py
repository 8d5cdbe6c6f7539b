"""Attention weights of trained language models."""

import logging
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from fairseq_lrpe.attention import SelfAttention, attention_weights
from fairseq_lrpe.attention.weights import relative_weights
from fairseq_lrpe.experiments.inference.load import find, load_model

BLOCKS = 16  # number of blocks of the test split, if it has as many, over which weights are averaged


def trained_weights(run: Path) -> Tensor:
    """Returns the mean attention weights (L,) of a run's model by distance, relative to uniform attention.

    The mean is taken over the first ``BLOCKS`` blocks of the test split, and over all heads and layers (see
    :func:`relative_weights`). L is the length of a block in training.
    """
    checkpoint, _ = find(run, ["language_modeling"])
    trained = load_model(checkpoint, cpu=True)
    # fairseq logs the number of examples.
    logging.getLogger("fairseq.data.data_utils").setLevel(logging.WARNING)
    trained.task.load_dataset("test")
    dataset = trained.task.dataset("test")
    batch = dataset.collater([dataset[i] for i in range(min(BLOCKS, len(dataset)))])
    return relative_weights(torch.stack(weights_of_layers(trained.model, batch["net_input"]["src_tokens"])))


@torch.no_grad()
def weights_of_layers(model: nn.Module, tokens: Tensor) -> list[Tensor]:
    """Returns the :func:`attention_weights` (B, H, L, L) of each layer of a model for tokens (B, L)."""
    weights = []
    attentions = [module for module in model.modules() if isinstance(module, SelfAttention)]
    for module in attentions:
        module.attend = partial(_record_and_attend, module, module.attend, weights)
    try:
        model(tokens)
    finally:
        for module in attentions:
            del module.attend
    return weights


def _record_and_attend(module, attend, weights, q, k, v, context, *args):
    # A delta rule has its gates in further columns of v.
    weights.append(attention_weights(module, q, k, context, v[..., module.head_dim :]))
    return attend(q, k, v, context, *args)
