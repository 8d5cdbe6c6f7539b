"""Draws example images of Pathfinder and example expressions of ListOps: ``lrpe bench lra-examples FILE``."""

from argparse import ArgumentParser

from matplotlib.figure import Figure

from data_prep.corpora.listops import SYMBOLS, expressions
from data_prep.corpora.pathfinder import draw
from fairseq_lrpe.utils.cli import exit_on_error, image_path
from fairseq_lrpe.utils.files import save_figure


def examples(images: int = 8, texts: int = 2) -> Figure:
    """Returns a figure with Pathfinder images and their labels, and ListOps expressions and their values."""
    columns = 4
    figure = Figure(figsize=(1.7 * columns, 2 * images / columns + 0.35 * texts), layout="constrained")
    above, below = figure.subfigures(2, height_ratios=[2 * images / columns, 0.35 * texts])
    for i, ax in enumerate(above.subplots(-(-images // columns), columns, squeeze=False).flat):
        scene = draw(seed=1, window=32, length=14, index=i)
        ax.imshow(scene.render(), cmap="gray", vmin=0, vmax=255)
        ax.set_title(f"label {scene.label}", fontsize=10)
        ax.set(xticks=[], yticks=[])
    short = expressions(1, depth=4, shortest=20, longest=32, stream=0)[:texts]
    lines = [f"{' '.join(SYMBOLS[symbol] for symbol in symbols)}  =  {value}" for symbols, value in short]
    below.text(0.02, 0.5, "\n".join(lines), va="center", fontsize=9, family="monospace", linespacing=1.8)
    return figure


def main(arguments: list[str] | None = None) -> None:
    parser = ArgumentParser(prog="lrpe bench lra-examples", description=__doc__)
    parser.add_argument("file", type=image_path, help="image file to write, such as docs/lra_examples.png")
    file = parser.parse_args(arguments).file
    with exit_on_error(parser.prog):
        save_figure(examples(), file, dpi=110)
