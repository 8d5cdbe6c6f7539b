"""Tensors stored for the backward pass, and recomputation for long sequences."""

import pytest
import torch
from tensor_sizes import TensorSizes

from fairseq_lrpe.attention.fairseq_adapter import FairseqLinearAttention, FairseqSoftmaxAttention
from fairseq_lrpe.encodings import build_encoding

H, D, L = 2, 16, 2048
ENCODINGS = {
    "none": {},
    "rope": {},
    "spe": {},
    "cosformer": {},
    "lrpe": {"core": "unitary", "learn_theta": True, "learn_householder": True},
}


def build(attention, name, causal=False, **kwargs):
    options = {"num_heads": H, "head_dim": D, "causal": causal, "max_positions": L}
    return attention(build_encoding(name, **options, **ENCODINGS[name]), **kwargs)


def stored_elements(module):
    """Returns the number of distinct elements that a call stores in addition to the module's own."""
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    storages = {}

    def keep(x):
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    x = torch.randn(L, 1, H * D, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out, _ = module(x)
    assert out.requires_grad
    return sum(s.nbytes() for at, s in storages.items() if at not in own) / x.element_size()


@pytest.mark.parametrize("norm", ["denominator", "layernorm"])
@pytest.mark.parametrize("name", ENCODINGS)
def test_bidirectional_linear_attention_stores_no_more_than_softmax(name, norm):
    """The input, q, k, v, the output, and one element per head of a token."""
    expected = stored_elements(build(FairseqSoftmaxAttention, "none"))
    assert expected == pytest.approx(5 * L * H * D + L * H, rel=0.01)
    norm_keeps = L * H * D if (name, norm) == ("none", "layernorm") else 0
    assert (
        stored_elements(build(FairseqLinearAttention, name, linear_norm=norm)) <= 1.01 * expected + norm_keeps
    )


@pytest.mark.parametrize("causal, training", [(True, True), (False, False)])
def test_softmax_attention_with_wider_keys_uses_flash_kernel(causal, training):
    module = build(FairseqSoftmaxAttention, "lrpe", causal)
    with TensorSizes() as sizes, torch.set_grad_enabled(training):
        out = module(torch.randn(L, 1, H * D))[0]
        if training:
            out.sum().backward()
    assert sizes.largest <= L * L / 4


def test_recomputed_noise_is_identical(monkeypatch):
    module = build(FairseqLinearAttention, "spe").double()
    x = torch.randn(20, 1, H * D, dtype=torch.float64, requires_grad=True)
    results = []
    for longer_than in (20, 19):
        monkeypatch.setattr("fairseq_lrpe.attention.linear._MIN_CHECKPOINT_KEYS", longer_than)
        torch.manual_seed(1)
        out, _ = module(x)
        torch.rand(7)  # later layers use the generator, too
        results.append((out, *torch.autograd.grad(out.square().sum(), [x, *module.parameters()])))
        after = torch.rand(1)
        results[-1] += (after,)
    for plain, again in zip(*results, strict=True):
        torch.testing.assert_close(again, plain, rtol=1e-10, atol=1e-12)
