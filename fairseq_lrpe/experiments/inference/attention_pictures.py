"""Pictures of the attention of a trained language model in a text."""

import math
import warnings
from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor

from fairseq_lrpe.data import line_codec
from fairseq_lrpe.experiments.inference.attention import weights_of_layers
from fairseq_lrpe.experiments.inference.load import find, load_model
from fairseq_lrpe.utils.errors import UserError, user_errors
from fairseq_lrpe.utils.files import atomic_folder, output_folder, save_figure

TASKS = ("language_modeling", "synthetic_lm")
IMAGES = (".png", ".pdf", ".svg")
MAX_TOKENS = 512
MAX_LABELS = 40
"""Maximum number of tokens that are written next to the axes."""
PANEL = 2.4
"""Width and height of a panel without labels, in inches."""
COLUMNS = 4
"""Maximum number of panels in a row of a layer's picture."""


def draw(run: Path, text: str, out: Path, cpu: bool = False) -> None:
    """Writes pictures of the attention weights of a language model in a text.

    Args:
        run: folder of a run, or a checkpoint file.
        text: the text, in the form of the corpus.
        out: a file in one of the formats ``IMAGES`` with all layers, a row of heads for each, or a new folder
            for a file layer-N.png of each layer, with a panel for each head.
        cpu: whether to use the CPU even if there is a GPU.

    Raises:
        UserError: if there is no such language model, or if the text is too long or the output cannot be
            written.
    """
    is_file = out.suffix in IMAGES
    if is_file and out.is_dir():
        raise UserError(f"{out} is a folder: choose a file")
    if not is_file and out.suffix[1:].isalpha():
        raise UserError(f"{out} must be a folder, or a file that ends in {', '.join(IMAGES)}")
    if not is_file and (out.is_symlink() or out.exists()):
        raise UserError(f"{out} exists: choose a new folder, or a file that ends in {', '.join(IMAGES)}")
    checkpoint, _ = find(run, TASKS)
    with output_folder(out.parent):
        model = load_model(checkpoint, cpu=cpu)
        tokens = model.encode(text)
        if len(tokens) > MAX_TOKENS:
            raise UserError(f"the text has {len(tokens)} tokens, more than {MAX_TOKENS}: shorten it")
        with user_errors():
            layers = [
                weights[0].cpu() for weights in weights_of_layers(model.model, tokens[None].to(model.device))
            ]
        if not layers:
            raise UserError(f"{checkpoint} is fairseq's own model: pass a model of this plugin")
        labels = token_labels(model, tokens)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # the font lacks a character
            if is_file:
                save_figure(picture(dict(enumerate(layers, 1)), labels), out, dpi=150)
                return
            with atomic_folder(out) as part:
                for number, weights in enumerate(layers, 1):
                    save_figure(picture({number: weights}, labels), part / f"layer-{number}.png", dpi=150)


def token_labels(model, tokens: Tensor) -> list[str]:
    """Returns the text of each token; that of </s>, and of a space, is its symbol."""
    dictionary = model.task.source_dictionary
    labels = []
    for token in tokens.tolist():
        symbol = dictionary[token]
        text = symbol if symbol == line_codec.END else model.codec.decode(symbol).strip()
        labels.append(text or symbol)
    return labels


def picture(layers: dict[int, Tensor], labels: list[str]) -> Figure:
    """Returns a figure with a panel for each head of each layer.

    Weights are from 0 to the largest one of the figure. If some are negative, as in linear attention with
    rotations, the colors are symmetric about 0.

    Args:
        layers: {number of the layer: weights (H, L, L)}.
        labels: the text of each token.
    """
    heads = sum(len(weights) for weights in layers.values())
    columns = len(next(iter(layers.values()))) if len(layers) > 1 else min(heads, COLUMNS)
    rows = math.ceil(heads / columns)
    is_labeled = len(labels) <= MAX_LABELS
    size = max(PANEL, 0.14 * len(labels) + 0.8) if is_labeled else PANEL
    figure = Figure(figsize=(size * columns + 1, size * rows + 0.4), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    largest = max(weights.abs().max().item() for weights in layers.values())
    has_negative = any(weights.min() < 0 for weights in layers.values())
    colors = {"cmap": "RdBu_r" if has_negative else "Blues", "vmin": -largest * has_negative, "vmax": largest}
    remaining = iter(panels.flat)
    for layer, weights in layers.items():
        for head, of_head in enumerate(weights, 1):
            panel = next(remaining)
            image = panel.imshow(of_head, **colors)
            panel.set_title(f"layer {layer}, head {head}", fontsize=9)
            if is_labeled:
                text = {"fontsize": 6, "parse_math": False}
                panel.set_xticks(range(len(labels)), labels, rotation=90, **text)
                panel.set_yticks(range(len(labels)), labels, **text)
    for panel in remaining:
        panel.remove()
    figure.supxlabel("key", fontsize=9)
    figure.supylabel("query", fontsize=9)
    figure.colorbar(image, ax=figure.axes, label="attention weight")
    return figure
