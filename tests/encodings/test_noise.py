"""The noise of SPE and ConvSPE, and their scores in expectation over it."""

import math

import pytest
import torch
from support.pairwise_scores import D, H, products, random_encoding
from support.tensors import assert_same, randn

from fairseq_lrpe.encodings import Context, build_encoding
from fairseq_lrpe.ops.position_index import PositionIndex

KERNEL = 5
OPTIONS = {"spe": {}, "conv_spe": {"kernel_size": KERNEL}}
every = pytest.mark.parametrize("name", OPTIONS)


def build(name, **options):
    return random_encoding(name, **OPTIONS[name], **options)


def inputs(queries=3, keys=4):
    return randn(1, H, queries, D, seed=1), randn(1, H, keys, D, seed=2)


def expected_scores(encoding, q, k, q_offset, k_offset):
    """Returns Σ_n q_in k_jn ((1−g_n) c_n(i−j) + g_n), (H, queries, keys).

    c_n(x) is softplus(gain_n)² cos(2π f_n x + o_n) / 2 for SPE and Σ_p u_np w_{n,p+x} for ConvSPE.
    """
    i = torch.arange(q_offset, q_offset + q.size(2))[:, None]
    distance = i - torch.arange(k_offset, k_offset + k.size(2))
    if encoding.name == "spe":
        f, o, gain = (x[..., None] for x in (encoding.freqs.sigmoid() / 2, encoding.offsets, encoding.gains))
        wave = torch.cos(2 * math.pi * f * distance + o)  # (H, d, queries, keys)
        shared = torch.log(1 + gain.exp()) ** 2 * wave / 2
    else:
        shared = torch.zeros(H, D, *distance.shape, dtype=torch.float64)
        for p in range(KERNEL):
            other = p + distance
            w = encoding.kernel_k[..., other.clamp(0, KERNEL - 1)] * ((other >= 0) & (other < KERNEL))
            shared += encoding.kernel_q[..., p, None, None] * w
    gate = encoding.gate.sigmoid()[..., None, None]
    return torch.einsum("hin,hjn,hnij->hij", q[0], k[0], (1 - gate) * shared + gate)


@every
@torch.no_grad()
def test_scores_match_expectation_on_average(name):
    encoding, (q, k) = build(name).train(), inputs()
    draws = torch.stack([products(encoding, q, k, 9, 7)[0] for _ in range(1000)])
    expected, error = expected_scores(encoding, q, k, 9, 7), draws.std(dim=0) / math.sqrt(len(draws))
    assert ((draws.mean(dim=0) - expected) / error).abs().max() < 4.5
    assert (expected.abs() > 20 * error).any()


@every
@torch.no_grad()
def test_draws_of_noise(name):
    encoding, (q, k) = build(name), inputs(9, 9)
    first = products(encoding, q, k)
    assert first.equal(products(encoding, q, k))
    for layer in (1, 2):
        other = build(name, layer=layer)
        other.load_state_dict(encoding.state_dict())
        assert torch.allclose(first, products(other, q, k)) == (layer == 1)
    encoding.train()
    draws = []
    for seed in (4, 5, 5):
        torch.manual_seed(seed)
        draws.append(products(encoding, q, k))
    assert draws[2].equal(draws[1]) and not torch.allclose(*draws[:2])


@torch.no_grad()
def test_fixed_noise_depends_on_the_position_only():
    encoding, x = build("conv_spe"), randn(1, H, 200, D)
    whole, _ = encoding(x, x)
    for start, stop in ((0, 1), (63, 65), (130, 200)):
        part, _ = encoding(x[:, :, start:stop], x[:, :, :1], Context(start))
        assert_same(part, whole[:, :, start:stop], 1e-12)
    index = torch.tensor([70, 3, 3, 0])
    found, _ = encoding(x[:, :, index], x[:, :, index], Context(*(PositionIndex(index, index, 80),) * 2))
    assert_same(found, whole[:, :, index], 1e-12)
    noise = encoding._noise(0, 1000, encoding._fixed_block)
    assert abs(noise.mean()) < 0.03 and abs(noise.std() - 1) < 0.03
    assert not noise[:, :, :64].equal(noise[:, :, 64:128])
    noise = build("spe", head_dim=64).noise
    assert noise.shape == (3, H, 64, 64) and abs(noise.std() - 1) < 0.03


@every
def test_building_does_not_advance_the_global_generator(name):
    """Fixed noise comes from a separate generator."""
    following = []
    for layer in (1, 9):
        torch.manual_seed(3)
        build_encoding(name, num_heads=H, head_dim=D, causal=True, layer=layer)
        following.append(torch.randn(3))
    assert following[0].equal(following[1])
