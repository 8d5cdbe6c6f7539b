"""Writes the atlas of encodings: an HTML page with a card for every method and every kind of token positions.

It is generated from the code and the results. The page is a single file that needs no network connection. Its
template is ``atlas.html.jinja``.
"""

import inspect
import math
import re
import statistics
from collections import defaultdict
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pandas as pd
import torch
from markupsafe import Markup, escape

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention
from fairseq_lrpe.attention.weights import attention_weights, relative_weights
from fairseq_lrpe.config import PositionConfig, encoding_from_config, option_flag
from fairseq_lrpe.encodings import Context, encoding_options
from fairseq_lrpe.experiments.definition.table import Table, TableSpec, tables
from fairseq_lrpe.experiments.definition.table_settings import Row
from fairseq_lrpe.experiments.reporting import blocks, encoding_kinds
from fairseq_lrpe.experiments.reporting.aggregate import summarize
from fairseq_lrpe.experiments.reporting.answers import MEMORY, SPEED, answers, causal_only
from fairseq_lrpe.experiments.reporting.encoding_effects import effect, features_of_random_inputs
from fairseq_lrpe.experiments.reporting.encoding_kinds import encoding_kind
from fairseq_lrpe.experiments.reporting.recorded_results import read_weights, shown_distances
from fairseq_lrpe.experiments.reporting.records import read_runs
from fairseq_lrpe.experiments.reporting.renderers import format_number
from fairseq_lrpe.methods import ATTENTIONS, METHODS, aliases, canonical
from fairseq_lrpe.positions import POSITIONS, build_position
from fairseq_lrpe.utils.subprocesses import as_flags

TABLES = {
    "extrapolation": "perplexity ",
    "recall": "recall ",
    "length_generalization": "",
    "needle": "needle ",
    "training_speed": "",
}
"""{table whose numbers are shown: prefix of its columns}"""
OVERVIEW = ["perplexity 1 ×", "perplexity 4 ×", "perplexity 16 ×", "recall 16 pairs", "recall 32 pairs"]
OVERVIEW += ["copy 20 tokens", "copy 25 tokens", "needle 1 ×", "needle 16 ×"]
OVERVIEW += ["speed at 512", "speed at 2,048", "memory at 2,048"]
"""Columns of the overview; cards have all columns."""
LEARNED = "Adds a learned vector p_k to the embedding at position k (fairseq's LearnedPositionalEmbedding)."
RANDOMIZED = """RoPE, trained with a sorted random subset of the positions 0 .. N - 1 (Ruoss et al. 2023).

Evaluation uses random positions, too, which are the same for all sequences of a length."""
TOKEN_POSITIONS = {"learned": LEARNED, "randomized": RANDOMIZED}
TOKEN_POSITIONS |= {name: inspect.getdoc(cls) for name, cls in POSITIONS.items()}
"""{name of a card of token positions: text}"""
VOCABULARY = 120  # number of tokens of the corpus of the perplexities, wikitext_mini_chars
DRAWS = 16  # number of random vectors over which initial weights are averaged


def render(results: Path) -> str:
    """Returns the HTML page for a results folder or a folder of recorded results."""
    runs = {record.run: record for record in read_runs(results) if record.problem is None}
    shown = {name: Table(name, "mini") for name in TABLES}
    numbers, columns = _numbers(shown, runs)
    depths = _needles_by_depth(shown["needle"], runs)
    [experiment] = shown["extrapolation"].experiments.values()
    cfg, entries, places = experiment.cfg, [], _tables_by_method()
    trained = {(run.attention, run.method): of for run, of in read_weights(results, runs).items()}
    for name in dict.fromkeys(map(canonical, METHODS)):
        of = _modules(name, cfg)
        entry = _method_entry(name, of)
        length = cfg.train.tokens_per_sample
        initial = {attention: _initial_weights(layers, length) for attention, layers in of.items()}
        after = {attention: trained[attention, name] for attention in of if (attention, name) in trained}
        plots = {"initial weights": initial, "weights after training": after}
        entry.plots = {title: blocks.weight_plot(weights) for title, weights in plots.items() if weights}
        entry.tables = ", ".join(places[name])
        entries.append(entry)
    entries += [_position_entry(name, shown["extrapolation"], cfg.train) for name in TOKEN_POSITIONS]
    for entry in entries:
        entry.numbers = {x: numbers[x, entry.name] for x in entry.attentions if (x, entry.name) in numbers}
        entry.depths = {x: depths[x, entry.name] for x in entry.attentions if (x, entry.name) in depths}
    rows = [(entry, attention) for entry in entries for attention in entry.numbers]
    rows.sort(key=lambda row: _value(row[0].numbers[row[1]].get("perplexity 16 ×")))
    return blocks.render(
        "atlas.html.jinja",
        title="Atlas of positional encodings",
        answers=answers(runs),
        bounds=(SPEED, MEMORY),
        entries=entries,
        rows=rows,
        columns=columns,
        overview=[column for column in OVERVIEW if column in columns],
        plot=blocks.scatter_plot(_points(rows)),
        attentions=ATTENTIONS,
        kinds=sorted({entry.kind for entry in entries}),
        cfg=cfg,
        draws=DRAWS,
    )


def _points(rows):
    for entry, attention in rows:
        x, y = (_value(entry.numbers[attention].get(f"perplexity {length} ×")) for length in (1, 16))
        if math.isfinite(x) and math.isfinite(y):
            yield x, y, entry.name, attention, entry.kind


def _value(cell):
    return math.inf if cell is None or cell[1] is None else cell[1]


def _numbers(shown, runs):
    """Returns {(attention, name): {column: (text, mean)}} and the columns with a number.

    The mean is None if the cell is not measured.
    """
    found, columns = {}, {}
    for name, table in shown.items():
        rows = {(row.attention, row.row): row for row in table.rows}
        for line in summarize(table, runs).itertuples():
            column, text, mean = TABLES[name] + line.column, "not measured", None
            if line.seeds:
                text = f"{format_number(line.mean, line.std, line.decimals)} ({line.state})"
                columns[column], mean = name, line.mean
            row = rows[line.attention, line.row]
            found.setdefault((line.attention, entry_name(row)), {})[column] = text, mean
    return found, list(columns)


def _needles_by_depth(table, runs):
    """Returns {(attention, name): percentages of needles found, by quarter of the text and column}."""
    names, found = {(row.attention, row.row): entry_name(row) for row in table.rows}, defaultdict(dict)
    for cell in table.cells:
        records = [runs[run] for run in cell.runs if run in runs]
        quarters = [
            [record.value(cell.evaluation, f"quarter_{n}") for n in range(1, 5)] for record in records
        ]
        if quarters := [of for of in quarters if None not in of]:
            means = list(map(statistics.fmean, zip(*quarters, strict=True)))
            found[cell.attention, names[cell.attention, cell.row]][cell.column] = means
    return {key: pd.DataFrame(by_column, index=range(1, 5)) for key, by_column in found.items()}


def entry_name(row: Row) -> str:
    if "train.randomized_positions" in row.changes:
        return "randomized"
    return row.changes.get("train.token_positions", canonical(row.method))


def _tables_by_method():
    found = defaultdict(list)
    for name in tables():
        for method in dict.fromkeys(canonical(row.method) for row in TableSpec(name).rows if row.method):
            found[method].append(name)
    return found


def _position_entry(name, table, flags):
    """Returns the card of token positions, whose row in ``table`` has the number of positions."""
    changes = next(row.changes for row in table.rows if entry_name(row) == name)
    length = changes.get("train.max_target_positions", flags.max_target_positions) or flags.tokens_per_sample
    effect, parameters = "Changes nothing in attention, but the inputs of the first layer.", 0
    shown = f"--token-positions {name}"
    if name == "learned":
        parameters = flags.decoder_embed_dim * length
    elif name == "randomized":
        effect = "Changes the positions of the encoding."
        shown = f"--encoding rope --randomized-positions {changes['train.randomized_positions']}"
    else:
        sizes = {"layers": flags.decoder_layers, "embed_dim": flags.decoder_embed_dim}
        module = build_position(name, vocab_size=VOCABULARY, **sizes, max_positions=length, causal=True)
        parameters = sum(p.numel() for p in module.parameters())
        if POSITIONS[name].every_layer:
            effect = "Changes the inputs of attention in every layer."
    return SimpleNamespace(
        name=name,
        aliases=[],
        source="not a method: a choice of token positions, which can be combined with encodings",
        kind=encoding_kinds.TOKEN_POSITIONS,
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


def _modules(name, cfg):
    """Returns {attention: its modules, one per layer} of a method."""
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
    return modules


def _method_entry(name, modules):
    encodings = [module.encoding for module in modules["softmax"]]
    counted = encodings[:1] if encodings[0].shared_across_layers else encodings
    cls, flags = type(encodings[0]), METHODS[name].flags
    effects = dict.fromkeys(ATTENTIONS, "Not available, because the encoding needs the matrix of scores.")
    return SimpleNamespace(
        name=name,
        aliases=aliases(name)[1:],
        source="; ".join(METHODS[x].source for x in aliases(name)),
        kind=encoding_kind(name),
        models="causal only" if causal_only(name) else "causal and bidirectional",
        formula=_as_html(inspect.getdoc(cls)),
        flags=" ".join(map(str, as_flags(flags))),
        parameters=sum(p.numel() for encoding in counted for p in encoding.parameters()),
        effects=effects | {attention: effect(layers[0], attention) for attention, layers in modules.items()},
        attentions=list(modules),
        options=[
            (f"--{option_flag(cls.name, option)}".replace("_", "-"), default, cls.option_help[option])
            for option, default in encoding_options(cls).items()
        ],
    )


def _as_html(docstring):
    """Returns a docstring as HTML, without its sections of arguments and errors."""
    text, parts = re.split(r"\n\n(?:Args|Raises):", docstring)[0], []
    for paragraph in text.split("\n\n"):
        html = re.sub(r"``(.+?)``|:\w+:`~?(.+?)`", r"<code>\1\2</code>", str(escape(dedent(paragraph))))
        parts.append(f"<pre>{html}</pre>" if paragraph.startswith(" ") else f"<p>{html}</p>")
    return Markup("\n".join(parts))


@torch.no_grad()
def _initial_weights(modules, length):
    """Returns [(distance, relative weight)] if every query and key is the same random vector."""
    torch.manual_seed(0)
    encoding, layers = modules[0].encoding, []
    x = torch.randn(DRAWS, encoding.num_heads, 1, encoding.head_dim).expand(-1, -1, length, -1)
    for module in modules:
        context = Context(features=features_of_random_inputs(module.encoding, DRAWS, length))
        layers.append(attention_weights(module, x, x, context))
    weights = relative_weights(torch.stack(layers)).tolist()
    return [(distance, weights[distance]) for distance in shown_distances(length)]
