"""Compares RoPE with a loop over its definition; tests the no-op encoding."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import assert_same, randn

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention
from fairseq_lrpe.encodings import build_encoding

D = 6


def build(name, d=D, **options):
    return build_encoding(name, num_heads=2, head_dim=d, causal=True, **options)


def rotated(x, offset):
    """Multiplies the pair (x_2t, x_2t+1) at position s, as a complex number, by e^{is·10000^(-2t/d)}."""
    rows = []
    for i in range(x.size(2)):
        row = []
        for t in range(x.size(3) // 2):
            angle = (offset + i) * 10000 ** (-2 * t / x.size(3))
            a, b = x[:, :, i, 2 * t], x[:, :, i, 2 * t + 1]
            row.append(a * math.cos(angle) - b * math.sin(angle))
            row.append(a * math.sin(angle) + b * math.cos(angle))
        rows.append(torch.stack(row, dim=-1))
    return torch.stack(rows, dim=2)


@pytest.mark.parametrize(("q_offset", "k_offset"), [(0, 0), (3, 3), (12, 5), (0, 1000)])
def test_rope_matches_definition(q_offset, k_offset):
    results = []
    for function in (
        build("rope").forward,
        lambda q, k, q_offset, k_offset: (rotated(q, q_offset), rotated(k, k_offset)),
    ):
        leaves = [randn(2, 2, 4, D, seed=seed).requires_grad_() for seed in (1, 2)]
        out = function(*leaves, q_offset, k_offset)
        loss = sum((x * randn(*x.shape, seed=seed)).sum() for seed, x in enumerate(out))
        results.append((*out, *torch.autograd.grad(loss, leaves)))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("attention", [LinearAttention, SoftmaxAttention])
def test_rope_values_matches_definition(attention):
    """o_i = Σ_j a_ij RoPE(v_j, j), with the weights a of RoPE."""
    module = attention(2 * D, 2, "rope_values", causal=True).double()
    x = randn(2, 5, 2 * D).requires_grad_()
    q, k, v = (module.split_heads(p(x)) for p in (module.q_proj, module.k_proj, module.v_proj))
    unseen = torch.ones(5, 5, dtype=torch.bool).triu(1)
    if attention is LinearAttention:
        q, k = (rotated(1 + torch.nn.functional.elu(y), 0) for y in (q, k))
        weights = (q @ k.mT).masked_fill(unseen, 0)
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-6)
    else:
        scores = rotated(q, 0) @ rotated(k, 0).mT / math.sqrt(D)
        weights = scores.masked_fill(unseen, -torch.inf).softmax(-1)
    expected = module.out_proj(module.merge_heads(weights @ rotated(v, 0)))
    leaves, results, w = [x, *module.parameters()], [], randn(*expected.shape, seed=1)
    for out in (module(x), expected):
        results.append((out, *torch.autograd.grad((out * w).sum(), leaves, retain_graph=True)))
    assert_same(*results)


def test_rope_values_depend_on_absolute_positions():
    encoding, v = build("rope_values").double(), randn(1, 2, 3, D)
    assert_same(encoding.encode_values(v, 70), rotated(v, 70))
    assert encoding.decode_output(v, 70) is v and encoding.uses_absolute_positions and not encoding.relative
    with pytest.raises(ValueError, match="rope_values cannot shift the positions of encoded values"):
        encoding.shift_values(v, 1)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(length=st.integers(1, 9), q_offset=st.integers(0, 10**4), k_offset=st.integers(0, 10**4))
def test_rope_is_lrpe_with_orthogonal_core_and_identity_rotation(length, q_offset, k_offset):
    q, k = randn(1, 2, length, D, seed=1), randn(1, 2, length + 2, D, seed=2)
    ours = build("rope")(q, k, q_offset, k_offset)
    lrpe = build("lrpe", core="orthogonal", rotation="identity")(q, k, q_offset, k_offset)
    assert ours[0].equal(lrpe[0]) and ours[1].equal(lrpe[1])


def test_rope_at_far_positions_in_float32():
    x = randn(1, 1, 1, 64).float()
    x = x / x.norm()
    encoded, _ = build("rope", 64)(x, x, 100_000, 0)
    torch.testing.assert_close(encoded.double(), rotated(x.double(), 100_000), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["rope", "lrpe"])
def test_training_after_inference_mode(name):
    encoding = build(name, max_positions=54321)  # not cached by another test
    with torch.inference_mode():
        encoding(randn(1, 2, 5, D).float(), randn(1, 2, 5, D).float())
    q = randn(1, 2, 5, D).float().requires_grad_()
    q_encoded, _ = encoding(q, q)
    q_encoded.pow(2).sum().backward()
    torch.testing.assert_close(q.grad, 2 * q.detach())


def test_none_is_a_no_op():
    encoding, q, k = build("none"), randn(1, 2, 4, D), randn(1, 2, 3, D)
    assert encoding(q, k, 5, 7) == (q, k)
    assert not encoding.state_dict()


@pytest.mark.parametrize("name", ["none", "rope", "lrpe"])
def test_defaults_of_the_base_class(name):
    encoding, x = build(name), randn(1, 2, 4, D)
    assert encoding.decomposable and encoding.log_decay is None
    assert encoding.bias(x, x, 3) is None
    assert encoding.encode_values(x, 3) is x and encoding.decode_output(x, 3) is x
    assert math.isclose(encoding.scale, 1 / math.sqrt(D))


def test_rope_needs_an_even_head_dim():
    with pytest.raises(ValueError, match="even, not 7"):
        build("rope", 7)
