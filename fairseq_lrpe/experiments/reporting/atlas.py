"""The atlas of encodings: an HTML page with a card for every method and every kind of token positions.

The page is generated from the code and the results with the template ``atlas.html.jinja``. It is a single
file that needs no network connection.
"""

import math
import statistics
from collections import Counter, defaultdict
from pathlib import Path

import pandas as pd

from fairseq_lrpe.experiments.definition.config_files import own_tables
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.definition.table_settings import Row
from fairseq_lrpe.experiments.definition.table_spec import TableSpec
from fairseq_lrpe.experiments.reporting import blocks
from fairseq_lrpe.experiments.reporting.aggregate import summarize
from fairseq_lrpe.experiments.reporting.answers import answers
from fairseq_lrpe.experiments.reporting.atlas_entries import (
    DRAWS,
    TOKEN_POSITIONS,
    method_entries,
    position_entry,
)
from fairseq_lrpe.experiments.reporting.measured_columns import MEMORY, SPEED
from fairseq_lrpe.experiments.reporting.plots import table_name
from fairseq_lrpe.experiments.reporting.records import read_runs
from fairseq_lrpe.experiments.reporting.run_record import by_run, readable
from fairseq_lrpe.experiments.reporting.user_tables import left_out_if_invalid
from fairseq_lrpe.methods import ATTENTIONS, canonical
from fairseq_lrpe.utils.numbers import format_number

TABLES = {
    "extrapolation": "perplexity ",
    "recall": "recall ",
    "length_generalization": "",
    "needle": "needle ",
    "training_speed": "",
}
"""{table whose numbers are shown: prefix of the names of its columns}"""
OVERVIEW = ["perplexity 1 ×", "perplexity 4 ×", "perplexity 16 ×", "recall 16 pairs", "recall 32 pairs"]
OVERVIEW += ["copy 20 tokens", "copy 25 tokens", "needle 1 ×", "needle 16 ×"]
OVERVIEW += ["speed at 512", "speed at 2,048", "memory at 2,048"]
"""Columns of the overview, a selection of the columns that cards have."""


def render(results: Path, home: str | None = None) -> str:
    """Returns the HTML page of the atlas for a results folder or a folder of recorded results.

    ``home`` is the address of a page to which the atlas links as the documentation.
    """
    runs = by_run(readable(read_runs(results)))
    shown = {name: Table(name, "mini") for name in TABLES}
    numbers, columns = _numbers([(TABLES[name], table) for name, table in shown.items()], runs)
    own_numbers, own_columns = _numbers(_own_tables(runs), runs)
    for card, measured in own_numbers.items():
        numbers.setdefault(card, {}).update(measured)
    depths = _needles_by_depth(shown["needle"], runs)
    [experiment] = shown["extrapolation"].experiments.values()
    cfg = experiment.cfg
    entries = method_entries(cfg, results, runs)
    changes = {}
    for row in shown["extrapolation"].rows:
        changes.setdefault(entry_name(row), row.changes)
    for name in TOKEN_POSITIONS:
        entries.append(position_entry(name, changes[name], cfg.train))
    rows = []
    for entry in entries:
        entry.numbers = _by_attention(numbers, entry)
        entry.depths = _by_attention(depths, entry)
        for attention in entry.numbers:
            rows.append((entry, attention))
    rows.sort(key=lambda row: _value(row[0].numbers[row[1]].get("perplexity 16 ×")))
    return blocks.render(
        "atlas.html.jinja",
        title="Atlas of positional encodings",
        home=home,
        answers=answers(runs),
        bounds=(SPEED, MEMORY),
        entries=entries,
        rows=rows,
        columns=columns + own_columns,
        own_columns=own_columns,
        overview=[column for column in OVERVIEW if column in columns] + own_columns,
        plot=blocks.scatter_plot(_points(rows)),
        attentions=ATTENTIONS,
        kinds=sorted({entry.kind for entry in entries}),
        cfg=cfg,
        draws=DRAWS,
    )


def _by_attention(values, entry):
    """Returns {attention: value} of a card from ``values``, {(attention, name of a card): value}."""
    by_attention = {}
    for attention in entry.attentions:
        if (attention, entry.name) in values:
            by_attention[attention] = values[attention, entry.name]
    return by_attention


def _points(rows):
    """Yields a point of the scatter plot for each row that is measured at both lengths without diverging."""
    for entry, attention in rows:
        x = _value(entry.numbers[attention].get("perplexity 1 ×"))
        y = _value(entry.numbers[attention].get("perplexity 16 ×"))
        if math.isfinite(x) and math.isfinite(y):
            yield x, y, entry.name, attention, entry.kind


def _value(cell):
    return math.inf if cell is None or cell[1] is None else cell[1]


def _own_tables(runs):
    """Returns (prefix of the names of columns, table) of each table of the user with one of ``runs``.

    Tables with rows that share a card, such as those of two values of an option, are left out.
    """
    shown = []
    for name in own_tables():
        if name in TABLES:
            continue
        with left_out_if_invalid(name):
            for scale in TableSpec(name).scales:
                table = Table(name, scale)
                if runs.keys() & set(table.runs()) and _has_one_row_per_card(table):
                    shown.append((f"{table_name(table)}: ", table))
    return shown


def _has_one_row_per_card(table):
    cards = Counter()
    for row in table.rows:
        if row.method:
            cards[row.attention, entry_name(row)] += 1
    return max(cards.values(), default=0) == 1


def _numbers(shown, runs):
    """Returns {(attention, name of a card): {column: (text, mean)}} and the columns with a number.

    The mean is None if the cell is not measured.

    Args:
        shown: (prefix of the names of columns, table) of each table.
        runs: {run: record} of the measured runs.
    """
    numbers = {}
    columns = {}
    for prefix, table in shown:
        names = _entry_names(table)
        for line in summarize(table, runs).itertuples():
            column = prefix + line.column
            number = "not measured", None
            if line.seeds:
                text = f"{format_number(line.mean, line.decimals, line.std)} ({line.state})"
                number = text, line.mean
                columns[column] = None
            card = line.attention, names[line.attention, line.row]
            numbers.setdefault(card, {})[column] = number
    return numbers, list(columns)


def _needles_by_depth(table, runs):
    """Returns {(attention, name of a card): DataFrame} of the percentages of needles found.

    A DataFrame has one row per quarter of the text, and the columns of the table.
    """
    names = _entry_names(table)
    depths = defaultdict(dict)
    for cell in table.cells:
        seeds = []
        for run in cell.runs:
            if run in runs:
                quarters = _quarters(runs[run], cell.evaluation)
                if None not in quarters:
                    seeds.append(quarters)
        if seeds:
            means = [statistics.fmean(quarter) for quarter in zip(*seeds, strict=True)]
            depths[cell.attention, names[cell.attention, cell.row]][cell.column] = means
    frames = {}
    for card, columns in depths.items():
        frames[card] = pd.DataFrame(columns, index=range(1, 5))
    return frames


def _quarters(record, evaluation):
    """Returns the percentage of needles found in each quarter of the text, or None if it is not measured."""
    return [record.value(evaluation, f"quarter_{number}") for number in range(1, 5)]


def _entry_names(table):
    """Returns {(attention, row): name of the card} of a table's rows."""
    return {(row.attention, row.row): entry_name(row) for row in table.rows}


def entry_name(row: Row) -> str:
    """Returns the name of the card to which a row of a table belongs."""
    if "train.randomized_positions" in row.changes:
        return "randomized"
    return row.changes.get("train.token_positions", canonical(row.method))
