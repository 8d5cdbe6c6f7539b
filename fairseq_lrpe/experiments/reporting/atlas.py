"""Writes the atlas of encodings: an HTML page with a card for every method and every kind of token positions.

It is generated from the code and the results. The page is a single file that needs no network connection. Its
template is ``atlas.html.jinja``.
"""

import inspect
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

import pandas as pd
import torch
from markupsafe import Markup, escape

from fairseq_lrpe.attention import LinearAttention, SelfAttention, SoftmaxAttention
from fairseq_lrpe.attention.weights import attention_weights, relative_weights
from fairseq_lrpe.config import PositionConfig, encoding_from_config, option_flag
from fairseq_lrpe.encodings import Encoding, encoding_options
from fairseq_lrpe.experiments.reporting.aggregate import seed_values, summarize
from fairseq_lrpe.experiments.reporting.measurements import measurements
from fairseq_lrpe.experiments.reporting.recorded import read_runs, read_weights, shown_distances
from fairseq_lrpe.experiments.reporting.renderers import format_number, html_environment
from fairseq_lrpe.experiments.spec.table import Table
from fairseq_lrpe.methods import ATTENTIONS, METHODS, aliases, canonical
from fairseq_lrpe.positions import POSITIONS, build_position
from fairseq_lrpe.utils.subprocesses import as_flags

PERPLEXITY, SPEED = "extrapolation", ("tmlr_table6", "iclr_table9")
"""Tables with the perplexities, and with training speeds relative to Base."""
TOKEN_POSITIONS = ("learned", *POSITIONS)
"""Values of --token-positions with a card; “learned” is a module of fairseq."""
LEARNED = "Adds a learned vector p_k to the embedding at position k (fairseq's LearnedPositionalEmbedding)."
VOCABULARY = 120  # number of tokens of the corpus of the perplexities, wikitext_mini_chars
MEMORY_LENGTH = 512  # number of tokens with which memory is measured
DRAWS = 16  # number of random vectors over which initial weights are averaged
NORMS = {
    "denominator": "Divides by the sum of the weights.",
    "content": "Divides by the sum of the weights without the encoding.",
    "layernorm": "Applies a LayerNorm instead of dividing by the sum of the weights.",
}


@dataclass
class Entry:
    """A card of the page. Measurements are {attention: (text, value)}."""

    name: str
    aliases: list[str]
    parameters: int
    perplexity: dict[str, dict[str, tuple[str, float]]] = field(default_factory=dict)
    speed: dict[str, tuple[str, float]] = field(default_factory=dict)
    memory: dict[str, tuple[str, float]] = field(default_factory=dict)
    plots: dict[str, Markup] = field(default_factory=dict)


@dataclass
class PositionEntry(Entry):
    """A position embedding, a value of --token-positions."""

    attentions = ATTENTIONS
    kind = "token positions"
    source = "an absolute position embedding, combined with the embeddings of the tokens"
    options = ()

    @property
    def flags(self) -> str:
        return f"--token-positions {self.name}"

    @property
    def formula(self) -> Markup:
        return _as_html(inspect.getdoc(POSITIONS[self.name]) if self.name in POSITIONS else LEARNED)

    def effect(self, attention: str) -> str:
        """Describes what the positions change in linear or softmax attention."""
        if self.name in POSITIONS and POSITIONS[self.name].every_layer:
            return "Changes the inputs of attention in every layer."
        return "Changes nothing in attention, but the inputs of the first layer."


@dataclass
class MethodEntry(Entry):
    """A method; ``modules`` has the initial attention modules of all layers by attention."""

    modules: dict[str, list[SelfAttention]] = field(default_factory=dict)

    @property
    def attentions(self) -> list[str]:
        return list(self.modules)

    @property
    def method(self):
        return METHODS[self.name]

    @property
    def source(self) -> str:
        return "; ".join(METHODS[name].source for name in (self.name, *self.aliases))

    @property
    def encoding(self) -> Encoding:
        return self.modules["softmax"][0].encoding

    @property
    def flags(self) -> str:
        return " ".join(map(str, as_flags(self.method.flags)))

    @property
    def options(self) -> list[tuple[str, object, str]]:
        """The (flag, default, help) of the encoding's options."""
        cls = type(self.encoding)
        defaults = encoding_options(cls).items()
        flags = [option_flag(cls.name, name).replace("_", "-") for name, _ in defaults]
        pairs = zip(flags, defaults, strict=True)
        return [(f"--{flag}", default, cls.option_help[name]) for flag, (name, default) in pairs]

    @property
    def kind(self) -> str:
        """How the encoding represents positions, derived from its attributes."""
        encoding = self.encoding
        if encoding.name == "none":
            return "none" if "token_positions" in self.method.flags else "absolute"
        if encoding.uses_absolute_positions:
            return "absolute and relative"
        if _overrides(encoding, "log_decay"):
            return "decay"
        if encoding.decomposable:
            return "relative, in q and k"
        return "relative, in scores" if encoding.bidirectional else "contextual"

    @property
    def formula(self) -> Markup:
        return _as_html(inspect.getdoc(type(self.encoding)))

    def effect(self, attention: str) -> str:
        """Describes what the encoding changes in linear or softmax attention."""
        if attention not in self.modules:
            return "Not available, because the encoding needs the matrix of scores."
        encoding, decay, found = self.encoding, self.encoding.log_decay(), []
        if _overrides(encoding, "forward"):
            after = " after the feature map" if attention == "linear" else ""
            found.append(f"Transforms queries and keys{after}.")
        if attention == "softmax" and _overrides(encoding, "bias"):
            found.append("Adds a term to the scaled scores.")
        if attention == "softmax" and _overrides(encoding, "scores"):
            found.append("Replaces the formula of the scores.")
        if decay is not None:
            each = "each feature" if decay.dim() > 1 else "each head"
            found.append(f"Multiplies the weights by a decay with the distance in {each}.")
            if attention == "softmax" and decay.dim() == 1:
                found[-1] = f"Adds the logarithm of a decay with the distance to the scores of {each}."
            if attention == "softmax" and (decay.dim() > 1 or _overrides(encoding, "scores")):
                found[-1] = f"Multiplies the products of q and k by a decay with the distance in {each}."
        if _overrides(encoding, "encode_values"):
            also = ", and the output back" if _overrides(encoding, "decode_output") else ""
            found.append(f"Transforms the values{also}.")
        if attention == "softmax" and encoding.needs_weights:
            found.append("Adds a term to the output that depends on the weights.")
        found = found or ["Changes nothing in attention."]
        if attention == "linear":
            found.append(NORMS[self.modules[attention][0].linear_norm])
        return " ".join(found)


def _as_html(docstring: str) -> Markup:
    """Returns a docstring as HTML, without its sections of arguments and errors."""
    text, parts = re.split(r"\n\n(?:Args|Raises):", docstring)[0], []
    for paragraph in text.split("\n\n"):
        html = re.sub(r"``(.+?)``|:\w+:`~?(.+?)`", r"<code>\1\2</code>", str(escape(dedent(paragraph))))
        parts.append(f"<pre>{html}</pre>" if paragraph.startswith(" ") else f"<p>{html}</p>")
    return Markup("\n".join(parts))


def _overrides(encoding, *names):
    return any(getattr(type(encoding), name) is not getattr(Encoding, name) for name in names)


def render(results: Path) -> str:
    """Returns the HTML page for a results folder or a folder of recorded results.

    Raises:
        ValueError: the folder does not exist, or its files are damaged.
    """
    found = measurements(record for record in read_runs(results) if record.problem is None)
    table = Table(PERPLEXITY, "mini")
    [experiment] = table.experiments.values()
    perplexity, speed = _numbers(table, found), {}
    for name in SPEED:
        speed |= _numbers(Table(name, "mini"), found)
    entries, kept = [], {}
    trained = {(run.attention, run.method): points for run, points in read_weights(results).items()}
    for name in dict.fromkeys(map(canonical, METHODS)):
        entry = _entry(name, experiment.cfg)
        initial, after = {}, {}
        for attention, modules in entry.modules.items():
            entry.perplexity[attention] = perplexity.get((attention, name), {})
            entry.speed[attention] = next(iter(speed.get((attention, name), {}).values()), None)
            kept[attention, name] = _kept_memory(modules[0])
            initial[attention] = _initial_weights(modules, experiment.cfg.train.tokens_per_sample)
            if (attention, name) in trained:
                after[attention] = trained[attention, name]
        shown = {"initial weights": initial, "weights after training": after}
        entry.plots = {title: plot(weights) for title, weights in shown.items() if weights}
        entries.append(entry)
    for entry in entries:
        for attention in entry.modules:
            ratio = kept[attention, entry.name] / kept[attention, "nope"]
            entry.memory[attention] = f"{ratio:.2f}", ratio
    for name in TOKEN_POSITIONS:
        found = {attention: perplexity.get((attention, name), {}) for attention in ATTENTIONS}
        entries.append(
            PositionEntry(name, [], _position_parameters(name, table, experiment.cfg.train), found)
        )
    columns = list(table.columns)
    rows = [(entry, attention) for entry in entries for attention in entry.attentions]
    rows.sort(key=lambda row: row[0].perplexity[row[1]].get(columns[-1], ("", math.inf))[1])
    return (
        html_environment()
        .get_template("atlas.html.jinja")
        .render(
            entries=entries,
            rows=rows,
            columns=columns,
            attentions=ATTENTIONS,
            kinds=sorted({entry.kind for entry in entries}),
            cfg=experiment.cfg,
            draws=DRAWS,
            memory_length=MEMORY_LENGTH,
        )
    )


def _numbers(table: Table, results: pd.DataFrame) -> dict[tuple[str, str], dict[str, tuple[str, float]]]:
    """Returns {(attention, name): {column: (text, mean)}} of the measured cells of methods and positions."""
    found = {}
    own = results[results["experiment"].isin(table.experiments)]
    summary = summarize(table, seed_values(table, own))
    for cell, line in zip(table.cells, summary.itertuples(), strict=True):
        changes = dict(cell.runs[0].changes)
        name = changes.pop("train.token_positions", cell.runs[0].method)
        if name in TOKEN_POSITIONS:
            changes.pop("train.max_target_positions", None)
        if line.seeds and not changes:
            text = f"{format_number(line.mean, line.std, line.decimals)} ({line.state})"
            found.setdefault((cell.attention, name), {})[cell.column] = text, line.mean
    return found


def _position_parameters(name: str, table: Table, flags) -> int:
    """Returns the number of parameters of a position embedding in the models of its row of the table."""
    changes = next((x.changes for x in table.rows if x.changes.get("train.token_positions") == name), {})
    length = changes.get("train.max_target_positions", flags.max_target_positions) or flags.tokens_per_sample
    if name not in POSITIONS:
        return flags.decoder_embed_dim * length
    sizes = {"vocab_size": VOCABULARY, "layers": flags.decoder_layers, "embed_dim": flags.decoder_embed_dim}
    position = build_position(name, **sizes, max_positions=length, causal=True)
    return sum(parameter.numel() for parameter in position.parameters())


def _entry(name: str, cfg) -> MethodEntry:
    """Returns the entry of a method with attention modules like those of an experiment's models."""
    own = {key: x for key, x in cfg.by_method.get(name, {}).items() if hasattr(PositionConfig, key)}
    width, heads, layers = (cfg.train[f"decoder_{key}"] for key in ("embed_dim", "attention_heads", "layers"))
    shared = {"embed_dim": width, "num_heads": heads, "causal": True, "layers": layers}
    shared["max_positions"] = cfg.train.max_target_positions
    modules = {}
    for attention in METHODS[name].attentions():
        torch.manual_seed(0)
        flags = PositionConfig(attention=attention, **{**METHODS[name].flags, **own})
        encodings = [encoding_from_config(flags, **shared, layer=n) for n in range(1, layers + 1)]
        if attention == "linear":
            options = {"linear_norm": flags.linear_norm, "feature_map": flags.feature_map}
            found = [LinearAttention(width, heads, encoding, **options) for encoding in encodings]
        else:
            found = [SoftmaxAttention(width, heads, encoding) for encoding in encodings]
        modules[attention] = [module.eval() for module in found]
    counted = encodings[:1] if encodings[0].shared_across_layers else encodings
    parameters = sum(p.numel() for encoding in counted for p in encoding.parameters())
    return MethodEntry(name, aliases(name)[1:], parameters, modules=modules)


@torch.no_grad()
def _initial_weights(modules: list[SelfAttention], length: int) -> list[tuple[int, float]]:
    """Returns (distance, relative weight) if every query and key is the same random vector."""
    torch.manual_seed(0)
    encoding, layers = modules[0].encoding, []
    x = torch.randn(DRAWS, encoding.num_heads, 1, encoding.head_dim).expand(-1, -1, length, -1)
    inputs = torch.randn(DRAWS, (encoding.left_context or 0) + length, modules[0].embed_dim)
    for module in modules:
        has_features = encoding.left_context is not None
        features = module.encoding.input_features(inputs) if has_features else None
        layers.append(attention_weights(module, x, x, features))
    weights = relative_weights(torch.stack(layers)).tolist()
    return [(distance, weights[distance]) for distance in shown_distances(length)]


def _kept_memory(module: SelfAttention) -> int:
    """Returns the bytes that a training step keeps for the backward pass of an attention module."""
    own = {x.untyped_storage().data_ptr() for x in module.parameters()}
    kept = {}

    def keep(x):
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return x

    module.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        output = module(torch.randn(1, MEMORY_LENGTH, module.embed_dim, requires_grad=True))
    module.eval()
    del output  # it kept the storages alive, so that no address was used twice
    return sum(kept.values())


WIDTH, HEIGHT, LEFT, BOTTOM = 330, 170, 38, 20  # of plots, and of their margins


def plot(curves: dict[str, list[tuple[int, float]]]) -> Markup:
    """Returns an SVG with weights over the distance, on the axis asinh(weight), since some are large.

    Args:
        curves: {attention: [(distance, weight relative to uniform attention)]}.
    """
    last = max(points[-1][0] for points in curves.values())
    values = [value for points in curves.values() for _, value in points]
    largest = max(1.5, *values)
    low, high = math.asinh(min(0.0, *values)), math.asinh(largest) + 0.05

    def at(distance, value):
        x = LEFT + (WIDTH - LEFT - 4) * distance / last
        return f"{x:.0f} {(HEIGHT - BOTTOM) * (high - math.asinh(value)) / (high - low):.1f}"

    def label(position, text, anchor):
        x, y = position.split()
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'

    lines = [
        f'<path class="{attention}" d="M{" ".join(at(*point) for point in points)}"/>'
        for attention, points in curves.items()
    ]
    axes = "".join(f'<path class="axis" d="M{at(0, y)} {at(last, y)}"/>' for y in (0, 1))
    labels = [label(at(-4, y), f"{y:g}", "end") for y in (0, 1, 4, 16) if y <= max(1, largest)]
    bottom = HEIGHT - 5
    for x, text, anchor in ((0, "0", "middle"), (last, f"distance {last}", "end")):
        labels.append(label(f"{at(x, 0).split()[0]} {bottom}", text, anchor))
    title = "<title>Attention weight relative to uniform attention, over the distance</title>"
    box = f'<svg viewBox="0 -8 {WIDTH} {HEIGHT + 8}" role="img">{title}'
    return Markup(box + axes + "".join(lines) + "".join(labels) + "</svg>")
