"""Sharded models in one process; test_sharding.py runs these tests in a process of its own.

After a process group has existed, a process that is forked from a thread can crash, and other tests fork
processes from threads.
"""

import copy
from contextlib import contextmanager

import pytest
import torch
from support.documents import block
from support.tensors import randn
from torch import distributed, nn
from torch.utils._pytree import tree_leaves

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention
from fairseq_lrpe.encodings import ENCODINGS, START, Encoding, build_encoding

B, H, D, L = 2, 2, 8, 12
E = H * D


def tensors(state):
    return [x for x in tree_leaves(state) if isinstance(x, torch.Tensor)]


@contextmanager
def one_process():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        with distributed.device_mesh.init_device_mesh("cpu", (1,)):
            yield
    finally:
        distributed.destroy_process_group()


def shard_function():
    names = {}
    exec(block("python", "def shard(model)"), names)
    return names["shard"]


@torch.no_grad()
@pytest.mark.parametrize("attention, name, options", [
    (LinearAttention, "none", {}),
    (LinearAttention, "rope", {"linear_norm": "content"}),
    (LinearAttention, "fox", {"feature_map": "softplus"}),
    (LinearAttention, "selective_rope_fox", {"linear_norm": "layernorm"}),
    (SoftmaxAttention, "path_fox", {}),
])  # fmt: skip
def test_sharded_models_decode_with_states_in_their_dtypes(attention, name, options):
    """800 steps in bfloat16 are those of the module that is not sharded; sums in bfloat16 stop to grow."""
    module = attention(E, H, name, causal=True, **options).eval()
    expected_module, x = copy.deepcopy(module).bfloat16(), randn(1, 800, E).float()
    with one_process():
        sharded, state, expected_state = shard_function()(module), None, None
        for token in x.split(1, dim=1):
            y, state = sharded(token, state=state, return_state=True)
            expected, expected_state = expected_module(
                token.bfloat16(), state=expected_state, return_state=True
            )
        dtypes, expected_dtypes = ([t.dtype for t in tensors(s)] for s in (state, expected_state))
    assert dtypes == expected_dtypes and torch.float32 in dtypes
    torch.testing.assert_close(y, expected, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("name", ENCODINGS)
def test_models_of_half_precision_are_sharded(name):
    attention = LinearAttention if ENCODINGS[name].decomposable else SoftmaxAttention
    model = nn.Sequential(attention(E, H, name, causal=True, layers=2, max_positions=64)).bfloat16()
    with one_process():
        shard_function()(model)
        y = model(torch.randn(B, 9, E))
        y.float().sum().backward()
    assert y.dtype == torch.bfloat16 and y.isfinite().all()
    assert all(p.grad is not None for p in model.parameters())


class Slope(Encoding):
    """A learned decay of each head."""

    name, float32_parameters = "slope", ("slope",)

    def __init__(self, **shared):
        super().__init__(**shared)
        self.slope = nn.Parameter(torch.full((self.num_heads,), 0.1))

    def log_decay(self, context=START):
        return -self.slope


@pytest.mark.parametrize("attention, name", [
    *((LinearAttention, name) for name in ("lrpe_decay", "slope")),
    *((SoftmaxAttention, name) for name in ("lrpe_decay", "slope", "kerple", "dape")),
])  # fmt: skip
def test_sharded_encodings_have_parameters_in_float32(attention, name):
    """FSDP of the documented form, with one process."""
    shard, shared = shard_function(), {"num_heads": H, "head_dim": D, "causal": True}
    encoding = Slope(**shared) if name == "slope" else build_encoding(name, **shared, layers=2)
    model, seen, x = nn.Sequential(attention(E, H, encoding)), [], torch.randn(B, L, E)
    expected = torch.autograd.grad(model(x).square().sum(), encoding.parameters())
    with one_process():
        shard(model)
        encoding.register_forward_pre_hook(lambda *_: seen.extend(p.dtype for p in encoding.parameters()))
        out = model(x)
        out.float().square().sum().backward()
    assert set(seen) == {torch.float32} and out.dtype == torch.bfloat16
    for parameter, exact in zip(encoding.parameters(), expected, strict=True):
        assert (parameter.grad.full_tensor() - exact).norm() < 0.05 * exact.norm()
