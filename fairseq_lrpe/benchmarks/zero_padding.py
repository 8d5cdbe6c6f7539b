"""Measures how much positional information the padding of a convolution reveals.

Islam et al. (ICLR 2020; survey of 2021, "CNN-Style") found that convolutional networks learn positions from
the zeros around their input. Here, the inputs of untrained stacks of convolutions with ReLU (He
initialization) are noise with the same distribution at every position, and a linear probe (ridge regression)
predicts the coordinates of each position from its features. The result is R² on noise that was not used for
fitting: 1 means that the padding reveals the position completely, 0 that it reveals nothing. Without padding,
the input is larger by the positions that the layers remove, so that the number of outputs is the same.
"""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import track
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from torch import Tensor

from fairseq_lrpe.benchmarks.shared import BenchmarkParser, Table, measuring
from fairseq_lrpe.utils.cli import path_arg
from fairseq_lrpe.utils.files import output_folder, save_figure, write_atomic

PADDINGS = {"zeros": "constant", "circular": "circular", "replicate": "replicate", "none": None}
"""{padding: mode of F.pad, or None if there is no padding}"""
CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d}
WIDTH, KERNEL, RIDGE = 32, 3, 1e-6
GRIDS = {"64 positions": ((64,), 256), "24 × 24 positions": ((24, 24), 24)}
"""{name: (number of positions per side, number of samples for fitting and the same number for testing)}"""
DEPTHS = (1, 2, 4, 8, 16, 32)
STACKS = 5


def random_weights(dims: int, layers: int, generator: torch.Generator) -> list[Tensor]:
    """Returns the weights of a stack of convolutions in ``dims`` dimensions, drawn from N(0, 2 / fan-in)."""
    shape = (WIDTH, WIDTH, *[KERNEL] * dims)
    scale = (2 / (WIDTH * KERNEL**dims)) ** 0.5
    return [scale * torch.randn(shape, generator=generator) for _ in range(layers)]


def run_layers(x: Tensor, weights: list[Tensor], padding: str) -> Iterator[Tensor]:
    """Yields the output of each convolutional layer for the input x of shape (N, E, *positions per side)."""
    dims = x.dim() - 2
    for weight in weights:
        if mode := PADDINGS[padding]:
            x = F.pad(x, [KERNEL // 2] * 2 * dims, mode)
        x = CONVOLUTIONS[dims](x, weight).relu()
        yield x


def probe_positions(train: Tensor, test: Tensor) -> float:
    """Returns R² of the coordinates that a ridge regression fitted to ``train`` predicts from ``test``.

    Both tensors are features (N, E, *positions per side). R² is the mean over the coordinates.
    """
    sides = [torch.linspace(-1, 1, side, dtype=torch.float64) for side in train.shape[2:]]
    positions = torch.stack(torch.meshgrid(*sides, indexing="ij"), -1).flatten(0, -2)
    targets = positions.repeat(len(train), 1).numpy()
    x, y = (part.flatten(2).mT.flatten(0, 1).double().numpy() for part in (train, test))
    ridge = Ridge(RIDGE * len(x) * x.var(0).mean())  # relative to the scale of the features
    return r2_score(targets, ridge.fit(x, targets).predict(y))


@torch.no_grad()
def measure(
    shape: tuple[int, ...], samples: int, padding: str, seed: int, depths: Sequence[int]
) -> list[float]:
    """Returns R² of the position after each number of layers in ``depths`` of a random stack.

    Args:
        shape: Number of positions per side.
        samples: Number of samples for fitting, and for testing.
        padding: A key of PADDINGS.
        seed: Seed of the weights, which are the same for all paddings.
        depths: Numbers of layers.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = random_weights(len(shape), max(depths), generator)
    removed = 0 if PADDINGS[padding] else (KERNEL - 1) * max(depths)
    x = torch.randn(2 * samples, WIDTH, *(side + removed for side in shape), generator=generator)
    scores = []
    for depth, features in enumerate(run_layers(x, weights, padding), 1):
        if depth in depths:
            for axis, side in enumerate(shape, 2):
                features = features.narrow(axis, (features.size(axis) - side) // 2, side)
            scores.append(probe_positions(*features.split(samples)))
    return scores


def measure_all() -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Measures R² for each grid and padding.

    Returns {(grid, padding): [(mean, standard deviation) for each depth]} over ``STACKS`` random stacks.
    """
    results = {}
    cases = [(grid, padding) for grid in GRIDS for padding in PADDINGS]
    for grid, padding in track(cases, "paddings", transient=True):
        stacks = [measure(*GRIDS[grid], padding, seed, DEPTHS) for seed in range(STACKS)]
        columns = zip(*stacks, strict=True)
        results[grid, padding] = [(statistics.mean(x), statistics.stdev(x)) for x in columns]
    return results


def plot(results: dict, path: Path) -> None:
    """Plots R² over the depth, one panel per grid and one line per padding."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    figure.suptitle("Positional information in untrained convolutions, by padding")
    panels = figure.subplots(1, len(GRIDS), sharey=True, squeeze=False)[0]
    for axes, grid in zip(panels, GRIDS, strict=True):
        for padding, marker, size in zip(PADDINGS, "os^x", (5, 11, 8, 5), strict=True):
            mean, std = zip(*results[grid, padding], strict=True)
            # Three lines coincide; hollow markers of different sizes keep all of them visible.
            style = {"marker": marker, "markersize": size, "markerfacecolor": "none", "capsize": 3}
            axes.errorbar(DEPTHS, mean, std, label=padding, **style)
        axes.set(title=f"input of {grid}", xlabel="layers", xscale="log")
        axes.set_xticks(DEPTHS, DEPTHS)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("R² of a linear probe of the position\n(1: all, 0: no information)")
    panels[0].legend(title="padding")
    save_figure(figure, path, dpi=150)


def main(arguments: list[str] | None = None) -> None:
    parser = BenchmarkParser("zero-padding", __doc__)
    help = "output folder (default: %(default)s)"
    parser.add_argument("--out", type=path_arg, default="results/zero_padding", help=help)
    folder = parser.parse_args(arguments).out
    with measuring(parser.prog), output_folder(folder):
        results = measure_all()
        table = Table(f"R² of the position on held-out noise: mean ± deviation of {STACKS} random stacks")
        for (grid, padding), values in results.items():
            row = {"input": grid, "padding": padding}
            for depth, (mean, std) in zip(DEPTHS, values, strict=True):
                row[f"{depth} layer{'s' * (depth > 1)}"] = f"{mean:.3f} ± {std:.3f}"
            table.rows.append(row)
        table.print()
        plot(results, folder / "zero_padding.png")
        write_atomic(folder / "zero_padding.md", table.markdown() + "\n")
        print(folder / "zero_padding.png")
