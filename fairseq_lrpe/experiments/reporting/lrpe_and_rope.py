"""The answer to the question whether LRPE is better than RoPE."""

from collections.abc import Iterator, Mapping

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.reporting.measured_columns import MeasuredColumn
from fairseq_lrpe.experiments.reporting.measured_tables import MeasuredTable
from fairseq_lrpe.experiments.reporting.renderers import heading
from fairseq_lrpe.experiments.reporting.run_record import RunRecord
from fairseq_lrpe.methods import METHODS


def sentences_of_column(column: MeasuredColumn, attention: str) -> Iterator[str]:
    """Yields a sentence that compares the types of LRPE with RoPE, and RoPE with learned angles.

    Args:
        column: perplexities at the training length.
        attention: type of attention of the column.
    """
    types = _types_of_lrpe(column)
    if not types or "RoPE" not in column.rows:
        return
    learned = [row for row in types if METHODS[column.rows[row]].flags.get("lrpe_learn_theta")]
    others = [row for row in types if row not in learned]
    best = min(types, key=column.mean)
    yield (
        f"In {attention} attention, at the training length, {_count_better(column, learned)} of "
        f"{len(learned)} types of LRPE with learned angles are better than RoPE, and "
        f"{_count_better(column, others)} of {len(others)} types without. The best, {best}, has "
        f"{column.text(best)} and RoPE {column.text('RoPE')}; the difference is "
        f"{column.difference(best, 'RoPE')}. RoPE with learned angles, RoPE-Mixed, has "
        f"{column.text('RoPE-Mixed')}."
    )


def sentences_of_papers(
    tables: Mapping[str, Mapping[str, MeasuredTable]], runs: Mapping[Run, RunRecord]
) -> Iterator[str]:
    """Yields a sentence about the columns of the papers' tables, at scale mini and in linear attention.

    Args:
        tables: {name of a table: {scale: measured table}}.
        runs: {run: record} of the recorded runs.
    """
    compared = 0
    different = []
    for name, scales in tables.items():
        # Figures have columns of tables, and fewer rows.
        if "mini" not in scales or not scales["mini"].table.source or "_figure" in name:
            continue
        for column_name in scales["mini"].table.columns:
            column = MeasuredColumn(scales["mini"].table, column_name, "linear", runs)
            types = _types_of_lrpe(column)
            if not types or "RoPE" not in column.rows or not column.has_intervals:
                continue
            compared += len(types)
            for row in types:
                if column.is_different(row, "RoPE"):
                    place = f"[{name}](results/{name}.md), {heading(column_name)}"
                    words = "better" if column.is_better(row, "RoPE") else "worse"
                    different.append(f"{words}: {row} ({place}: {column.difference(row, 'RoPE')})")
    if compared:
        listed = f" ({'; '.join(different)})" if different else ""
        yield (
            f"In the small versions of the papers' tables with linear attention and three seeds, "
            f"{len(different)} of {compared} numbers of LRPE can be told apart from RoPE's{listed}."
        )


def _types_of_lrpe(column):
    return [row for row, method in column.rows.items() if METHODS[method].encoding == "lrpe"]


def _count_better(column, rows):
    return sum(column.is_better(row, "RoPE") for row in rows)
