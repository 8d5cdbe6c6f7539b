"""Recurrent positions: their initialization, and the cached table."""

import pytest
import torch
from support.pairwise_scores import rotated
from support.tensors import randomized
from torch import nn

from fairseq_lrpe.positions import build_position

E, V, M = 4, 11, 16
NAMES = ("recurrent", "floater", "floater_every_layer")


def build(name, width=E, n=M):
    return build_position(name, embed_dim=width, vocab_size=V, max_positions=n, layers=3).double()


def with_random_weights(name):
    return randomized(build(name), 0.5)


def embeddings_at(module, *positions):
    x = torch.zeros(1, len(positions), module.width, dtype=torch.float64)
    return module(x, torch.tensor([positions]), torch.full((1, len(positions)), 3))[0]


@pytest.mark.parametrize("width", [8, 7])
def test_recurrent_is_initially_nearly_sinusoidal(width):
    module = build("recurrent", width)
    with torch.no_grad():
        module.start.mul_(1e-4)
    table = embeddings_at(module, *range(50)) * 1e4
    start = module.start * 1e4
    pairs = width // 2
    frequencies = 10000 ** (-2 * torch.arange(pairs, dtype=torch.float64) / width)
    expected = rotated(start[: 2 * pairs], torch.arange(50)[:, None] * frequencies)
    torch.testing.assert_close(table[:, : 2 * pairs], expected, rtol=0, atol=1e-5)
    if width % 2:
        assert table[:, -1].eq(start[-1]).all()


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


@pytest.mark.parametrize("change", [optimizer_step, write_into_data, load, nn.Module.float])
def test_cached_table_is_never_stale(change):
    for name in NAMES:
        module = with_random_weights(name).eval()
        with torch.no_grad():
            before = embeddings_at(module, 5)
        assert set(module.state_dict()) == set(dict(module.named_parameters()))
        change(module)
        expected = embeddings_at(module, 5).detach()
        with torch.no_grad():
            assert embeddings_at(module, 5).equal(expected)
        assert not expected.equal(before)
