"""Draws examples of the generated corpora of Long-Range Arena: ``python -m data_prep.lra_examples FILE``."""

from argparse import ArgumentParser

from matplotlib.figure import Figure

from data_prep.listops import SYMBOLS, expressions
from data_prep.pathfinder import draw
from fairseq_lrpe.files import new_folder
from fairseq_lrpe.programs import one_sentence, picture


def examples(pictures: int = 8, texts: int = 2) -> Figure:
    """Returns a figure of pictures of Pathfinder with their labels, and of short expressions of ListOps."""
    columns = 4
    figure = Figure(figsize=(1.7 * columns, 2 * pictures / columns + 0.35 * texts), layout="constrained")
    above, below = figure.subfigures(2, height_ratios=[2 * pictures / columns, 0.35 * texts])
    for i, ax in enumerate(above.subplots(-(-pictures // columns), columns, squeeze=False).flat):
        drawn = draw(seed=1, window=32, length=14, index=i)
        ax.imshow(drawn.grey(), cmap="gray", vmin=0, vmax=255)
        ax.set_title(f"label {drawn.label}", fontsize=10)
        ax.set(xticks=[], yticks=[])
    short = expressions(1, depth=4, shortest=20, longest=32, stream=0)[:texts]
    lines = [f"{' '.join(SYMBOLS[symbol] for symbol in symbols)}  =  {value}" for symbols, value in short]
    below.text(0.02, 0.5, "\n".join(lines), va="center", fontsize=9, family="monospace", linespacing=1.8)
    return figure


def main():
    parser = ArgumentParser(prog="python -m data_prep.lra_examples", description=__doc__)
    parser.add_argument("file", type=picture, help="docs/lra_examples.png in the repository")
    file = parser.parse_args().file
    with one_sentence("lra_examples"), new_folder(file.parent):
        examples().savefig(file, dpi=110)


if __name__ == "__main__":
    main()
