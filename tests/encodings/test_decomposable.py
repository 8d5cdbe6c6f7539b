"""Compares PermuteFormer, RoPER, cosFormer and SPE with loops over their formulas."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pairwise_scores import D, H, check_scores, pairwise_matrix, products
from tensor_sizes import TensorSizes
from tensors import assert_same, randn

from fairseq_lrpe.attention.fairseq_adapter import FairseqLinearAttention
from fairseq_lrpe.encodings import build_encoding
from fairseq_lrpe.ops import linear_attention

M, E = 40, H * D
NAMES = ("per", "roper", "cosformer", "spe")
every_encoding = pytest.mark.parametrize("name", NAMES)
both_ways = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
quick = settings(max_examples=25, deadline=None, derandomize=True)


def build(name, causal=True, heads=H, d=D, layer=1, dtype=torch.float64, **options):
    """Repowers an encoding in evaluation mode whose parameters are all random."""
    encoding = build_encoding(
        name, num_heads=heads, head_dim=d, causal=causal, layer=layer, max_positions=M, **options
    )
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.normal_()
    return encoding.to(dtype).eval()


def permuted(encoding, h):
    """Repowers the matrix P of head h: (P x)_a = x_π(a)."""
    p = torch.zeros(encoding.head_dim, encoding.head_dim, dtype=torch.float64)
    for a in range(encoding.head_dim):
        p[a, encoding.permutation[h, a]] = 1
    return p


def per(encoding, q, k, i, j, h):
    """Pⁱ q · Pʲ k (Chen 2021, Eqs. 8-11), without the decay."""
    power, p = torch.linalg.matrix_power, permuted(encoding, h)
    return ((q @ power(p, i).T) * (k @ power(p, j).T)).sum(-1)


def rate(encoding, h):
    """r_h of PermuteFormer: sigmoid(3h/H + 2), or 1 if not causal."""
    return 1 / (1 + math.exp(-(3 * h / encoding.num_heads + 2))) if encoding.causal else 1.0


def rotated(x, s):
    """RoPE(x, s), pair by pair (RoPER, Harik and Jayasiri 2022)."""
    d = x.size(-1)
    out = []
    for t in range(d // 2):
        cos, sin = math.cos(s * 10000 ** (-2 * t / d)), math.sin(s * 10000 ** (-2 * t / d))
        out.append(x[..., 2 * t] * cos - x[..., 2 * t + 1] * sin)
        out.append(x[..., 2 * t + 1] * cos + x[..., 2 * t] * sin)
    return torch.stack(out, dim=-1)


def roper(encoding, q, k, i, j, h):
    return (rotated(q, i) * rotated(k, j)).sum(-1)


def cosformer(encoding, q, k, i, j, h):
    """Qin et al. 2022, Eq. 10; LRPE TMLR Eq. 35 with α = π/2M."""
    return math.cos(math.pi * (i - j) / (2 * M)) * (q * k).sum(-1)


def spe(encoding, q, k, i, j, h):
    """Σ_r q̂_r k̂_r, summed explicitly over the realizations r."""
    d = encoding.head_dim
    total = 0
    for r in range(encoding.noise.size(-1)):
        q_hat, k_hat = 0, 0
        for n in range(d):
            z1, z2, z3 = (encoding.noise[m, h, n, r] for m in range(3))
            frequency = torch.sigmoid(encoding.freqs[h, n, 0]) / 2
            gain = torch.log(1 + torch.exp(encoding.gains[h, n, 0])) / math.sqrt(2)
            gate = torch.sigmoid(encoding.gate[h, n])
            phase_q = 2 * math.pi * frequency * i + encoding.offsets[h, n, 0]
            phase_k = 2 * math.pi * frequency * j
            code_q = gain * (torch.cos(phase_q) * z1 + torch.sin(phase_q) * z2)
            code_k = gain * (torch.cos(phase_k) * z1 + torch.sin(phase_k) * z2)
            q_hat = q_hat + q[..., n] * ((1 - gate).sqrt() * code_q + gate.sqrt() * z3)
            k_hat = k_hat + k[..., n] * ((1 - gate).sqrt() * code_k + gate.sqrt() * z3)
        total = total + q_hat * k_hat / math.sqrt(d * encoding.noise.size(-1))
    return total


SCORES = {"per": per, "roper": roper, "cosformer": cosformer, "spe": spe}


@every_encoding
@pytest.mark.parametrize(("q_offset", "k_offset"), [(0, 0), (7, 2), (5, 5), (0, 30)])
@pytest.mark.parametrize("d", [4, 6])
def test_scores_and_gradients_match_formula(name, q_offset, k_offset, d):
    encoding = build(name, d=d)
    leaves = [
        randn(2, H, 3, d, seed=1).requires_grad_(),
        randn(2, H, 4, d, seed=2).requires_grad_(),
        *encoding.parameters(),
    ]
    offsets, results = (q_offset, k_offset), []
    for out in (
        products(encoding, *leaves[:2], *offsets),
        pairwise_matrix(SCORES[name], encoding, *leaves[:2], *offsets, causal=False),
    ):
        results.append((out, *torch.autograd.grad((out * randn(*out.shape, seed=3)).sum(), leaves)))
    assert_same(*results)


@pytest.mark.parametrize(("queries", "keys", "q_offset"), [(6, 6, 0), (1, 9, 8), (3, 8, 5)])
def test_per_in_softmax_attention_multiplies_the_scores(queries, keys, q_offset):
    def decayed(encoding, q, k, i, j, h):
        return per(encoding, q, k, i, j, h) * rate(encoding, h) ** (i - j) / math.sqrt(D)

    check_scores(decayed, build("per"), queries, keys, q_offset)


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_per_decay_rates(heads):
    encoding = build("per", heads=heads)
    expected = torch.tensor([rate(encoding, h) for h in range(heads)], dtype=torch.float64)
    assert_same(encoding.log_decay.exp(), expected)
    assert build("per", causal=False).log_decay is None
    x = randn(1, H, 3, D)
    assert build("per", causal=False).score_function(x, x) is build("per").bias(x, x) is None


# PermuteFormer at far positions.


@pytest.mark.parametrize(
    ("length", "dtype"), [(100_000, torch.float32), (8192, torch.float16)], ids=["float32", "float16"]
)
def test_per_decay_is_finite_where_the_published_quotient_overflows(length, dtype):
    encoding = build("per", d=8, dtype=dtype)
    q, k = (torch.rand(1, H, length, 8, generator=torch.Generator().manual_seed(s)) for s in (1, 2))
    v = torch.randn(1, H, length, 4, generator=torch.Generator().manual_seed(3))
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    q_encoded, k_encoded = encoding(q, k)
    ours = linear_attention(
        q_encoded, k_encoded, v, causal=True, normalize=True, log_decay=encoding.log_decay, backend="chunk"
    )
    assert torch.isfinite(ours).all()

    # As published: q rⁱ and k r⁻ʲ.
    r = torch.tensor([rate(encoding, h) for h in range(H)], dtype=dtype)[:, None, None]
    s = torch.arange(length)[:, None]
    quotient_q, quotient_k = q_encoded * r**s, k_encoded * r**-s
    assert torch.isinf(quotient_k).any()
    theirs = linear_attention(quotient_q, quotient_k, v, causal=True, normalize=True, backend="chunk")
    assert not torch.isfinite(theirs[:, :, -1]).any()

    for h in range(H):
        p = permuted(encoding, h)
        powers = [torch.eye(8, dtype=torch.float64)]
        while len(powers) == 1 or not powers[-1].equal(powers[0]):
            powers.append(p @ powers[-1])
        powers = torch.stack(powers[:-1])
        for i in (length // 2, length - 7, length - 1):
            j = torch.arange(i + 1)
            key = torch.einsum("jab,jb->ja", powers[j % len(powers)], k[0, h, : i + 1].double())
            weight = (key @ (powers[i % len(powers)] @ q[0, h, i].double())) * rate(encoding, h) ** (i - j)
            expected = weight @ v[0, h, : i + 1].double() / weight.sum()
            bound = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
            torch.testing.assert_close(ours[0, h, i].double(), expected, rtol=bound, atol=bound)


def test_per_at_far_positions_in_softmax_attention():
    encoding = build("per", dtype=torch.float32)
    q, k = randn(1, H, 3, D, seed=1).float(), randn(1, H, 100_003, D, seed=2).float()
    q, k = encoding(q, k, 100_000, 0)
    faded = encoding.score_function(q, k, 100_000)(q, k, 100_000)
    assert torch.isfinite(faded).all()
    assert faded[..., :90_000].abs().max() < 1e-6 < faded[..., -50:].abs().max()


# SPE's noise.


def training_spe():
    return build("spe").train(), randn(1, H, 3, D, seed=1), randn(1, H, 3, D, seed=2)


def test_spe_scores_match_expectation_on_average():
    """E[q̂_i·k̂_j] = Σ_n q_in k_jn ((1−g_n) softplus(gain_n)² cos(2πf_n(i−j) + o_n) / 2 + g_n)."""
    encoding, q, k = training_spe()
    encoding.requires_grad_(False)
    with torch.no_grad():
        draws = torch.stack([products(encoding, q, k, 9, 4) for _ in range(3000)])
    expected = torch.zeros(H, 3, 3, dtype=torch.float64)
    for h, i, j, n in itertools.product(range(H), range(3), range(3), range(D)):
        gate = 1 / (1 + math.exp(-encoding.gate[h, n]))
        frequency = 1 / (1 + math.exp(-encoding.freqs[h, n, 0])) / 2
        gain = math.log(1 + math.exp(encoding.gains[h, n, 0]))
        wave = math.cos(2 * math.pi * frequency * (9 + i - 4 - j) + encoding.offsets[h, n, 0])
        expected[h, i, j] += q[0, h, i, n] * k[0, h, j, n] * ((1 - gate) * gain**2 * wave / 2 + gate)
    error = draws.std(dim=0)[0] / math.sqrt(len(draws))
    assert ((draws.mean(dim=0)[0] - expected) / error).abs().max() < 4.5
    assert (expected.abs() > 20 * error).any()


def test_spe_noise_in_training_and_evaluation():
    encoding, q, k = training_spe()
    first, second = products(encoding, q, k), products(encoding, q, k)
    assert not torch.allclose(first, second)
    torch.manual_seed(5)
    first = products(encoding, q, k)
    torch.manual_seed(5)
    assert first.equal(products(encoding, q, k))
    # q and k and all sentences of a batch share the noise.
    with torch.no_grad():
        encoding.offsets.zero_()
    ours, same = encoding(q, q)
    assert_same(ours, same)
    ours, _ = encoding(q.expand(3, -1, -1, -1), k.expand(3, -1, -1, -1))
    assert_same(ours, ours[:1].expand(3, -1, -1, -1))
    encoding.eval()
    assert products(encoding, q, k).equal(products(encoding, q, k))
    assert encoding.noise.std() > 0.7 and encoding.noise.shape == (3, H, D, D)


def test_all_spe_parameters_get_gradients():
    encoding, q, k = training_spe()
    products(encoding, q, k, 3, 0).pow(2).sum().backward()
    for name in ("freqs", "offsets", "gains", "gate"):
        gradient = getattr(encoding, name).grad
        assert torch.isfinite(gradient).all() and (gradient != 0).all()


def test_spe_evaluation_noise_differs_between_layers():
    first, again, other = build("spe", layer=3), build("spe", layer=3), build("spe", layer=4)
    assert first.noise.equal(again.noise) and not torch.allclose(first.noise, other.noise)
    again.load_state_dict(first.state_dict())
    q, k = randn(1, H, 9, D, seed=1), randn(1, H, 9, D, seed=2)
    assert products(first, q, k, 3, 1).equal(products(again, q, k, 3, 1))


def test_building_spe_does_not_advance_the_global_generator():
    """Its fixed noise comes from a separate generator."""
    torch.manual_seed(3)
    build_encoding("spe", num_heads=H, head_dim=D, causal=True, layer=1)
    after = torch.randn(3)
    torch.manual_seed(3)
    build_encoding("spe", num_heads=H, head_dim=D, causal=True, layer=9)
    assert after.equal(torch.randn(3))


# Shared properties.


@quick
@given(offset=st.integers(0, 500), length=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_roper_rotates_values_back(offset, length, seed):
    encoding, v = build("roper", d=6), randn(1, H, length, 6, seed=seed)
    turned_values = encoding.encode_values(v, offset)
    expected = torch.stack([rotated(v[:, :, i], offset + i) for i in range(length)], dim=2)
    assert_same(turned_values, expected)
    assert_same(encoding.decode_output(turned_values, offset), v, 1e-12)


@every_encoding
@pytest.mark.parametrize("training", [True, False], ids=["training", "decoding"])
def test_memory_is_bounded_by_the_features(name, training):
    """No tensor has shape (L, H, d, R) or (L, L)."""
    length, d = 256, 16
    module = FairseqLinearAttention(build(name, d=d)).double().train(training)
    leaves = [randn(2, H, length, d, seed=s).requires_grad_() for s in (1, 2)]
    with TensorSizes() as sizes:
        sum(x.sum() for x in module.encoding(*leaves)).backward()
    assert sizes.largest <= 4 * 2 * H * length * d
    with TensorSizes() as sizes:
        module(randn(length, 2, H * d))[0].sum().backward()
    assert sizes.largest <= 4 * 2 * H * length * d


STATE = {
    "per": {"permutation": (H, D)},
    "roper": {},
    "cosformer": {},
    "spe": {"freqs": (H, D, 1), "offsets": (H, D, 1), "gains": (H, D, 1), "gate": (H, D)},
}


@every_encoding
def test_state_dict(name):
    encoding = build(name)
    assert {n: tuple(x.shape) for n, x in encoding.state_dict().items()} == STATE[name]
    assert set(dict(encoding.named_parameters())) == (set() if name == "per" else set(STATE[name]))
    assert encoding.decomposable and math.isclose(encoding.scale, 1 / math.sqrt(D))
    q, k = encoding(randn(1, H, 3, D), randn(1, H, 3, D))
    assert q.size(-1) == k.size(-1) == (2 * D if name == "cosformer" else D)
    if name != "per":
        assert encoding.log_decay is None and encoding.bias(q, k) is None
    if name != "roper":
        assert encoding.encode_values(k, 3) is k and encoding.decode_output(q, 3) is q


def test_per_has_one_permutation_per_head():
    saved, other = (build("per", heads=4, d=16) for _ in range(2))
    assert len({tuple(p) for p in saved.permutation.tolist()}) == 4
    for p in saved.permutation:
        assert p.sort().values.equal(torch.arange(16))
    q, k = randn(1, 4, 9, 16, seed=1), randn(1, 4, 9, 16, seed=2)
    assert not torch.allclose(products(saved, q, k), products(other, q, k))
    other.load_state_dict(saved.state_dict())
    assert products(saved, q, k, 3, 1).equal(products(other, q, k, 3, 1))


@pytest.mark.parametrize(
    ("name", "d", "options", "message"),
    [
        ("roper", 7, {}, "roper.*even, not 7"),
        ("per", 4, {"k": 1}, "'per'.*'k'.*none"),
        ("cosformer", 4, {"theta_type": "a"}, "'cosformer'.*'theta_type'"),
        ("spe", 4, {"num_sines": 5}, "'spe'.*'num_sines'"),
    ],
)
def test_invalid_arguments_are_rejected(name, d, options, message):
    with pytest.raises(ValueError, match=message):
        build(name, d=d, **options)
