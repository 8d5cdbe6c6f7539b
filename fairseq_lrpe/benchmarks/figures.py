"""Plots the position encodings of Transformer-XL and GCDF, and the scores of all relative encodings.

prior_matrices.png and prior_distances.png are Figures 2, 5 and 6 of the GCDF paper (Qu et al. 2021).
score_curves.png shows the score of a query and a key over their distance for every relative encoding.
"""

import logging

import torch
from matplotlib.figure import Figure
from rich.progress import track

from fairseq_lrpe.benchmarks.shared import BenchmarkParser
from fairseq_lrpe.config import PositionConfig, encoding_from_config
from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.encodings.gcdf import gaussian_cdfs
from fairseq_lrpe.encodings.xl import sinusoids
from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.utils.cli import exit_on_error, path_arg
from fairseq_lrpe.utils.files import output_folder, save_figure

WIDTH = 512
PRIORS = {"XL": sinusoids, "GCDF": lambda x, width: 4 * gaussian_cdfs(x, width)}  # GCDF's λ is 4


def prior_matrices(path, reach=128):
    """Plots Figure 2 of Qu et al. 2021: the matrices R by dimension and relative position."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, (name, prior) in zip(axes, PRIORS.items(), strict=True):
        table = prior(torch.arange(-reach, reach + 1), WIDTH)
        image = ax.imshow(table, aspect="auto", extent=(0, WIDTH, reach, -reach), cmap="viridis")
        ax.set(title=f"{name}-RPE", xlabel="dimension")
        figure.colorbar(image, ax=ax)
    axes[0].set_ylabel("relative position")
    save_figure(figure, path, dpi=150)


def prior_distances(path, reach=512):
    """Plots Figures 5 and 6 of Qu et al. 2021: ‖R_x − R_0‖ over the relative position x."""
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    axes = figure.subplots(1, 2)
    x = torch.arange(reach + 1)
    for ax, (name, prior), number in zip(axes, PRIORS.items(), (5, 6), strict=True):
        table = prior(x, WIDTH)
        ax.plot(x, (table - table[0]).norm(dim=1))
        ax.set(title=f"{name}-RPE (Figure {number})", xlabel="relative position x", ylabel=r"$\|R_x - R_0\|$")
        ax.grid(alpha=0.3)
    save_figure(figure, path, dpi=150)


@torch.no_grad()
def scores_by_distance(method, reach=256, heads=4, head_dim=64):
    """Returns the scores of a query with keys at distances 0, 1, .. ``reach`` before it.

    The scores are those of causal softmax attention, before the softmax, in layer 2 of 6, with the initial
    parameters of the method's encoding (seed 0). Query and keys are the same random positive unit vector.

    Returns:
        A tensor (heads, reach + 1).
    """
    torch.manual_seed(0)
    cfg = PositionConfig(attention="softmax", **method.flags)
    size = {"embed_dim": heads * head_dim, "num_heads": heads}
    encoding = encoding_from_config(cfg, **size, causal=True, layer=2, layers=6).eval()
    x = torch.rand(head_dim)
    x = (x / x.norm()).repeat(1, heads, reach + 1, 1)
    q, k = encoding(x[:, :, :1], x, reach, 0)
    score_function = encoding.score_function(q, k, reach)
    if score_function is not None:
        return score_function(q, k, reach)[0, :, 0].flip(-1)
    scores, bias = encoding.scale * (q @ k.mT), encoding.bias(q, k, reach)
    return (scores if bias is None else scores + bias)[0, :, 0].flip(-1)


def score_curves(path, columns=5):
    """Plots the scores of every method with a relative encoding over the distance, one line per head."""
    methods = {
        name: method
        for name, method in METHODS.items()
        if is_relative(method.encoding) and not name.startswith("ablation_")
    }
    rows = -(-len(methods) // columns)
    figure = Figure(figsize=(15, 2.4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True)
    for ax in axes.flat[len(methods) :]:
        ax.axis("off")
    for ax, (name, method) in zip(axes.flat, track(methods.items(), "score curves"), strict=False):
        ax.plot(scores_by_distance(method).T, linewidth=0.8)
        ax.set_title(name, fontsize=10)
        ax.tick_params(labelsize=7)
        ax.grid(alpha=0.3)
    figure.supxlabel("distance i − j from the key to the query")
    figure.supylabel("score before the softmax, one line per head")
    save_figure(figure, path, dpi=130)


def is_relative(name: str) -> bool:
    """Returns whether an encoding's scores depend on the distance only, and not on other tokens."""
    encoding = ENCODINGS[name]
    if name == "none" or encoding.uses_absolute_positions:
        return False
    return encoding.decomposable or encoding.bidirectional


def main(arguments: list[str] | None = None) -> None:
    parser = BenchmarkParser("figures", __doc__)
    help = "output folder (default: %(default)s)"
    parser.add_argument("--out", type=path_arg, default="results/figures", help=help)
    folder = parser.parse_args(arguments).out
    logging.disable(logging.INFO)  # importing fairseq makes matplotlib log every font
    with exit_on_error(parser.prog), output_folder(folder):
        for plot in (prior_matrices, prior_distances, score_curves):
            plot(folder / f"{plot.__name__}.png")
            print(folder / f"{plot.__name__}.png")
