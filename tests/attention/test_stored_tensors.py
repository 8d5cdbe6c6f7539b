"""Tensors stored for the backward pass, and recomputation for long sequences."""

import pytest
import torch
from support.tensor_sizes import TensorSizes
from support.tensors import assert_same, randn, with_gradients

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention

H, D, L = 2, 16, 2048
OPTIONS = {"lrpe": {"core": "unitary", "learn_theta": True, "learn_householder": True}}


def build(attention, name, causal=False, **options):
    return attention(H * D, H, name, causal=causal, max_positions=L, **OPTIONS.get(name, {}), **options)


def stored_elements(module):
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    storages = {}

    def keep(x):
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    x = torch.randn(1, L, H * D, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        assert module(x).requires_grad
    return sum(s.nbytes() for at, s in storages.items() if at not in own) / x.element_size()


@pytest.mark.parametrize("norm", ["denominator", "layernorm"])
@pytest.mark.parametrize("name", ["none", "rope", "spe", "cosformer", "lrpe"])
def test_bidirectional_linear_attention_stores_no_more_than_softmax(name, norm):
    """The input, q, k, v, the output, and one element per head of a token."""
    expected = stored_elements(build(SoftmaxAttention, "none"))
    assert expected == pytest.approx(5 * L * H * D + L * H, rel=0.01)
    norm_keeps = L * H * D if (name, norm) == ("none", "layernorm") else 0
    assert stored_elements(build(LinearAttention, name, linear_norm=norm)) <= 1.01 * expected + norm_keeps


@pytest.mark.parametrize("causal, training", [(True, True), (False, False)])
def test_softmax_attention_with_wider_keys_uses_flash_kernel(causal, training):
    module = build(SoftmaxAttention, "lrpe", causal)
    with TensorSizes() as sizes, torch.set_grad_enabled(training):
        out = module(torch.randn(1, L, H * D))
        if training:
            out.sum().backward()
    assert sizes.largest <= L * L / 4


def test_recomputed_noise_is_identical(monkeypatch):
    module, x, results = build(LinearAttention, "spe").double(), randn(1, 20, H * D).requires_grad_(), []
    for longer_than in (20, 19):
        monkeypatch.setattr("fairseq_lrpe.attention.linear._MIN_CHECKPOINT_KEYS", longer_than)
        torch.manual_seed(1)
        out = module(x)
        torch.rand(7)  # later layers use the generator, too
        results.append((*with_gradients(out, [x, *module.parameters()]), torch.rand(1)))
    assert_same(*results)
