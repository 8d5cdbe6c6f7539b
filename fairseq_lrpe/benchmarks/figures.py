"""Plots Figures 2 to 6 of Qu et al. 2021 (LFHC and GCDF), and the scores of all relative encodings.

prior_matrices.png is Figure 2, position_frequencies.png Figure 3, length_distributions.png Figure 4 and
prior_distances.png Figures 5 and 6. score_curves.png has the scores over the distance from query to key.
"""

import logging
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.progress import track

from fairseq_lrpe.config import PositionConfig, encoding_from_config
from fairseq_lrpe.data import layout
from fairseq_lrpe.encodings import Context, softmax_scores
from fairseq_lrpe.encodings.gcdf import gaussian_cdfs
from fairseq_lrpe.encodings.scores import log_weights
from fairseq_lrpe.encodings.transformations import random_features
from fairseq_lrpe.encodings.xl import sinusoids
from fairseq_lrpe.experiments.reporting.encoding_descriptions import RELATIVE, encoding_kind
from fairseq_lrpe.experiments.reporting.plots import grid
from fairseq_lrpe.methods import METHODS, Method
from fairseq_lrpe.models.data_validation import check_labeled
from fairseq_lrpe.ops import FEATURE_MAPS, linear_attention
from fairseq_lrpe.tasks.classification import ClassificationConfig, ClassificationTask
from fairseq_lrpe.utils.cli import exit_on_error, new_parser, path_arg
from fairseq_lrpe.utils.files import PREPARE, REPOSITORY, display_path, output_folder, save_figure

CORPORA = ("imdb", "glue_words/SST-2", "snli", "glue_words/QNLI", "glue_words/QQP", "glue_words/MNLI")
DATA = [REPOSITORY / "data" / corpus / "bin" for corpus in CORPORA]
"""Data folders of the experiments of Qu et al. 2021, Table 1."""
MAX_POSITIONS = ClassificationConfig().max_positions
"""Length to which these experiments truncate inputs."""
HEADS = 4  # of the attention whose scores and weights are plotted
HEAD_DIM = 64
ROUNDING = 1e-6
"""Relative difference of float32 values up to which they are drawn as equal."""
PRIORS = {"XL": sinusoids, "GCDF": lambda x, width: 4 * gaussian_cdfs(x, width)}  # GCDF's λ is 4


def prior_matrices(path: Path, reach: int = 64, width: int = 128) -> None:
    """Plots Figure 2: the tables R of position embeddings, with fewer columns than in the paper."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, (name, prior) in zip(axes, PRIORS.items(), strict=True):
        table = prior(torch.arange(-reach, reach + 1), width)
        extent = (0, width, reach + 0.5, -reach - 0.5)
        image = ax.imshow(table, aspect="auto", extent=extent, cmap="viridis", interpolation="nearest")
        ax.set(title=f"{name}-RPE", xlabel="dimension")
        figure.colorbar(image, ax=ax)
    axes[0].set_ylabel("relative position")
    save_figure(figure, path, dpi=100)


def position_frequencies(path: Path, length: int = 5) -> None:
    """Plots Figure 3: how many pairs of tokens (i, j) have the relative position i − j."""
    i = torch.arange(length)
    positions, counts = (i[:, None] - i).unique(return_counts=True)
    figure = Figure(figsize=(5, 3), layout="constrained")
    ax = figure.subplots()
    ax.bar_label(ax.bar(positions, counts))
    ax.margins(y=0.1)  # for the numbers above the bars
    ax.set(xlabel="relative position i − j", ylabel="number of pairs", xticks=positions)
    ax.set_title(f"sequence length L = {length}")
    save_figure(figure, path, dpi=100)


def prior_distances(path: Path, reach: int = 512, width: int = 512) -> None:
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    axes = figure.subplots(1, 2)
    x = torch.arange(reach + 1)
    for ax, (name, prior), number in zip(axes, PRIORS.items(), (5, 6), strict=True):
        table = prior(x, width)
        ax.plot(x, (table - table[0]).norm(dim=1))
        ax.set(title=f"{name}-RPE (Figure {number})", xlabel="relative position x", ylabel=r"$\|R_x - R_0\|$")
        ax.grid(alpha=0.3)
    save_figure(figure, path, dpi=150)


def input_lengths(folder: Path) -> np.ndarray:
    """Returns the lengths of the training inputs in a data folder of ``classification``, before truncation.

    A text has as many tokens as words, and a pair, ``<s> a </s> b </s>``, three more than both texts.
    """
    check_labeled(folder, "train")
    task = ClassificationTask(ClassificationConfig(data=str(folder), max_positions=sys.maxsize))
    task.load_dataset("train")
    return task.dataset("train").sizes


def prepared_folders() -> list[Path]:
    prepared = []
    missing = []
    for folder in DATA:
        if (folder / layout.METADATA).is_file():
            prepared.append(folder)
        else:
            missing.append(str(display_path(folder)))
    if missing:
        remedy = f"run `{PREPARE} CORPUS`"
        print(f"not in Figure 4, because they are not prepared ({remedy}): {', '.join(missing)}")
    return prepared


def length_distributions(path: Path, lengths: dict[Path, np.ndarray], columns: int = 3) -> None:
    """Plots Figure 4: a histogram of the :func:`input_lengths` of each data folder.

    The paper does not name its six datasets. Here, they are the six of its text classification.
    """
    figure, axes = grid(len(lengths), columns, (10, 2.6))
    for ax, (folder, tokens) in zip(axes, lengths.items(), strict=True):
        longest = tokens.max()
        width = -(-longest // 60)
        ax.hist(tokens, np.arange(0, longest + width + 1, width) - 0.5, zorder=2)
        name = str(folder.absolute()).removesuffix("/bin").rpartition("/")[2]
        numbers = f"median {np.median(tokens):.0f}, longest {longest:,} tokens"
        ax.set_title(f"{name}: {len(tokens):,} inputs\n{numbers}", fontsize=10)
        ax.grid(alpha=0.3)
        if longest > MAX_POSITIONS:
            label = f"{(tokens > MAX_POSITIONS).mean():.1%} exceed {MAX_POSITIONS}"
            ax.axvline(MAX_POSITIONS, color="black", linestyle="--", linewidth=1, label=label, zorder=3)
            ax.legend(fontsize=9, handlelength=1)
    figure.supxlabel("input length in tokens")
    figure.supylabel("number of inputs")
    save_figure(figure, path, dpi=100)


def score_curves(path: Path, columns: int = 5) -> None:
    """Plots the scores of every method with a relative encoding over the distance, one line per head."""
    names = []
    for name in METHODS:
        if encoding_kind(name) in RELATIVE and not name.startswith("ablation_"):
            names.append(name)
    figure, axes = grid(len(names), columns, (15, 2.4), sharex=True)
    for ax, name in zip(axes, track(names, "score curves"), strict=True):
        ax.plot(scores_by_distance(METHODS[name]).T, linewidth=0.8)
        hide_rounding(ax)
        ax.set_title(name, fontsize=10)
        ax.tick_params(labelsize=7)
        ax.grid(alpha=0.3)
    figure.supxlabel("distance i − j from the key to the query")
    figure.supylabel("score before the softmax, one line per head")
    save_figure(figure, path, dpi=130)


def hide_rounding(ax) -> None:
    """Widens the axis of lines that differ only by rounding, which would otherwise fill the panel."""
    low, high = ax.dataLim.intervaly
    largest = max(abs(low), abs(high))
    if high - low <= ROUNDING * largest:
        ax.set_ylim(low - 0.05 * largest, high + 0.05 * largest)


@torch.no_grad()
def scores_by_distance(method: Method, reach: int = 256) -> torch.Tensor:
    """Returns the scores (HEADS, reach + 1) of a query with keys at the distances 0 to ``reach``.

    The scores are those of causal softmax attention, before the softmax, in layer 2 of 6, with the initial
    parameters of the method's encoding. Query and keys are the same random positive unit vector.
    """
    encoding, x = _initial(method, "softmax", reach)
    context = Context(reach, 0, features=random_features(encoding, 1, reach + 1))
    q, k = encoding(x[:, :, :1], x, context)
    return softmax_scores(encoding, q, k, context)[0, :, 0].flip(-1)


@torch.no_grad()
def weights_by_distance(method: Method, attention: str, reach: int = 256) -> torch.Tensor:
    """Returns the weights (HEADS, reach + 1) of keys at the distances 0 to ``reach``, 1 without an encoding.

    In linear attention, the weights are the products of the query and keys after the feature map and the
    encoding, divided by the product without the encoding; they can be negative. A notebook in docs plots
    them.
    """
    if attention == "softmax":
        scores = scores_by_distance(method, reach)
        encoding, _ = _initial(method, "softmax", reach)
        return (scores.exp() if log_weights(encoding) else scores.softmax(-1)) * (reach + 1)
    encoding, x = _initial(method, "linear", reach)
    x = FEATURE_MAPS[method.flags.get("feature_map", "elu")](x)
    identity = torch.eye(reach + 1).expand(1, HEADS, -1, -1)  # of these values, the outputs are the weights
    context = Context(features=random_features(encoding, 1, reach + 1))
    options = {"causal": True, "log_decay": encoding.log_decay(context), "normalize": False}
    weights = linear_attention(*encoding(x, x, context), identity, **options)[0, :, -1].flip(-1)
    return weights / x[0, 0, 0].square().sum()


def _initial(method, attention, reach):
    torch.manual_seed(0)
    cfg = PositionConfig(attention=attention, **method.flags)
    size = {"embed_dim": HEADS * HEAD_DIM, "num_heads": HEADS}
    encoding = encoding_from_config(cfg, **size, causal=True, layer=2, layers=6).eval()
    x = torch.rand(HEAD_DIM)
    return encoding, (x / x.norm()).repeat(1, HEADS, reach + 1, 1)


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe bench figures", __doc__, "[options]")
    help = "output folder (default: %(default)s)"
    parser.add_argument("--out", type=path_arg, default="results/figures", help=help)
    help = "data folders of the task classification for Figure 4 (default: the paper's, if they are prepared)"
    parser.add_argument("--data", type=path_arg, nargs="+", metavar="FOLDER", help=help)
    args = parser.parse_args(arguments)
    logging.disable(logging.INFO)  # importing fairseq makes matplotlib log every font
    functions = (prior_matrices, position_frequencies, prior_distances, score_curves)
    plots = {function.__name__: function for function in functions}
    with exit_on_error(parser.prog), output_folder(args.out):
        lengths = {folder: input_lengths(folder) for folder in args.data or prepared_folders()}
        if lengths:
            plots["length_distributions"] = partial(length_distributions, lengths=lengths)
        for name, plot in plots.items():
            plot(args.out / f"{name}.png")
            print(args.out / f"{name}.png")
