"""What padding tells of places: what cannot know them, what does, and the program's table and picture."""

import pytest
import torch
from tiny import run_here

from fairseq_lrpe.measure import zero_padding
from fairseq_lrpe.measure.zero_padding import PADDINGS, WIDTH, layers, measure, random_weights, read_out

shapes = pytest.mark.parametrize("shape", [(20,), (12, 12)])


def weights_and_noise(shape):
    generator = torch.Generator().manual_seed(0)
    weights = random_weights(len(shape), 3, generator)
    x = torch.randn(2, WIDTH, *shape, generator=generator)
    return [weight.double() for weight in weights], x.double()


@shapes
@pytest.mark.parametrize("padding", ["zeros", "circular", "replicate"])
def test_only_in_a_circle_every_place_is_as_any_other(padding, shape):
    """Noise that is moved round has features that are moved round."""
    weights, x = weights_and_noise(shape)
    steps, axes = [5] * len(shape), tuple(range(2, x.dim()))
    features, of_moved = (list(layers(y, weights, padding)) for y in (x, x.roll(steps, axes)))
    same = [
        torch.allclose(y.roll(steps, axes), moved, rtol=0, atol=1e-10)
        for y, moved in zip(features, of_moved, strict=True)
    ]
    assert same == [padding == "circular"] * 3


@shapes
@pytest.mark.parametrize("padding", ["zeros", "circular", "replicate"])
def test_padding_reaches_as_many_places_as_there_are_layers(padding, shape):
    weights, x = weights_and_noise(shape)
    both = zip(layers(x, weights, padding), layers(x, weights, "none"), strict=True)
    for depth, (padded, bare) in enumerate(both, 1):
        assert padded.shape == x.shape and bare.size(-1) == shape[-1] - 2 * depth
        inside = (..., *[slice(depth, -depth)] * len(shape))
        torch.testing.assert_close(padded[inside], bare, rtol=0, atol=1e-10)


@shapes
def test_the_read_out_finds_what_is_there(shape):
    """Of a feature that is a coordinate and as much noise, half is explained; of noise alone nothing."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(400, WIDTH, *shape, generator=generator)
    assert abs(read_out(*noise.split(200))) < 0.03
    for axis, side in enumerate(shape):
        place = torch.linspace(-1, 1, side)
        noise[:, axis] = place.std() * noise[:, axis] + place.view(-1, *[1] * (len(shape) - 1 - axis))
    assert read_out(*noise.split(200)) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(("shape", "noises"), [((24,), 256), ((12, 12), 48)])
def test_zeros_tell_more_with_every_layer_and_a_circle_tells_nothing(shape, noises):
    found = {padding: measure(shape, noises, padding, seed=1, depths=(1, 4, 12)) for padding in PADDINGS}
    first, middle, last = found["zeros"]
    assert first < 0.05 and middle > first + 0.05 and last > middle + 0.05
    for padding in ("circular", "none"):
        assert all(abs(value) < 0.02 for value in found[padding])


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(zero_padding, "GRIDS", {"8 places": ((8,), 4), "4 × 4 places": ((4, 4), 4)})
    monkeypatch.setattr(zero_padding, "DEPTHS", (1, 2))
    monkeypatch.setattr(zero_padding, "STACKS", 2)


def test_a_folder_in_the_place_of_the_picture(small, tmp_path):
    (tmp_path / "zero_padding.png").mkdir()
    done = run_here(zero_padding.main, "--out", tmp_path)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "zero_padding.png cannot be read or written (Is a directory)" in done.stderr.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["zero_padding.png"]


def test_the_table_and_the_picture(small, tmp_path):
    done = run_here(zero_padding.main, "--out", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "zero_padding.md",
        "zero_padding.png",
    ]
    assert (tmp_path / "new/zero_padding.png").read_bytes().startswith(b"\x89PNG")
    lines = (tmp_path / "new/zero_padding.md").read_text().splitlines()
    assert "| input | padding | 1 layer | 2 layers |" in lines
    values = [measure((8,), 4, "zeros", seed, (1, 2))[1] for seed in range(2)]
    [row] = [line for line in lines if line.startswith("| 8 places | zeros |")]
    mean, std = torch.tensor(values).mean(), torch.tensor(values).std()
    assert row.endswith(f"| {mean:.3f} ± {std:.3f} |") and "zeros" in done.stdout
