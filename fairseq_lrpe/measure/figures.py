"""Draws pictures of the encodings themselves: ``python -m fairseq_lrpe.measure.figures``.

LFHC and GCDF's Figure 2 (the prior encodings of Transformer-XL and GCDF), Figures 5 and 6 (how far R_x is
from R_0), and the score of one query and key over their distance under every relative encoding.
"""

import logging
from argparse import ArgumentParser

import torch
from matplotlib.figure import Figure
from rich.progress import track

from fairseq_lrpe.config import PositionConfig, encoding_from_config
from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.encodings.gcdf import gaussian_cdfs
from fairseq_lrpe.encodings.xl import sinusoids
from fairseq_lrpe.files import new_folder
from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.programs import a_path, one_sentence

PRIORS = {"XL": sinusoids, "GCDF": lambda x, width: 4 * gaussian_cdfs(x, width)}  # λ = 4


def prior_matrices(path, width=512, reach=128):
    """Draws Figure 2 of Qu et al. 2021: R by dimension and relative position."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, (name, prior) in zip(axes, PRIORS.items(), strict=True):
        table = prior(torch.arange(-reach, reach + 1), width)
        image = ax.imshow(table, aspect="auto", extent=(0, width, reach, -reach), cmap="viridis")
        ax.set(title=f"{name}-RPE", xlabel="dimension")
        figure.colorbar(image, ax=ax)
    axes[0].set_ylabel("relative position")
    figure.savefig(path, dpi=150)


def prior_distances(path, width=512, reach=512):
    """Draws Figures 5 and 6 of Qu et al. 2021: ‖R_x − R_0‖ over x."""
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    axes = figure.subplots(1, 2)
    x = torch.arange(reach + 1)
    for ax, (name, prior), number in zip(axes, PRIORS.items(), (5, 6), strict=True):
        table = prior(x, width)
        ax.plot(x, (table - table[0]).norm(dim=1))
        ax.set(title=f"{name}-RPE (Figure {number})", xlabel="relative position x", ylabel=r"$\|R_x - R_0\|$")
        ax.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


@torch.no_grad()
def scores_by_distance(method, reach=256, heads=4, head_dim=64):
    """Returns the scores (heads, reach + 1) of one query with one key 0, 1, .. ``reach`` positions before it.

    q = k, one random vector of positive features and length 1; causal, before the softmax, in layer 2 of 6
    and as the encoding is initialised (seed 0).
    """
    torch.manual_seed(0)
    cfg = PositionConfig(attention="softmax", **method.flags)
    size = {"embed_dim": heads * head_dim, "num_heads": heads}
    encoding = encoding_from_config(cfg, **size, causal=True, layer=2, layers=6).eval()
    x = torch.rand(head_dim)
    x = (x / x.norm()).repeat(1, heads, reach + 1, 1)
    q, k = encoding(x[:, :, :1], x, reach, 0)
    own = encoding.scores_in_parts(q, k, reach)
    if own is not None:
        return own(q, k, reach)[0, :, 0].flip(-1)
    scores, bias = encoding.scale * (q @ k.mT), encoding.bias(q, k, reach)
    return (scores if bias is None else scores + bias)[0, :, 0].flip(-1)


def score_curves(path):
    """Draws a panel for each encoding of METHODS by the distance, a line for each head."""
    # Others' scores depend on where a token stands, or on the tokens between as well.
    relative = [
        name
        for name, cls in ENCODINGS.items()
        if name != "none" and not cls.absolute and (cls.decomposable or cls.bidirectional)
    ]
    methods = {n: m for n, m in METHODS.items() if m.encoding in relative and not n.startswith("ablation_")}
    columns = 5
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
    figure.supylabel("score before the softmax, a line a head")
    figure.savefig(path, dpi=130)


def main():
    parser = ArgumentParser(prog="python -m fairseq_lrpe.measure.figures", description=__doc__)
    parser.add_argument("--out", type=a_path, default="results/figures", help="default: %(default)s")
    out = parser.parse_args().out
    logging.disable(logging.INFO)  # fairseq's import lets matplotlib tell of every font
    with one_sentence("figures"), new_folder(out):
        for draw in (prior_matrices, prior_distances, score_curves):
            draw(out / f"{draw.__name__}.png")
            print(out / f"{draw.__name__}.png")


if __name__ == "__main__":
    main()
