"""The cards of the atlas: properties of a method or of a kind of token positions, derived from its code."""

import inspect
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import torch
from markupsafe import Markup, escape
from omegaconf import DictConfig

from fairseq_lrpe.attention import DeltaAttention, LinearAttention, SoftmaxAttention
from fairseq_lrpe.attention.weights import attention_weights, relative_weights
from fairseq_lrpe.config import PositionConfig, encoding_from_config, option_flag
from fairseq_lrpe.encodings import Context, encoding_options
from fairseq_lrpe.experiments.definition.config_files import tables
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.table_spec import TableSpec
from fairseq_lrpe.experiments.reporting import blocks, encoding_descriptions
from fairseq_lrpe.experiments.reporting.answers import causal_only
from fairseq_lrpe.experiments.reporting.encoding_descriptions import (
    effect,
    encoding_kind,
    features_of_random_inputs,
)
from fairseq_lrpe.experiments.reporting.recorded_results import read_weights, shown_distances
from fairseq_lrpe.experiments.reporting.user_tables import left_out_if_invalid
from fairseq_lrpe.methods import ATTENTIONS, METHODS, aliases, canonical
from fairseq_lrpe.positions import POSITIONS, build_position
from fairseq_lrpe.utils.subprocesses import as_flags

LEARNED = "Adds a learned vector p_k to the embedding at position k (fairseq's LearnedPositionalEmbedding)."
RANDOMIZED = """RoPE, trained with a sorted random subset of the positions 0 .. N - 1 (Ruoss et al. 2023).

Evaluation uses random positions, too, which are the same for all sequences of a length."""
TOKEN_POSITIONS = {"learned": LEARNED, "randomized": RANDOMIZED}
TOKEN_POSITIONS |= {name: inspect.getdoc(cls) for name, cls in POSITIONS.items()}
"""{name of a card of token positions: description}"""
VOCABULARY = 120  # number of tokens of the corpus of the perplexities, wikitext_mini_chars
DRAWS = 16  # number of random vectors over which initial weights are averaged


def method_entries(cfg: DictConfig, results: Path, runs: Iterable[Run]) -> list[SimpleNamespace]:
    """Returns the cards of all methods; methods with the same flags share a card.

    Args:
        cfg: settings of the experiment whose models the cards describe.
        results: folder of results, which may contain recorded attention weights of trained models.
        runs: runs whose recorded weights are shown, if there are any.
    """
    trained = {}
    for run, weights in read_weights(results, runs).items():
        trained[run.attention, run.method] = weights
    tables_by_method = _tables_by_method()
    entries = []
    for name in dict.fromkeys(map(canonical, METHODS)):
        modules = _modules(name, cfg)
        entry = _method_entry(name, modules)
        initial = {}
        after = {}
        for attention, layers in modules.items():
            initial[attention] = _initial_weights(layers, cfg.train.tokens_per_sample)
            if (attention, name) in trained:
                after[attention] = trained[attention, name]
        entry.plots = {"initial weights": blocks.weight_plot(initial)}
        if after:
            entry.plots["weights after training"] = blocks.weight_plot(after)
        entry.tables = ", ".join(tables_by_method[name])
        entries.append(entry)
    return entries


def _tables_by_method():
    """Returns {method: names of the tables with a row of this method}."""
    names = defaultdict(list)
    for name in tables():
        methods = {}
        with left_out_if_invalid(name):
            for row in TableSpec(name).rows:
                if row.method:
                    methods[canonical(row.method)] = None
        for method in methods:
            names[method].append(name)
    return names


def _modules(name, cfg):
    """Returns {attention: attention modules of a method, one per layer}, each in evaluation mode."""
    width = cfg.train.decoder_embed_dim
    heads = cfg.train.decoder_attention_heads
    layers = cfg.train.decoder_layers
    settings = dict(METHODS[name].flags)
    for key, value in cfg.by_method.get(name, {}).items():
        if hasattr(PositionConfig, key):
            settings[key] = value
    modules = {}
    for attention in METHODS[name].attentions():
        torch.manual_seed(0)
        flags = PositionConfig(attention=attention, **settings)
        encodings = []
        for layer in range(1, layers + 1):
            encodings.append(
                encoding_from_config(
                    flags,
                    embed_dim=width,
                    num_heads=heads,
                    causal=True,
                    layers=layers,
                    max_positions=cfg.train.max_target_positions,
                    layer=layer,
                )
            )
        # All encodings are built first, so that the random numbers of attention do not change them.
        modules[attention] = [_module(encoding, flags, width, heads) for encoding in encodings]
    return modules


def _module(encoding, flags, width, heads):
    """Returns an attention module with an encoding, in evaluation mode."""
    if flags.attention == "softmax":
        return SoftmaxAttention(width, heads, encoding).eval()
    if flags.linear_rule != "additive":
        return DeltaAttention(width, heads, encoding, rule=flags.linear_rule).eval()
    options = {name: getattr(flags, name) for name in ("linear_norm", "feature_map", "scale_queries")}
    return LinearAttention(width, heads, encoding, **options).eval()


def _method_entry(name, modules):
    """Returns the card of a method, except for its numbers, plots and tables."""
    layers = next(reversed(modules.values()))
    encodings = [module.encoding for module in layers]
    counted = encodings[:1] if encodings[0].shared_across_layers else encodings
    cls = type(encodings[0])
    reason = "the encoding needs the matrix of scores"
    if isinstance(layers[0], DeltaAttention):
        # The rule's own parameters are what the method adds.
        counted = [module.gates for module in layers]
        cls = DeltaAttention
        reason = "a delta rule has no scores"
    effects = dict.fromkeys(ATTENTIONS, f"Not available, because {reason}.")
    for attention, layers in modules.items():
        effects[attention] = effect(layers[0], attention)
    return SimpleNamespace(
        name=name,
        aliases=aliases(name)[1:],
        source="; ".join(METHODS[alias].source for alias in aliases(name)),
        kind=encoding_kind(name),
        models="causal only" if causal_only(name) else "causal and bidirectional",
        formula=_as_html(inspect.cleandoc(cls.__doc__ or "It has no description.")),
        flags=" ".join(map(str, as_flags(METHODS[name].flags))),
        parameters=sum(map(_parameters, counted)),
        effects=effects,
        attentions=list(modules),
        options=_options(type(encodings[0])),
    )


def _parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


def _options(cls):
    """Returns [(flag, default, help)] of the options of an encoding's class."""
    options = []
    for option, default in encoding_options(cls).items():
        flag = f"--{option_flag(cls.name, option)}".replace("_", "-")
        options.append((flag, default, cls.option_help[option]))
    return options


def _as_html(docstring):
    """Returns a docstring as HTML, without the sections of arguments and errors."""
    text = re.split(r"\n\n(?:Args|Raises):", docstring)[0]
    parts = []
    for paragraph in text.split("\n\n"):
        html = re.sub(r"``(.+?)``|:\w+:`~?(.+?)`", r"<code>\1\2</code>", str(escape(dedent(paragraph))))
        parts.append(f"<pre>{html}</pre>" if paragraph.startswith(" ") else f"<p>{html}</p>")
    return Markup("\n".join(parts))


@torch.no_grad()
def _initial_weights(modules, length):
    """Returns [(distance, weight)] of untrained modules if all queries and keys are the same random vector.

    Weights are relative to uniform attention, and averaged over ``DRAWS`` vectors, heads and layers.

    Args:
        modules: the attention modules of all layers.
        length: number of positions.
    """
    torch.manual_seed(0)
    encoding = modules[0].encoding
    layers = []
    x = torch.randn(DRAWS, encoding.num_heads, 1, encoding.head_dim).expand(-1, -1, length, -1)
    for module in modules:
        context = Context(features=features_of_random_inputs(module.encoding, DRAWS, length))
        layers.append(attention_weights(module, x, x, context))
    weights = relative_weights(torch.stack(layers)).tolist()
    return [(distance, weights[distance]) for distance in shown_distances(length)]


def position_entry(name: str, changes: Mapping, flags: DictConfig) -> SimpleNamespace:
    """Returns the card of a kind of token positions.

    Args:
        name: a key of ``TOKEN_POSITIONS``.
        changes: settings of the row of the token positions in the table, such as their number.
        flags: the other settings of the training.
    """
    length = changes.get("train.max_target_positions", flags.max_target_positions) or flags.tokens_per_sample
    effect = "Changes nothing in attention, but the inputs of the first layer."
    parameters = 0
    shown = f"--token-positions {name}"
    if name == "learned":
        parameters = flags.decoder_embed_dim * length
    elif name == "randomized":
        effect = "Changes the positions of the encoding."
        shown = f"--encoding rope --randomized-positions {changes['train.randomized_positions']}"
    else:
        sizes = {"layers": flags.decoder_layers, "embed_dim": flags.decoder_embed_dim}
        module = build_position(name, vocab_size=VOCABULARY, **sizes, max_positions=length, causal=True)
        parameters = _parameters(module)
        if POSITIONS[name].every_layer:
            effect = "Changes the inputs of attention in every layer."
    return SimpleNamespace(
        name=name,
        aliases=[],
        source="not a method: a choice of token positions, which can be combined with encodings",
        kind=encoding_descriptions.TOKEN_POSITIONS,
        models="",
        formula=_as_html(TOKEN_POSITIONS[name]),
        flags=shown,
        parameters=parameters,
        effects=dict.fromkeys(ATTENTIONS, effect),
        attentions=list(ATTENTIONS),
        options=[],
        plots={},
        tables="",
    )
