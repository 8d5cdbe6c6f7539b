"""Compares positions with loops over their definitions; tests their initialization."""

import pytest
import torch
from support.pairwise_scores import sinusoid
from support.tensors import assert_same, randomized, with_gradients

from fairseq_lrpe.positions import build_position

E, V, N, PAD = 6, 11, 5, 1
ALPHA = 0.4


def build(name, width=E, causal=False, n=N):
    options = {"embed_dim": width, "vocab_size": V, "max_positions": n, "causal": causal, "layers": 3}
    return randomized(build_position(name, **options).double(), 0.5)


# Definitions of one sentence with embeddings x (L, E), positions and tokens.


def multiplicative(module, x, positions, tokens):
    return torch.stack([row * module.weight[k] for row, k in zip(x, positions, strict=True)])


def hierarchical(module, x, positions, tokens):
    p, rows = module.weight, []
    u = [(row - ALPHA * p[0]) / (1 - ALPHA) for row in p]
    for row, k in zip(x, positions, strict=True):
        i, j = divmod(int(k), len(p))
        rows.append(row + ALPHA * u[i] + (1 - ALPHA) * u[j])
    return torch.stack(rows)


def concatenation(module, x, positions, tokens):
    both = [torch.cat([row, sinusoid(k, E)]) for row, k in zip(x, positions, strict=True)]
    return torch.stack([row @ module.weight for row in both])


def cape(module, x, positions, tokens):
    """In evaluation."""
    return x + torch.stack([sinusoid(k, E) for k in positions])


def complex_order(module, x, positions, tokens):
    rows = []
    for row, k, token in zip(x, positions, tokens, strict=True):
        z = torch.complex(row[: E // 2], row[E // 2 :])
        z = z if token == PAD else z * torch.exp(1j * module.omega.weight[token] * k)
        rows.append(torch.cat([z.real, z.imag]))
    return torch.stack(rows)


def convolution(module, x, positions, tokens):
    """Padding is treated as zeros."""
    size, rows = len(module.weight), []
    first = size - 1 if module.causal else (size - 1) // 2
    for i in range(len(x)):
        places = [(j, i - first + j) for j in range(size)]
        seen = [(j, at) for j, at in places if 0 <= at < len(x) and tokens[at] != PAD]
        rows.append(x[i] + sum(module.weight[j] * x[at] for j, at in seen))
    return torch.stack(rows)


def gru(rnn, x, tokens):
    """Returns the state after each token; padding does not change it."""
    h, states = x.new_zeros(rnn.hidden_size), []
    weights = (rnn.weight_ih_l0, rnn.weight_hh_l0, rnn.bias_ih_l0, rnn.bias_hh_l0)
    (w_r, w_z, w_n), (u_r, u_z, u_n), (b_r, b_z, b_n), (c_r, c_z, c_n) = (w.chunk(3) for w in weights)
    for row, token in zip(x, tokens, strict=True):
        if token != PAD:
            r = torch.sigmoid(w_r @ row + b_r + u_r @ h + c_r)
            z = torch.sigmoid(w_z @ row + b_z + u_z @ h + c_z)
            n = torch.tanh(w_n @ row + b_n + r * (u_n @ h + c_n))
            h = (1 - z) * n + z * h
        states.append(h)
    return torch.stack(states)


def rnn(module, x, positions, tokens):
    states = gru(module.forward_rnn, x, tokens)
    if module.causal:
        return states
    backward = gru(module.backward_rnn, x.flip(0), tokens.flip(0)).flip(0)
    return torch.cat([states, backward], dim=1)


def recurrent(module, x, positions, tokens):
    path = [module.start]
    for _ in range(max(positions)):
        hidden = torch.tanh(module.inner.weight @ path[-1] + module.inner.bias)
        path.append(path[-1] + module.outer.weight @ hidden)
    return x + torch.stack([path[k] for k in positions])


def floater_path(module, start, last):
    """The classic Runge–Kutta method of order 4 with steps of 0.1."""
    step, path = 0.1, [start]

    def slope(p, t):
        hidden = module.inner.weight @ torch.cat([p, p.new_tensor([t])]) + module.inner.bias
        return module.outer.weight @ torch.tanh(hidden) + module.outer.bias

    for k in range(last):
        p, t = path[-1], step * k
        k1 = slope(p, t)
        k2 = slope(p + step / 2 * k1, t + step / 2)
        k3 = slope(p + step / 2 * k2, t + step / 2)
        k4 = slope(p + step * k3, t + step)
        path.append(p + step * (k1 + 2 * k2 + 2 * k3 + k4) / 6)
    return path


def floater(module, x, positions, tokens):
    paths = [floater_path(module, start, max(positions)) for start in module.start.split(E)]
    return x + torch.stack([torch.cat([path[k] for path in paths]) for k in positions])


def floater_every_layer(module, x, positions, tokens):
    """With one start per layer."""
    return floater(module, x, positions, tokens)


FIRST, NEXT = [0, 1, 2, 3, 4, 3, 2], [4, 4, 0, 2, 1, 1, 3]
AGAIN = [7, 2, 7, 5, 0, 1, 3]
FAR = [0, 4, 70, 500, 9_000, 24, 40_003]
CASES = [  # definition, causal, positions of two sentences, index of padding in the second
    (multiplicative, False, [FIRST, NEXT], []),
    (hierarchical, False, [FIRST, [24, 24, 10, 9, 5, 6, 23]], []),
    (concatenation, False, [FIRST, FAR], []),
    (cape, False, [FIRST, FAR], []),
    (complex_order, False, [FIRST, NEXT], [2, 3]),
    (convolution, False, [FIRST, NEXT], [5, 6]),
    (convolution, True, [FIRST, NEXT], [0, 3]),
    (recurrent, False, [FIRST, AGAIN], []),
    (floater, False, [FIRST, AGAIN], []),
    (floater_every_layer, False, [FIRST, AGAIN], []),
    (rnn, False, [FIRST, NEXT], [5, 6]),
    (rnn, False, [FIRST, NEXT], [0, 3]),
    (rnn, True, [FIRST, NEXT], [0, 3]),
    (rnn, True, [FIRST, NEXT], range(7)),
]


@pytest.mark.parametrize("definition, causal, positions, padded", CASES)
def test_outputs_and_gradients_match_definition(definition, causal, positions, padded):
    module = build(definition.__name__, causal=causal).eval()
    x = torch.randn(2, 7, module.width, dtype=torch.float64, requires_grad=True)
    positions, tokens = torch.tensor(positions), torch.randint(2, V, (2, 7))
    tokens[1, list(padded)] = PAD
    sentences = zip(x, positions, tokens, strict=True)
    expected = torch.stack([definition(module, *sentence) for sentence in sentences])
    leaves = [x, *module.parameters()]
    found = module(x, positions, tokens)
    assert_same(with_gradients(found, leaves), with_gradients(expected, leaves))


@pytest.mark.parametrize("sizes", [[1] * 9, [4, 1, 3, 1], [9]])
def test_steps_of_the_rnn_equal_the_whole_sequence(sizes):
    module, state, outputs = build("rnn", causal=True), None, []
    x, tokens = torch.randn(3, 9, E, dtype=torch.float64), torch.full((3, 9), 3)
    tokens[0, :4] = tokens[1, 6:] = PAD
    for part, row in zip(x.split(sizes, dim=1), tokens.split(sizes, dim=1), strict=True):
        out, state = module.step(part, None, row, state)
        assert state.shape == (3, E)
        outputs.append(out)
    assert_same(torch.cat(outputs, dim=1), module(x, None, tokens), 1e-14)


@pytest.mark.parametrize("name, end", [("multiplicative", N), ("hierarchical", N * N)])
def test_positions_beyond_the_limit_are_rejected(name, end):
    module = build(name)
    x, tokens = torch.randn(1, 2, E, dtype=torch.float64), torch.tensor([[3, 3]])
    assert module(x, torch.tensor([[0, end - 1]]), tokens).isfinite().all()
    with pytest.raises(ValueError, match=rf"^{name} .* at most .*{end} tokens, not {end + 1}: shorten"):
        module(x, torch.tensor([[0, end]]), tokens)


def test_hierarchical_loads_the_positions_of_a_shorter_training():
    trained, longer = build("hierarchical"), build("hierarchical", n=3 * N)
    longer.load_state_dict(trained.state_dict())
    x, positions = torch.randn(1, N * N, E, dtype=torch.float64), torch.arange(N * N)[None]
    tokens = torch.full((1, N * N), 3)
    assert longer(x, positions, tokens).equal(trained(x, positions, tokens))
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        trained.load_state_dict(build("hierarchical", n=3 * N).state_dict())


def test_complex_order_at_far_positions_in_float32():
    module, x, k = build_position("complex_order", embed_dim=E, vocab_size=V), torch.randn(1, 1, E), 100_003
    out = module(x, torch.tensor([[k]]), torch.tensor([[4]]))
    expected = complex_order(module.double(), x[0].double(), torch.tensor([k]), torch.tensor([4]))
    torch.testing.assert_close(out[0].double(), expected, rtol=0, atol=1e-6)


def test_initialization():
    def initial(name, width=64):
        return build_position(name, embed_dim=width, vocab_size=V, max_positions=64)

    p = initial("multiplicative").weight
    assert abs(p.mean() - 1) < 0.002 and abs(p.std() - 0.02) < 0.001
    p = initial("hierarchical").weight
    assert abs(p.mean()) < 0.01 and abs(p.std() - 64**-0.5) < 0.005
    p = initial("convolution", 512).weight  # uniform, as in torch's depthwise convolutions
    assert p.abs().max() <= 3**-0.5 and abs(p.mean()) < 0.03 and abs(p.std() - 1 / 3) < 0.03
    x = torch.randn(1, 1, 64)
    added = initial("concatenation")(x, torch.tensor([[41]]), torch.tensor([[3]])) - x
    torch.testing.assert_close(added[0, 0].double(), sinusoid(41, 64), rtol=0, atol=1e-6)
    omega = initial("complex_order", E).omega.weight
    for word in range(V):
        frequencies = [0.0] * 3 if word == PAD else [10000 ** (-2 * t / E) for t in range(3)]
        assert omega[word].tolist() == pytest.approx(frequencies, rel=1e-6)


@pytest.mark.parametrize("name, message", [
    ("concatenation", r"^concatenation needs an even embedding dimension, not 7$"),
    ("cape", r"^cape needs an even embedding dimension, not 7$"),
    ("complex_order", r"complex_order.*7"),
    ("rnn", r"^rnn needs an even embedding dimension in an encoder, not 7$"),
])  # fmt: skip
def test_odd_widths_are_rejected(name, message):
    assert build("rnn", 7, causal=True).forward_rnn.hidden_size == 7
    with pytest.raises(ValueError, match=message):
        build(name, 7)


# CAPE in training.


def test_training_of_cape_matches_definition(monkeypatch):

    def constants(x, low, high):
        assert low == -high
        return x.fill_(high) * torch.tensor([[1], [-0.5]])

    monkeypatch.setattr(torch.Tensor, "uniform_", constants)
    positions = torch.tensor([[0, 1, 2], [9, 4, 4]]).double()
    out = build("cape")(torch.zeros(2, 3, E, dtype=torch.float64), positions, torch.full((2, 3), 3))
    first, second = 1.03 * (positions[0] + 5.5), 1.03**-0.5 * (positions[1] - 2.75)
    expected = [torch.stack([sinusoid(k, E) for k in row]) for row in (first, second)]
    assert_same(out, torch.stack(expected))


def test_random_positions_of_cape():
    """Their order is preserved; they are read from the lowest frequency of a wide embedding."""
    width, positions = 512, torch.arange(11).expand(1000, 11)
    out = build("cape", width)(torch.zeros(1000, 11, width).double(), positions, torch.full((1000, 11), 3))
    found = out[..., -2].asin() * 10000 ** (2 * (width // 2 - 1) / width)
    steps, center = found.diff(dim=1), found.mean(1) - 5
    assert 0 < steps.min() < 0.3 and 1.7 < steps.max() < 1.03 * 2
    assert abs(center.mean()) < 0.4 and center.std() == pytest.approx(10 / 12**0.5, rel=0.1)
