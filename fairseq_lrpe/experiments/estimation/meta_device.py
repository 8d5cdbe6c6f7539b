"""torch's meta device, where tensors have shapes but no values, with the operators of a GPU.

``FakeTensorMode`` is no alternative: its tensors on a GPU select the operators of a GPU, but torch's builds
for CPUs end the process when autograd records an operation of such a tensor.
"""

import math
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
import torch.fx.experimental._config as fx_config
from fairseq.modules import AdaptiveInput, AdaptiveSoftmax
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_lrpe.fairseq_ext.foreach_optimizer import FP16Optimizer
from fairseq_lrpe.ops.meta import meta_as_gpu

aten = torch.ops.aten


class MetaNumbers(TorchDispatchMode):
    """Dispatch mode in which every number that is read from a tensor on the meta device is 0.

    A copy of such a tensor to the CPU, where fairseq initializes some parameters, stays on the meta device.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default and args[0].is_meta:
            return torch.zeros((), dtype=args[0].dtype, device="cpu").item()
        if func is aten._to_copy.default and args[0].is_meta:
            kwargs = {**kwargs, "device": args[0].device}
        return func(*args, **kwargs)


def _dropout(x, p, train):
    return aten.native_dropout(x, p, True)[0] if train and p else x


def _attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    if attn_mask is not None:
        attn_mask = attn_mask.to(q.dtype).expand(*q.shape[:-1], k.size(-2))
    return aten._scaled_dot_product_efficient_attention(q, k, v, attn_mask, True, dropout_p, is_causal)[0]


@contextmanager
def gpu_operators() -> Iterator[None]:
    """Makes dropout and attention call the operators of GPUs on the meta device.

    By default, both functions consist of several operators on the meta device. They are replaced in torch's
    dispatcher, because a dispatch mode sees only these operators, and a ``TorchFunctionMode`` is not active
    inside ``F.multi_head_attention_forward``, which fairseq's own attention calls.
    """
    library = torch.library.Library("aten", "IMPL")
    library.impl("dropout", _dropout, "AutogradMeta")
    library.impl("scaled_dot_product_attention", _attention, "AutogradMeta")
    try:
        yield
    finally:
        del library  # which removes both implementations


class FrequentWords(AdaptiveInput):
    """Adaptive embedding of all words as frequent ones, which costs at least as much as the real one."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embeddings[0](tokens)


class ZipfSoftmax(AdaptiveSoftmax):
    """Adaptive softmax that selects as many rows of each cluster as Zipf's law predicts.

    The words with the ranks a to b of a vocabulary of V words have a share of ln(b/a) / ln(V) of the tokens.
    """

    def adapt_target(self, target: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        rows = []
        for first, last in pairwise(self.cutoff):
            share = math.log(last / first) / math.log(self.cutoff[-1])
            rows.append(target.new_empty(math.ceil(share * target.numel())))
        return [target, *rows], rows


EXPECTED = {AdaptiveInput: FrequentWords, AdaptiveSoftmax: ZipfSoftmax}
"""{module of fairseq whose shapes depend on values of tokens: subclass whose shapes do not}"""


def expect_words(model: nn.Module) -> None:
    """Replaces modules of a model whose shapes depend on the values of tokens; see ``EXPECTED``."""
    for module in model.modules():
        if type(module) in EXPECTED:
            module.__class__ = EXPECTED[type(module)]


class MetaFP16Optimizer(FP16Optimizer):
    """fairseq's half-precision optimizer for parameters on the meta device."""

    @classmethod
    def build_fp32_params(cls, args: Namespace, params: list[Tensor], flatten: bool = True):
        if not flatten:
            return super().build_fp32_params(args, params, flatten)
        # fairseq would ask CUDA for the index of the current GPU.
        size = sum(parameter.numel() for parameter in params)
        flat = nn.Parameter(torch.empty(size, device="meta"))
        flat.grad = torch.empty(size, device="meta")
        return {None: flat}


@contextmanager
def meta_device() -> Iterator[None]:
    """Context in which tensors are created on the meta device, and operators are those of GPUs."""
    with (
        torch.device("meta"),
        MetaNumbers(),
        gpu_operators(),
        meta_as_gpu(),
        # Masks select all elements, because they have no values.
        fx_config.patch(meta_nonzero_assume_all_nonzero=True),
    ):
        yield
