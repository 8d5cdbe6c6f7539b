"""torch's meta device, where tensors have shapes but no values, with the operators of a GPU."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from unittest.mock import patch

import torch
import torch.fx.experimental._config
import torch.nn.functional as F
from fairseq.modules import AdaptiveInput, AdaptiveSoftmax
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_lrpe.ops import constants, float64, permutation, rotation

aten = torch.ops.aten


class MetaNumbers(TorchDispatchMode):
    """Returns 0 for every number that is read from a tensor on the meta device, which has no values."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is aten._local_scalar_dense.default and args[0].is_meta:
            return torch.zeros((), dtype=args[0].dtype, device="cpu").item()
        return func(*args, **(kwargs or {}))


def _dropout(x, p=0.5, training=True, inplace=False):
    return aten.native_dropout(x, p, True)[0] if training and p else x


def _attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    if attn_mask is not None:
        attn_mask = attn_mask.to(q.dtype).expand(*q.shape[:-1], k.size(-2))
    return aten._scaled_dot_product_efficient_attention(q, k, v, attn_mask, True, dropout_p, is_causal)[0]


def _adapt_target(softmax, target):
    """Returns the targets and the selected rows of each cluster, whose numbers follow Zipf's law.

    The words a .. b of V have a share of ln(b/a) / ln(V) of the tokens.
    """
    rows = []
    for first, last in pairwise(softmax.cutoff):
        share = math.log(last / first) / math.log(softmax.cutoff[-1])
        rows.append(target.new_empty(math.ceil(share * target.numel())))
    return [target, *rows], rows


@contextmanager
def meta_device() -> Iterator[None]:
    """Replaces operators by those of GPUs or by ones whose shapes do not depend on values."""
    with (
        torch.device("meta"),
        MetaNumbers(),
        patch.object(Tensor, "cpu", lambda x: x),  # fairseq initializes some parameters on the CPU
        patch.multiple(F, dropout=_dropout, scaled_dot_product_attention=_attention),
        patch.object(AdaptiveSoftmax, "adapt_target", _adapt_target),
        # As if all words were frequent, which costs more if the embeddings of others are narrower.
        patch.object(AdaptiveInput, "forward", lambda module, tokens: module.embeddings[0](tokens)),
        # Constants are computed once, as on a GPU, although a dispatch mode is active.
        patch.object(constants, "is_tracing", lambda: False),
        patch.object(rotation, "is_tracing", lambda: False),
        patch.object(permutation, "is_tracing", lambda: False),
        patch.object(torch.cuda, "current_device", lambda: None),  # the index of a meta tensor's device
        patch.object(float64, "FLOAT64_DEVICES", (*float64.FLOAT64_DEVICES, "meta")),
        # Masks select all elements, because they have no values.
        patch.object(torch.fx.experimental._config, "meta_nonzero_assume_all_nonzero", True),
    ):
        yield
