"""Recurrent positions: definitions, and the cached table."""

import math
from itertools import pairwise

import pytest
import torch
from pairwise_scores import with_gradients
from tensors import assert_same
from torch import nn

from fairseq_lrpe.positions import build_position

E, V, M = 4, 11, 16
NAMES = ("recurrent", "floater", "floater_every_layer")


def build(name, width=E, n=M):
    return build_position(name, embed_dim=width, vocab_size=V, max_positions=n, layers=3).double()


def with_random_weights(name):
    module = build(name)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn_like(p) * 0.5)
    return module


def embeddings_at(module, *positions):
    """Returns the position embeddings, computed from zero embeddings without padding."""
    x = torch.zeros(1, len(positions), module.width, dtype=torch.float64)
    return module(x, torch.tensor([positions]), torch.full((1, len(positions)), 3))[0]


def layer(linear, values):
    """Computes a linear layer with a loop over scalars."""
    bias = [0.0] * linear.out_features if linear.bias is None else linear.bias
    return [
        bias[o] + sum(w * v for w, v in zip(row, values, strict=True)) for o, row in enumerate(linear.weight)
    ]


def two_layers(module, values):
    return layer(module.outer, [torch.tanh(z) for z in layer(module.inner, values)])


def recurrent_loop(module, last):
    path = [list(module.start)]
    for _ in range(last):
        p = path[-1]
        path.append([a + b for a, b in zip(p, two_layers(module, p), strict=True)])
    return path


def floater_every_layer_loop(module, last):
    layers = [floater_loop(module, last, start) for start in module.start.split(E)]
    return [[p for path in layers for p in path[k]] for k in range(last + 1)]


def floater_loop(module, last, start=None):
    step = 0.1

    def moved(p, by, slope):
        return [a + by * b for a, b in zip(p, slope, strict=True)]

    path = [list(module.start if start is None else start)]
    for k in range(last):
        p, t = path[-1], step * k
        k1 = two_layers(module, [*p, t])
        k2 = two_layers(module, [*moved(p, step / 2, k1), t + step / 2])
        k3 = two_layers(module, [*moved(p, step / 2, k2), t + step / 2])
        k4 = two_layers(module, [*moved(p, step, k3), t + step])
        slopes = zip(k1, k2, k3, k4, strict=True)
        path.append(moved(p, step, [(a + 2 * b + 2 * c + d) / 6 for a, b, c, d in slopes]))
    return path


LOOPS = (recurrent_loop, floater_loop, floater_every_layer_loop)


@pytest.mark.parametrize(("name", "loop"), list(zip(NAMES, LOOPS, strict=True)))
def test_matches_definition(name, loop):
    module = with_random_weights(name)
    positions = [[0, 1, 2, 3], [7, 2, 7, 5]]
    x = torch.randn(2, 4, module.width, dtype=torch.float64, requires_grad=True)
    path = loop(module, 7)
    loops = torch.stack([torch.stack([torch.stack(path[k]) for k in row]) for row in positions]) + x
    out = module(x, torch.tensor(positions), torch.full((2, 4), 3))
    leaves = [x, *module.parameters()]
    assert_same(with_gradients(out, leaves), with_gradients(loops, leaves))


def ode(module, inner_p, inner_t):
    """Sets h(p, t) = tanh(inner_p p + inner_t t), feature by feature."""
    with torch.no_grad():
        module.inner.weight.copy_(torch.cat([inner_p * torch.eye(E), torch.full((E, 1), inner_t)], dim=1))
        nn.init.zeros_(module.inner.bias)
        nn.init.eye_(module.outer.weight)
        nn.init.zeros_(module.outer.bias)


@pytest.mark.parametrize(
    ("inner_p", "inner_t", "solution"),
    [
        (1.0, 0.0, lambda p, t: math.asinh(math.exp(t) * math.sinh(p))),
        (0.0, 1.0, lambda p, t: p + math.log(math.cosh(t))),
    ],
)
def test_floater_converges_to_the_solution_with_order_4(inner_p, inner_t, solution):
    module = build("floater")
    ode(module, inner_p, inner_t)
    errors = []
    for steps in (10, 20, 40):
        module.delta = 2 / steps
        end = torch.tensor([solution(p, 2.0) for p in module.start.tolist()], dtype=torch.float64)
        errors.append((embeddings_at(module, steps)[0] - end).abs().max().item())
    assert errors[0] < 1e-3
    for coarse, fine in pairwise(errors):
        assert 12 < coarse / fine < 24


@pytest.mark.parametrize("width", [8, 7])
def test_recurrent_is_initially_nearly_sinusoidal(width):
    module = build("recurrent", width)
    with torch.no_grad():
        module.start.mul_(1e-4)
    table = embeddings_at(module, *range(50)) * 1e4
    start = module.start * 1e4
    for t in range(width // 2):
        a, b = start[2 * t : 2 * t + 2]
        angle = torch.arange(50, dtype=torch.float64) * 10000 ** (-2 * t / width)
        cos, sin = angle.cos(), angle.sin()
        rotated = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=1)
        torch.testing.assert_close(table[:, 2 * t : 2 * t + 2], rotated, rtol=0, atol=1e-5)
    if width % 2:
        assert table[:, -1].eq(start[-1]).all()


@pytest.mark.parametrize("name", NAMES)
def test_table_is_computed_in_float32(name):
    """In half precision and with autocast."""
    module = build(name, n=512).float()
    tokens, positions = torch.full((1, 300), 3), torch.arange(300)[None]
    zeros = torch.zeros(1, 300, module.width)
    exact = module(zeros, positions, tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert module(zeros, positions, tokens).equal(exact)
    half = module.bfloat16()(zeros.bfloat16(), positions, tokens)
    torch.testing.assert_close(half.float(), exact, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_decoding_computes_each_position_about_once(name):
    module = build(name).eval()
    made, original = [], module.step_function

    def counting():
        step, mine = original(), []
        made.append(mine)
        return lambda p, k: mine.append(k) or step(p, k)

    module.step_function = counting
    with torch.no_grad():
        steps = torch.cat([embeddings_at(module, k) for k in range(100)])
    positions = [k for table in made for k in table]
    assert positions == list(range(len(positions))) and len(positions) < 200
    assert len(made) < 10  # number of times the table was extended
    assert steps.equal(embeddings_at(module, *range(100)))


@pytest.mark.parametrize("name", NAMES)
def test_training_continues_after_evaluation(name):
    fresh, module = with_random_weights(name), build(name)
    module.load_state_dict(fresh.state_dict())
    with torch.inference_mode():
        evaluated = embeddings_at(module.eval(), 0, 3, 5)
    with torch.no_grad():
        assert embeddings_at(module, 5, 3, 0).equal(evaluated.flip(0))
    for m in (fresh, module):
        out = embeddings_at(m.train(), 0, 3, 5, 9)
        out.square().sum().backward()
    for a, b in zip(fresh.parameters(), module.parameters(), strict=True):
        assert a.grad.equal(b.grad) and a.grad.abs().sum() > 0


def optimizer_step(module):
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    embeddings_at(module, 0, 5).square().sum().backward()
    optimizer.step()


def write_into_data(module):
    for p in module.parameters():
        p.data.add_(0.1)  # as in fairseq's optimizers; the version counter does not change


def load(module):
    module.load_state_dict(with_random_weights(module.name).state_dict())


def one_entry(module):
    with torch.no_grad():
        module.inner.bias[0] += 0.5


@pytest.mark.parametrize("change", [optimizer_step, write_into_data, load, one_entry, nn.Module.float])
@pytest.mark.parametrize("name", NAMES)
def test_cached_table_is_never_stale(name, change):
    module = with_random_weights(name).eval()
    with torch.no_grad():
        before = embeddings_at(module, 5)
    assert set(module.state_dict()) == set(dict(module.named_parameters()))
    change(module)
    expected = embeddings_at(module, 5).detach()
    with torch.no_grad():
        assert embeddings_at(module, 5).equal(expected)
    assert not expected.equal(before)
