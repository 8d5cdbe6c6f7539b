"""Compares multiplicative and hierarchical positions with loops over their definitions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_lrpe.positions import build_position

E, V, N = 6, 11, 5
ALPHA = 0.4


def build(name, n=N, width=E):
    return build_position(name, embed_dim=width, vocab_size=V, max_positions=n).double()


def multiplied(x, p, k):
    return torch.stack([x[e] * p[k, e] for e in range(len(x))])


def decomposed(x, p, k):
    i, j = divmod(k, len(p))
    u = [(row - ALPHA * p[0]) / (1 - ALPHA) for row in p]
    return x + ALPHA * u[i] + (1 - ALPHA) * u[j]


@pytest.mark.parametrize(
    ("name", "definition", "positions"),
    [
        ("multiplicative", multiplied, [[0, 1, 2, 3], [4, 4, 0, 2]]),
        ("hierarchical", decomposed, [[0, 1, 2, 3], [4, 4, 0, 2]]),
        ("hierarchical", decomposed, [[0, 4, 5, 6], [24, 24, 10, 9]]),
    ],
)
def test_matches_definition(name, definition, positions):
    module = build(name)
    x = torch.randn(2, 4, E, dtype=torch.float64, requires_grad=True)
    loops = torch.stack(
        [
            torch.stack([definition(x[b, i], module.weight, k) for i, k in enumerate(row)])
            for b, row in enumerate(positions)
        ]
    )
    out = module(x, torch.tensor(positions), torch.full((2, 4), 3))
    mixed = torch.randn(2, 4, E, dtype=torch.float64)
    results = [
        (y, *torch.autograd.grad((y * mixed).sum(), (x, module.weight), retain_graph=True))
        for y in (out, loops)
    ]
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(n=st.integers(1, 7), data=st.data())
def test_hierarchical_continues_the_learned_table(n, data):
    k = data.draw(st.integers(0, n * n - 1))
    module = build("hierarchical", n=n)
    zero, tokens = torch.zeros(1, 1, E, dtype=torch.float64), torch.tensor([[3]])
    out = module(zero, torch.tensor([[k]]), tokens)[0, 0]
    torch.testing.assert_close(out, decomposed(zero[0, 0], module.weight, k), rtol=1e-12, atol=1e-12)
    if k < n:
        assert out.equal(module.weight[k])


@pytest.mark.parametrize(("name", "end"), [("multiplicative", N), ("hierarchical", N * N)])
def test_positions_beyond_the_limit_are_rejected(name, end):
    module = build(name)
    x, tokens = torch.randn(1, 2, E, dtype=torch.float64), torch.tensor([[3, 3]])
    assert module(x, torch.tensor([[0, end - 1]]), tokens).isfinite().all()
    with pytest.raises(ValueError, match=rf"^{name} .* at most .*{end} tokens, not {end + 1}$"):
        module(x, torch.tensor([[0, end]]), tokens)


def test_initialization():
    p = build("multiplicative", n=64, width=64).weight
    assert abs(p.mean() - 1) < 0.002 and abs(p.std() - 0.02) < 0.001
    p = build("hierarchical", n=64, width=64).weight
    assert abs(p.mean()) < 0.01 and abs(p.std() - 64**-0.5) < 0.005


def test_hierarchical_loads_the_positions_of_a_shorter_training():
    trained, longer = build("hierarchical"), build("hierarchical", n=3 * N)
    longer.load_state_dict(trained.state_dict())
    x, positions = torch.randn(1, N * N, E, dtype=torch.float64), torch.arange(N * N)[None]
    tokens = torch.full((1, N * N), 3)
    assert longer(x, positions, tokens).equal(trained(x, positions, tokens))
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        trained.load_state_dict(build("hierarchical", n=3 * N).state_dict())
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        build("multiplicative", n=3 * N).load_state_dict(build("multiplicative").state_dict())
