"""Measures what padding tells a convolution of places: ``python -m fairseq_lrpe.measure.zero_padding``.

Islam et al. (ICLR 2020; survey of 2021, "CNN-Style") found that convolutional networks know where they are by
the zeros around their input. Here stacks of convolutions with ReLU, untrained (He's initialisation), read
noise, in which no place differs from another, and a linear read-out (ridge regression in closed form) tells
each place's coordinates from the features there. What it explains of them, on noise that it was not fitted
to, is what the padding leaked: 1 is all, 0 nothing. Of the convolution without padding the input is larger by
what the layers take away, so that the read-out has the same places.
"""

import statistics
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import track
from rich.table import Table
from torch import Tensor

from fairseq_lrpe.files import new_folder, whole_file, write_whole
from fairseq_lrpe.measure import gpu_report
from fairseq_lrpe.measure.shared import measuring, numbers
from fairseq_lrpe.programs import a_path, show_wide

PADDINGS = {"zeros": "constant", "circular": "circular", "replicate": "replicate", "none": None}
"""{padding: its name in F.pad}"""
CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d}
WIDTH, KERNEL, RIDGE = 32, 3, 1e-6
GRIDS = {"64 places": ((64,), 256), "24 × 24 places": ((24, 24), 24)}
"""{name: (places along each side, noises to fit and as many to test)}"""
DEPTHS = (1, 2, 4, 8, 16, 32)
STACKS = 5


def random_weights(dims: int, layers: int, generator: torch.Generator) -> list[Tensor]:
    """Returns the weights of a stack, N(0, 2 / fan-in)."""
    shape = (WIDTH, WIDTH, *[KERNEL] * dims)
    scale = (2 / (WIDTH * KERNEL**dims)) ** 0.5
    return [scale * torch.randn(shape, generator=generator) for _ in range(layers)]


def layers(x: Tensor, weights: list[Tensor], padding: str) -> Iterator[Tensor]:
    """Yields the features of x (N, E, places along each side) after every layer."""
    dims = x.dim() - 2
    for weight in weights:
        if mode := PADDINGS[padding]:
            x = F.pad(x, [KERNEL // 2] * 2 * dims, mode)
        x = CONVOLUTIONS[dims](x, weight).relu()
        yield x


def read_out(fitted: Tensor, tested: Tensor) -> float:
    """Returns R² of the places' coordinates by a ridge regression on ``fitted``, measured on ``tested``.

    Both are features (N, E, places along each side); it is the mean over the sides.
    """
    sides = [torch.linspace(-1, 1, side, dtype=torch.float64) for side in fitted.shape[2:]]
    places = torch.stack(torch.meshgrid(*sides, indexing="ij"), -1).flatten(0, -2)
    x, y = (part.flatten(2).mT.double() for part in (fitted, tested))  # (N, places, E)
    x, y = x - x.mean((0, 1)), y - x.mean((0, 1))
    covariance = torch.einsum("npe,npf->ef", x, x)
    ridge = RIDGE * covariance.diagonal().mean() * torch.eye(len(covariance), dtype=torch.float64)
    weight = torch.linalg.solve(covariance + ridge, x.sum(0).mT @ places)
    left = (y @ weight - places).square().mean((0, 1)) / places.square().mean(0)
    return 1 - left.mean().item()


@torch.no_grad()
def measure(
    shape: tuple[int, ...], noises: int, padding: str, seed: int, depths: Sequence[int]
) -> list[float]:
    """Returns R² after each of ``depths`` layers of one random stack.

    The weights follow from the seed alone, so that all paddings have the same.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = random_weights(len(shape), max(depths), generator)
    lost = 0 if PADDINGS[padding] else (KERNEL - 1) * max(depths)
    x = torch.randn(2 * noises, WIDTH, *(side + lost for side in shape), generator=generator)
    found = []
    for depth, features in enumerate(layers(x, weights, padding), 1):
        if depth in depths:
            for axis, side in enumerate(shape, 2):
                features = features.narrow(axis, (features.size(axis) - side) // 2, side)
            found.append(read_out(*features.split(noises)))
    return found


def measure_all() -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Returns {grid: {padding: (mean, deviation) over the stacks after each of DEPTHS layers}}."""
    runs = [(grid, padding, seed) for grid in GRIDS for padding in PADDINGS for seed in range(STACKS)]
    found = {grid: {padding: [] for padding in PADDINGS} for grid in GRIDS}
    for grid, padding, seed in track(runs, "stacks", transient=True):
        found[grid][padding].append(measure(*GRIDS[grid], padding, seed, DEPTHS))
    return {
        grid: {
            padding: [(statistics.mean(x), statistics.stdev(x)) for x in zip(*stacks, strict=True)]
            for padding, stacks in by_padding.items()
        }
        for grid, by_padding in found.items()
    }


def rows(found: dict) -> list[dict[str, str]]:
    """Returns a table's rows {column: cell}."""
    columns = [f"{depth} layer{'s' * (depth > 1)}" for depth in DEPTHS]
    return [
        {"input": grid, "padding": padding}
        | {name: f"{mean:.3f} ± {std:.3f}" for name, (mean, std) in zip(columns, values, strict=True)}
        for grid, by_padding in found.items()
        for padding, values in by_padding.items()
    ]


def draw(found: dict, path: Path) -> None:
    """Draws R² over the depth, a panel for each grid and a line for each padding."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    figure.suptitle("What untrained convolutions know of their place, by their padding")
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, (grid, by_padding) in zip(panels, found.items(), strict=True):
        for (padding, values), marker, size in zip(by_padding.items(), "os^x", (5, 11, 8, 5), strict=True):
            mean, std = zip(*values, strict=True)  # hollow markers, as three lines lie on one another
            look = {"marker": marker, "markersize": size, "markerfacecolor": "none", "capsize": 3}
            axes.errorbar(DEPTHS, mean, std, label=padding, **look)
        axes.set(title=f"input of {grid}", xlabel="layers", xscale="log")
        axes.set_xticks(DEPTHS, DEPTHS)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("R² of a linear read-out of the position\n(1: knows it, 0: knows nothing)")
    panels[0].legend(title="padding")
    figure.savefig(path, format="png", dpi=150)


def main():
    parser = ArgumentParser(prog="python -m fairseq_lrpe.measure.zero_padding", description=__doc__)
    parser.add_argument("--out", type=a_path, default="results/zero_padding", help="default: %(default)s")
    out = parser.parse_args().out
    with measuring("zero_padding"), new_folder(out):
        found = measure_all()
        title = f"R² of the position on held-out noise: mean ± deviation of {STACKS} random stacks"
        cells = rows(found)
        table = Table(*list(cells[0])[:2], *numbers(*list(cells[0])[2:]), title=title)
        for row in cells:
            table.add_row(*row.values())
        show_wide(table)
        with whole_file(out / "zero_padding.png") as part:
            draw(found, part)
        write_whole(out / "zero_padding.md", gpu_report.Table(title, "", cells).markdown() + "\n")
        print(out / "zero_padding.png")


if __name__ == "__main__":
    main()
