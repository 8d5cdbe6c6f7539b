"""Compares LRPE with explicit matrices W_s = Pᴴ Λ(s) P, and with the paper's pseudocode."""

import itertools
import math

import pytest
import torch
from pairwise_scores import products
from tensors import randn

from fairseq_lrpe.encodings import build_encoding

COMBINATIONS = [
    *itertools.product(
        ("unitary", "orthogonal", "mixed", "permutation"), ("identity", "householder", "odd_even")
    ),
    ("unitary", "fft"),
]
every_combination = pytest.mark.parametrize(("core", "rotation"), COMBINATIONS)
MAX_POSITIONS = 40


def build(core, rotation, d=6, heads=2, **options):
    """Returns a float64 encoding whose parameters are random."""
    encoding = build_encoding(
        "lrpe",
        num_heads=heads,
        head_dim=d,
        causal=True,
        max_positions=MAX_POSITIONS,
        core=core,
        rotation=rotation,
        **options,
    ).double()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.copy_(torch.rand_like(parameter) + 0.1)
    return encoding


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def angles(core, theta_type, d):
    """Returns the frozen angles of each ``theta_type``."""
    e = d // 2 + d // 2 % 2 if core == "mixed" else d
    count = d if core == "unitary" else e // 2
    step = math.pi / 2 / MAX_POSITIONS
    formulas = {
        "a": lambda t: 10000 ** (-2 * t / e),
        "b": lambda t: step * (t + 1) / count,
        "c": lambda t: step / (t + 1),
    }
    return torch.tensor([formulas[theta_type](t) for t in range(count)], dtype=torch.float64)


def rotation_matrix(rotation, d, v):
    """Returns P as a complex d×d matrix."""
    p = torch.zeros(d, d, dtype=torch.complex128)
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


def matrix_scores(encoding, q, k, q_offset, k_offset, theta):
    """Computes Re((W_s q)ᴴ W_t k) with W_s = Pᴴ Λ(s) P, pair by pair."""
    d = encoding.head_dim
    p = rotation_matrix(encoding.rotation, d, getattr(encoding, "v", None))
    permutation = getattr(encoding, "permutation", None)

    def w(s):
        return p.conj().T @ core_matrix(encoding.core, d, s, theta, permutation) @ p

    scores = [
        [
            torch.einsum(
                "bha,ac,bhc->bh",
                q[:, :, i].to(p.dtype),
                w(q_offset + i).conj().T @ w(k_offset + j),
                k[:, :, j].to(p.dtype),
            ).real
            for j in range(k.size(2))
        ]
        for i in range(q.size(2))
    ]
    return torch.stack([torch.stack(row, dim=-1) for row in scores], dim=-2)


def cases():
    for core, rotation in COMBINATIONS:
        types = "a" if core == "permutation" else "abc"
        learned = [{}]
        if core != "permutation":
            learned.append({"learn_theta": True})
        if rotation == "householder":
            learned.append({**learned[-1], "learn_householder": True})
        for theta_type, d in itertools.product(types, (6,) if core == "orthogonal" else (6, 5)):
            for options in learned:
                yield pytest.param(
                    core,
                    rotation,
                    d,
                    {"theta_type": theta_type, **options},
                    id="-".join([core, rotation, str(d), theta_type, *options]),
                )


@pytest.mark.parametrize(("core", "rotation", "d", "options"), list(cases()))
def test_scores_and_gradients_match_explicit_matrices(core, rotation, d, options):
    encoding = build(core, rotation, d, **options)
    learned = dict(encoding.named_parameters())
    assert set(learned) == {
        {"learn_theta": "theta", "learn_householder": "v"}[x] for x in options if x != "theta_type"
    }
    theta = None
    if core != "permutation":
        theta = learned.get("theta", angles(core, options["theta_type"], d))
    leaves = [
        randn(2, 2, 3, d, seed=1).requires_grad_(),
        randn(2, 2, 4, d, seed=2).requires_grad_(),
        *learned.values(),
    ]
    results = []
    for function in (products, lambda *args: matrix_scores(*args, theta=theta)):
        out = function(encoding, *leaves[:2], 7, 2)
        results.append((out, *torch.autograd.grad((out * randn(*out.shape)).sum(), leaves)))
    assert_same(*results)
    if "v" in learned:
        assert abs(learned["v"].norm() - 1) > 1e-3


class Pseudocode:
    """The class ``Lrpe`` of TMLR Appendix D.2, for x of shape (b, l, e)."""

    def __init__(self, core_matrix, p_matrix, theta_type, v=None, permutation=None):
        self.core_matrix, self.p_matrix, self.theta_type = core_matrix, p_matrix, theta_type
        self.v = v
        if permutation is not None:
            expanded = [torch.arange(len(permutation)).unsqueeze(0)]
            for _ in range(MAX_POSITIONS - 1):
                expanded.append(expanded[-1].gather(-1, permutation.reshape(1, -1)))
            self.permutation = torch.stack(expanded, dim=1)

    def __call__(self, x):
        if self.p_matrix == 2:
            y = torch.matmul(x, self.v.reshape(1, -1, 1))
            x = x - 2 * torch.matmul(y, self.v.reshape(1, 1, -1))
        elif self.p_matrix == 3:
            x = torch.fft.fft(x, norm="ortho")
        elif self.p_matrix == 4:
            e = x.shape[-1]
            d = e - e // 2
            permutation, index = torch.arange(e), torch.arange(e)
            permutation[::2] = index[::2] // 2
            permutation[1::2] = (index[1::2] - 1) // 2 + d
            x = x.gather(-1, permutation.expand_as(x))
        _, length, d = x.shape
        if self.core_matrix == 1:
            return self.transform(x, d - 1 if d % 2 == 1 else d)
        if self.core_matrix == 2:
            return self.transform(x, d // 2 + d // 2 % 2)
        if self.core_matrix == 3:
            return x.gather(-1, self.permutation[:, :length, :].expand_as(x))
        theta = 10000 ** (-2 / d * torch.arange(d).double())
        matrix = theta.reshape(1, 1, -1) * torch.arange(length).reshape(1, -1, 1)
        return x * torch.complex(torch.cos(matrix), torch.sin(matrix))

    def transform(self, x, e):
        length = x.shape[1]
        x1, x = x[:, :, e:], x[:, :, :e]
        if self.theta_type == "a":
            theta = 10000 ** (-2 / e * torch.arange(e // 2).double())
        elif self.theta_type == "b":
            theta = math.pi / 2 / length / (e // 2) * torch.arange(1, e // 2 + 1).double()
        elif self.theta_type == "c":
            theta = math.pi / 2 / length / torch.arange(1, e // 2 + 1).double()
        theta = torch.stack([theta, theta], dim=-1).reshape(1, 1, e)
        theta = theta * torch.arange(length).reshape(1, -1, 1)
        x_half = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).reshape_as(x)
        return torch.cat([x * torch.cos(theta) + x_half * torch.sin(theta), x1], dim=-1)


@pytest.mark.parametrize("theta_type", ["a", "b", "c"])
@every_combination
def test_scores_match_pseudocode_of_the_paper(core, rotation, theta_type):
    if core == "unitary":
        theta_type = "a"  # the only type that the pseudocode has for it
    encoding = build(core, rotation, 8, theta_type=theta_type)
    oracle = Pseudocode(
        {"orthogonal": 1, "mixed": 2, "permutation": 3, "unitary": 4}[core],
        {"identity": 1, "householder": 2, "fft": 3, "odd_even": 4}[rotation],
        theta_type,
        getattr(encoding, "v", None),
        getattr(encoding, "permutation", None),
    )
    q, k = randn(3, MAX_POSITIONS, 8, seed=1), randn(3, MAX_POSITIONS, 8, seed=2)
    expected = (oracle(q).conj() @ oracle(k).transpose(-1, -2)).real
    if rotation == "householder":  # stored in float32, in which it was drawn
        assert abs(encoding.v.norm() - 1) < 1e-6
        encoding.v /= encoding.v.norm()
        oracle.v = encoding.v
        expected = (oracle(q).conj() @ oracle(k).transpose(-1, -2)).real
    assert_same(products(encoding, q[:, None], k[:, None])[:, 0], expected)


@every_combination
def test_state_dict(core, rotation):
    learn_theta, learn_v = core != "permutation", rotation == "householder"
    encoding = build_encoding(
        "lrpe",
        num_heads=2,
        head_dim=6,
        causal=True,
        core=core,
        rotation=rotation,
        learn_theta=learn_theta,
        learn_householder=learn_v,
    )
    sizes = {"unitary": {"theta": 6}, "orthogonal": {"theta": 3}, "mixed": {"theta": 2}}
    expected = {**sizes.get(core, {"permutation": 6}), **({"v": 6} if learn_v else {})}
    assert {n: tuple(x.shape) for n, x in encoding.state_dict().items()} == {
        name: (size,) for name, size in expected.items()
    }
    assert set(dict(encoding.named_parameters())) == set(expected) - {"permutation"}
    if learn_theta:  # initialized to the frozen angles
        torch.testing.assert_close(encoding.theta.detach(), angles(core, "a", 6).float(), rtol=1e-6, atol=0)


def test_frozen_encoding_has_no_parameters_and_keeps_its_vector():
    encoding = build("orthogonal", "householder")
    assert not list(encoding.parameters())
    assert set(encoding.state_dict()) == {"v"}


def test_only_a_frozen_householder_vector_is_normalized():
    """In both papers' pseudocode, a learned v starts as N(0, I), and every step divides by its norm."""
    vectors = []
    for learned in (False, True):
        torch.manual_seed(0)
        options = {"core": "unitary", "learn_householder": learned}
        vectors.append(build_encoding("lrpe", num_heads=2, head_dim=64, causal=True, **options).v.detach())
    frozen, learned = vectors
    torch.manual_seed(0)
    assert torch.equal(learned, torch.randn(64))
    torch.testing.assert_close(frozen, learned / learned.norm())


@pytest.mark.parametrize("learned", [False, True], ids=["frozen", "learned"])
@pytest.mark.parametrize("core", ["unitary", "orthogonal", "mixed"])
def test_far_positions_in_float32(core, learned):
    """At position 100,000 a float32 product s·θ would be off by 0.01."""
    encoding = build(core, "identity", 32, learn_theta=learned).float()
    theta = encoding.theta.detach().double() if learned else angles(core, "a", 32)
    x = torch.randn(1, 1, 1, 32, generator=torch.Generator().manual_seed(0))
    x = x / x.norm()
    encoded, _ = encoding(x, x, 100_000, 0)
    exact = core_matrix(core, 32, 100_000, theta, None) @ x[0, 0, 0].to(torch.complex128)
    exact = torch.cat([exact.real, exact.imag]) if core == "unitary" else exact.real
    torch.testing.assert_close(encoded[0, 0, 0].double(), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("d", "options", "message"),
    [
        (6, {"core": "magic"}, r"'magic'.*unitary, orthogonal, mixed, permutation"),
        (6, {"rotation": "magic"}, r"'magic'.*identity, householder, odd_even, fft"),
        (6, {"theta_type": "magic"}, r"'magic'.*a, b, c"),
        (6, {"core": "orthogonal", "rotation": "fft"}, r"unitary core.*'orthogonal'"),
        (6, {"core": "mixed", "rotation": "fft"}, r"unitary core.*'mixed'"),
        (6, {"core": "permutation", "rotation": "fft"}, r"unitary core.*'permutation'"),
        (6, {"core": "permutation", "learn_theta": True}, r"remove learn_theta"),
        (6, {"rotation": "identity", "learn_householder": True}, r"remove learn_householder"),
        (7, {"core": "orthogonal"}, r"even, not 7"),
        (2, {"core": "mixed"}, r"at least 3, not 2"),
    ],
)
def test_errors_name_valid_choices(d, options, message):
    with pytest.raises(ValueError, match=message):
        build_encoding("lrpe", num_heads=1, head_dim=d, causal=True, **options)
