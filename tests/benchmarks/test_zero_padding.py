"""Positional information revealed by padding: properties of each padding, the probe, and the command."""

import pytest
import torch
from tiny import run_here

from fairseq_lrpe.benchmarks import zero_padding
from fairseq_lrpe.benchmarks.zero_padding import PADDINGS, WIDTH, measure, probe_positions, run_layers

shapes = pytest.mark.parametrize("shape", [(20,), (12, 12)])


def weights_and_noise(shape):
    generator = torch.Generator().manual_seed(0)
    weights = zero_padding.random_weights(len(shape), 3, generator)
    x = torch.randn(2, WIDTH, *shape, generator=generator)
    return [weight.double() for weight in weights], x.double()


@shapes
@pytest.mark.parametrize("padding", ["zeros", "circular", "replicate"])
def test_only_circular_padding_is_equivariant(padding, shape):
    """Features of shifted noise are the shifted features."""
    weights, x = weights_and_noise(shape)
    steps, axes = [5] * len(shape), tuple(range(2, x.dim()))
    features, of_moved = (list(run_layers(y, weights, padding)) for y in (x, x.roll(steps, axes)))
    same = [
        torch.allclose(y.roll(steps, axes), moved, rtol=0, atol=1e-10)
        for y, moved in zip(features, of_moved, strict=True)
    ]
    assert same == [padding == "circular"] * 3


@shapes
@pytest.mark.parametrize("padding", ["zeros", "circular", "replicate"])
def test_padding_affects_one_position_per_layer(padding, shape):
    weights, x = weights_and_noise(shape)
    both = zip(run_layers(x, weights, padding), run_layers(x, weights, "none"), strict=True)
    for depth, (padded, bare) in enumerate(both, 1):
        assert padded.shape == x.shape and bare.size(-1) == shape[-1] - 2 * depth
        inside = (..., *[slice(depth, -depth)] * len(shape))
        torch.testing.assert_close(padded[inside], bare, rtol=0, atol=1e-10)


@shapes
def test_probe(shape):
    """R² is 0.5 for a coordinate with as much noise, and 0 for noise alone."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(400, WIDTH, *shape, generator=generator)
    assert abs(probe_positions(*noise.split(200))) < 0.03
    for axis, side in enumerate(shape):
        place = torch.linspace(-1, 1, side)
        noise[:, axis] = place.std() * noise[:, axis] + place.view(-1, *[1] * (len(shape) - 1 - axis))
    assert probe_positions(*noise.split(200)) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(("shape", "noises"), [((24,), 256), ((12, 12), 48)])
def test_zeros_reveal_more_with_every_layer_and_circular_padding_nothing(shape, noises):
    found = {padding: measure(shape, noises, padding, seed=1, depths=(1, 4, 12)) for padding in PADDINGS}
    first, middle, last = found["zeros"]
    assert first < 0.05 and middle > first + 0.05 and last > middle + 0.05
    for padding in ("circular", "none"):
        assert all(abs(value) < 0.02 for value in found[padding])


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(zero_padding, "GRIDS", {"8 positions": ((8,), 4), "4 × 4 positions": ((4, 4), 4)})
    monkeypatch.setattr(zero_padding, "DEPTHS", (1, 2))
    monkeypatch.setattr(zero_padding, "STACKS", 2)


def test_command(small, tmp_path):
    done = run_here(zero_padding.main, "--out", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == ["zero_padding.md", "zero_padding.png"]
    assert (tmp_path / "new/zero_padding.png").read_bytes().startswith(b"\x89PNG")
    lines = (tmp_path / "new/zero_padding.md").read_text().splitlines()
    assert "| input | padding | 1 layer | 2 layers |" in lines
    values = [measure((8,), 4, "zeros", seed, (1, 2))[1] for seed in range(2)]
    [row] = [line for line in lines if line.startswith("| 8 positions | zeros |")]
    mean, std = torch.tensor(values).mean(), torch.tensor(values).std()
    assert row.endswith(f"| {mean:.3f} ± {std:.3f} |") and "zeros" in done.stdout
