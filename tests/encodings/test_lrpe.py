"""Compares LRPE with explicit matrices W_s = Pᴴ Λ(s) P, and with the paper's pseudocode."""

import copy
import math

import pytest
import torch
from support.pairwise_scores import pairwise_matrix, products, random_encoding
from support.tensors import assert_same, randn, with_gradients

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention
from fairseq_lrpe.ops.orthogonal import cayley
from fairseq_lrpe.ops.rotation import rotary_angles

MAX_POSITIONS = 40


def build(core, rotation, d=6, **options):
    options |= {"core": core, "rotation": rotation, "max_positions": MAX_POSITIONS}
    encoding = random_encoding("lrpe", head_dim=d, **options)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.uniform_(0.1, 1.1)
    return encoding


def rotation_matrix(rotation, d, v, generator=None):
    """Returns P as a complex d×d matrix."""
    p = torch.zeros(d, d, dtype=torch.complex128)
    if rotation == "cayley":
        entries = iter(generator)
        rows = [[0] * d for _ in range(d)]
        for i in range(d):
            for j in range(i + 1, d):
                rows[i][j] = next(entries)
                rows[j][i] = -rows[i][j]
        a = torch.stack([torch.stack([torch.as_tensor(x, dtype=torch.float64) for x in row]) for row in rows])
        return ((torch.eye(d) - a) @ torch.linalg.inv(torch.eye(d) + a)).to(p.dtype)
    if rotation == "householder":
        return (torch.eye(d) - 2 * torch.outer(v, v) / v.dot(v)).to(p.dtype)
    for i in range(d):
        if rotation == "identity":
            p[i, i] = 1
        elif rotation == "odd_even":
            p[i, i // 2 if i % 2 == 0 else i // 2 + math.ceil(d / 2)] = 1
        else:
            for j in range(d):
                turn = -2 * math.pi * i * j / d
                p[i, j] = complex(math.cos(turn), math.sin(turn)) / math.sqrt(d)
    return p


def core_matrix(core, d, s, theta, permutation):
    """Returns Λ(s) as a complex d×d matrix."""
    m = torch.zeros(d, d, dtype=torch.complex128)
    if core == "permutation":
        for i in range(d):
            m[i, permutation[i]] = 1
        return torch.linalg.matrix_power(m, s)
    if core == "unitary":
        return torch.diag(torch.exp(1j * s * theta))
    for t, angle in enumerate(theta):
        cos, sin = torch.cos(s * angle), torch.sin(s * angle)
        m[2 * t, 2 * t], m[2 * t, 2 * t + 1] = cos, -sin
        m[2 * t + 1, 2 * t], m[2 * t + 1, 2 * t + 1] = sin, cos
    for i in range(2 * len(theta), d):
        m[i, i] = 1
    return m


def formula(theta):
    """Returns the score Re((W_i q)ᴴ W_j k) of a pair, with W_s = Pᴴ Λ(s) P."""

    def score(encoding, q, k, i, j, h):
        d = encoding.head_dim
        learned = getattr(encoding, "v", None), getattr(encoding, "generator", None)
        p = rotation_matrix(encoding.rotation, d, *learned)
        permutation = getattr(encoding, "permutation", None)
        w_i, w_j = (p.mH @ core_matrix(encoding.core, d, s, theta, permutation) @ p for s in (i, j))
        return torch.einsum("ba,ac,bc->b", q.to(p.dtype), w_i.mH @ w_j, k.to(p.dtype)).real

    return score


THETA, VECTOR = {"learn_theta": True}, {"learn_householder": True}
CASES = [  # (core, rotation, d, options)
    ("unitary", "identity", 6, {}),
    ("unitary", "identity", 5, {"theta_type": "b", **THETA}),
    ("unitary", "householder", 5, {"theta_type": "c", **THETA, **VECTOR}),
    ("unitary", "odd_even", 5, THETA),
    ("unitary", "fft", 6, THETA),
    ("unitary", "cayley", 5, THETA),
    ("orthogonal", "cayley", 6, THETA),
    ("mixed", "cayley", 5, {}),
    ("permutation", "cayley", 5, {}),
    ("unitary", "fft", 5, {"theta_type": "b"}),
    ("orthogonal", "identity", 6, {"theta_type": "b"}),
    ("orthogonal", "householder", 6, {}),
    ("orthogonal", "householder", 6, {"theta_type": "c", **THETA, **VECTOR}),
    ("orthogonal", "odd_even", 6, THETA),
    ("mixed", "identity", 5, {"theta_type": "b"}),
    ("mixed", "householder", 6, {**THETA, **VECTOR}),
    ("mixed", "odd_even", 5, {"theta_type": "c", **THETA}),
    ("permutation", "identity", 5, {}),
    ("permutation", "householder", 6, VECTOR),
    ("permutation", "odd_even", 5, {}),
]


@pytest.mark.parametrize("core, rotation, d, options", CASES, ids=str)
def test_scores_and_gradients_match_explicit_matrices(core, rotation, d, options):
    encoding = build(core, rotation, d, **options)
    learned = dict(encoding.named_parameters())
    expected = {{"learn_theta": "theta", "learn_householder": "v"}[x] for x in options if x != "theta_type"}
    if rotation == "cayley":
        expected.add("generator")
    assert set(learned) == expected
    theta = learned.get("theta")
    if core != "permutation" and theta is None:
        width = d // 2 + d // 2 % 2 if core == "mixed" else d
        count = d if core == "unitary" else width // 2
        theta = rotary_angles(options.get("theta_type", "a"), count, width, MAX_POSITIONS)
    q, k = (randn(2, 2, n, d, seed=n).requires_grad_() for n in (3, 4))
    leaves, found = [q, k, *learned.values()], products(encoding, q, k, 7, 2)
    expected = pairwise_matrix(formula(theta), encoding, q, k, 7, 2, causal=False)
    assert_same(with_gradients(found, leaves), with_gradients(expected, leaves))
    if "v" in learned:
        assert abs(learned["v"].norm() - 1) > 1e-3


def pseudocode(x, v, core, theta_type):
    """The class ``Lrpe`` of TMLR Appendix D.2 with the Householder matrix, for x of shape (b, l, e)."""
    x = x - 2 * torch.matmul(torch.matmul(x, v.reshape(1, -1, 1)), v.reshape(1, 1, -1))
    _, length, d = x.shape
    position, e = torch.arange(length).reshape(1, -1, 1), d // 2 + d // 2 % 2 if core == "mixed" else d
    if core == "unitary":
        theta = position * 10000 ** (-2 / d * torch.arange(d).double())
        return x * torch.complex(torch.cos(theta), torch.sin(theta))
    index = torch.arange(1, e // 2 + 1).double()
    step = math.pi / 2 / length
    thetas = {"a": 10000 ** (-2 / e * (index - 1)), "b": step / (e // 2) * index, "c": step / index}
    theta = position * torch.stack([thetas[theta_type]] * 2, dim=-1).reshape(1, 1, e)
    x1, x = x[:, :, e:], x[:, :, :e]
    x_half = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).reshape_as(x)
    return torch.cat([x * torch.cos(theta) + x_half * torch.sin(theta), x1], dim=-1)


@pytest.mark.parametrize("core", ["unitary", "orthogonal", "mixed"])
def test_scores_match_pseudocode_of_the_paper(core):
    for theta_type in "a" if core == "unitary" else "abc":
        encoding = build(core, "householder", 8, theta_type=theta_type)
        encoding.v /= encoding.v.norm()
        q, k = (randn(3, 1, MAX_POSITIONS, 8, seed=n) for n in (1, 2))
        of_q, of_k = (pseudocode(x[:, 0], encoding.v, core, theta_type) for x in (q, k))
        assert_same(products(encoding, q, k)[:, 0], (of_q.conj() @ of_k.mT).real)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("attention", [LinearAttention, SoftmaxAttention])
def test_gradient_of_angles_beside_a_decay_in_half_precision(attention, dtype):
    """It is a difference of large terms: rounding the gradients of q and k makes it noise."""
    options = {"linear_norm": "layernorm"} if attention is LinearAttention else {}
    half = attention(16, 2, "lrpe_decay", causal=True, layers=2, **options).to(dtype)
    exact, gradients = copy.deepcopy(half).double(), []
    x, outer = torch.randn(2, 500, 16).to(dtype), torch.randn(2, 500, 16).to(dtype)
    for module in (half, exact):
        like = module.q_proj.weight
        out = module(x.to(like))
        assert out.dtype == like.dtype
        gradients += torch.autograd.grad(out, module.encoding.theta, outer.to(like))
    error = (gradients[0] - gradients[1]).norm() / gradients[1].norm()
    assert error < 4 * torch.finfo(dtype).eps


def test_pope_is_the_unitary_core_on_softplus_features():
    """With PoPE's angles, and without its phases."""
    lrpe = random_encoding("lrpe", head_dim=6, core="unitary", rotation="identity", learn_theta=True)
    pope = random_encoding("pope", head_dim=6)
    with torch.no_grad():
        lrpe.theta.copy_(10000 ** (-torch.arange(6, dtype=torch.float64) / 6))
        pope.delta.zero_()
    q = randn(2, 2, 9, 6, seed=1)
    k = randn(2, 2, 9, 6, seed=2)
    expected = lrpe(torch.nn.functional.softplus(q), torch.nn.functional.softplus(k))
    assert_same(pope(q, k), expected)


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_cayley_matrices_are_orthogonal(size):
    generator = randn(size * (size - 1) // 2, seed=3).requires_grad_()
    p = cayley(10 * generator, size)
    assert_same(p @ p.mT, torch.eye(size, dtype=torch.float64), 1e-10)
    assert torch.linalg.det(p).item() == pytest.approx(1)
