"""Shows a table, or all runs of an experiment: ``python -m fairseq_lrpe.experiments.results``.

Published numbers come from configs/paper and are labelled as the paper's; every other one comes from the
logs and evaluations of the runs below the results folder, finished or not.
"""

import csv
import sys
from pathlib import Path

from fairseq_lrpe.experiments import columns, curves, entries, formats, listing
from fairseq_lrpe.experiments.entries import Entry, decimals, ranks
from fairseq_lrpe.experiments.formats import Bold, number, plain
from fairseq_lrpe.experiments.table import SCALES, Table
from fairseq_lrpe.experiments.train import new_parser, parse
from fairseq_lrpe.programs import absolute, one_sentence, picture


def as_printed(mean: float, deviation: float | None) -> str:
    """Returns a published number with two decimals, or as many as it has."""
    given = [x for x in (mean, deviation) if x is not None]
    digits = next((n for n in (2, 3) if all(round(x, n) == x for x in given)), 4)
    return number(mean, deviation, digits)


def heading(table: Table, found: list[Entry]) -> list[str]:
    """Returns what the numbers are and what they were measured on."""
    measured, metrics, signatures = {}, {}, {}
    for entry in found:
        cell = entry.cell
        for run in filter(None, entry.records.values()):
            length, unit = run.length
            measured.setdefault((cell.experiment, unit), set()).add(length)
            if how := run.values.get(cell.evaluation, {}).get(f"{cell.metric}_signature"):
                signatures[f"{cell.column}: {cell.metric}, signature {how}"] = None
        if cell.metric:
            metric = f"{cell.metric.replace('_', ' ')} ({cell.better} is better)"
            metrics.setdefault(metric, {})[titled(cell.column)] = None
    names = [f"{name} ({' or '.join(map(str, sorted(n)))} {unit})" for (name, unit), n in measured.items()]
    stand_in = ", a small stand-in: compare orders, not values" if table.scale == "mini" else ""
    told = [f"{metric} of {', '.join(columns)}" for metric, columns in metrics.items()]
    paper = [x for x in (table.source, table.settings.table) if x]
    return [
        table.settings.title,
        *([f"paper: {', '.join(paper)}"] if paper else []),
        f"measured on {', '.join(names)}{stand_in}",
        f"{'; '.join(told if len(metrics) > 1 else metrics)}: mean ± sample standard deviation (seeds)"
        + (", the worst of three or more seeds left out" if table.settings.drop_worst else ""),
        "bold: the best of a column among the rows of its attention",
        *signatures,
    ]


def titled(column: str) -> str:
    """Returns a column's name as a heading."""
    return column.replace("_", " ")


def lengths_apart(found: list[Entry]) -> dict[tuple[str, str], str]:
    """Returns {(attention, row): its lengths} of the rows that were trained for another length."""
    rows = {}
    for entry in (entry for entry in found if entry.apart):
        rows.setdefault(entry.key, {}).update(dict.fromkeys(entry.lengths()))
    return {key: entries.told(tuple(lengths)) for key, lengths in rows.items()}


def grid(found, cells, value, labels):
    """(header, lines): a line for each row, for each of its columns the cells that ``value(entry)`` gives."""
    columns = list(dict.fromkeys(entry.cell.column for entry in found))
    names = [f"{titled(column)} ({cell})" if cell else titled(column) for column in columns for cell in cells]
    rows = {}
    for entry in found:
        rows.setdefault(entry.key, {})[entry.cell.column] = value(entry)
    blank = ["-"] * len(cells)
    return ["attention", "method", *names], [
        [
            *(key[0], f"{key[1]}, {labels[key]}" if key in labels else key[1]),
            *(cell for column in columns for cell in row.get(column, blank)),
        ]
        for key, row in rows.items()
    ]


def values_grid(found, ours, labels):
    numbers, (their_best, our_best) = any(entry.cell.published for entry in found), entries.best(found)

    def value(entry):
        measured, published = entry.measured(), entry.cell.published
        group = entry.cell.attention, entry.cell.column
        text, theirs = entry.state(), as_printed(*published) if published else "-"
        if measured is not None:
            text = f"{number(*measured[:2], decimals(entry.cell))} ({text})"
            text = Bold(text) if entry.counts() and measured[0] == our_best.get(group) else text
        theirs = Bold(theirs) if published and published[0] == their_best.get(group) else theirs
        return [theirs, text] if numbers else [text]

    return grid(found, ("paper", ours) if numbers else ("",), value, labels)


def ranks_grid(found, ours):
    order = ranks(found)

    def value(entry):
        pair = order.get((entry.cell.attention, entry.cell.column), ({}, None))[0].get(entry.cell.row)
        return [f"{rank:g}" for rank in pair] if pair else ["-", "-"]

    ranked = [e for e in found if e.comparable() and (e.cell.attention, e.cell.column) in order]
    header, rows = grid(ranked, ("paper", ours), value, {})
    columns, lines = list(dict.fromkeys(entry.cell.column for entry in ranked)), []
    for attention in dict.fromkeys(row[0] for row in rows):
        rhos = [order.get((attention, column), ({}, None))[1] for column in columns]
        last = [x for rho in rhos for x in ("", "needs 3 methods" if rho is None else f"{rho:.2f}")]
        lines += [row for row in rows if row[0] == attention] + [[attention, "Spearman ρ", *last]]
    return header, lines


def differences_grid(found, labels):
    def value(entry):
        mean, interval, n = entry.difference() or (None, None, 0)
        if mean is None:
            return ["-"]
        form = f"+.{decimals(entry.cell)}f"
        if interval is None:
            return [f"{mean:{form}} (1 seed: no interval)"]
        return [f"{mean:{form}} [{interval[0]:{form}}, {interval[1]:{form}}] ({n})"]

    return grid([entry for entry in found if entry.difference()], ("",), value, labels)


def blocks(table: Table, found: list[Entry]):
    """Yields what is printed, in order: the parts that ``formats`` knows."""
    yield from heading(table, found)
    ours, labels = "mini" if table.scale == "mini" else "measured", lengths_apart(found)
    yield "", *values_grid(found, ours, labels)
    if labels:
        rows = "; ".join(f"{attention} {row} ({told})" for (attention, row), told in labels.items())
        yield f"Trained for another length than the others, and so left out of what compares rows: {rows}."
    if ranks(found):
        yield "Ranks among the methods that both have, 1 is best", *ranks_grid(found, ours)
    elif any(entry.cell.published for entry in found):
        yield "Ranks need two methods of an attention that are finished."
    elif table.source:
        yield "The paper gives no numbers here to rank by."
    base = table.settings.baseline
    if any(entry.difference() for entry in found):
        yield (
            f"Measured difference to {base} of the same attention, seed by seed: mean "
            "[95% confidence interval, Student t] (common seeds)",
            *differences_grid(found, labels),
        )
    elif base:
        yield f"Differences to {base} need a seed that both {base} and another method have finished."


CSV = "attention row column measured_on metric length unit paper paper_std mean std state seeds".split()
CSV += "paper_rank rank difference low high common_seeds".split()


def show_csv(found):
    """Prints a line for each row and column, with all that the other formats show in several tables."""
    order = ranks(found)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(CSV)
    for entry in found:
        cell = entry.cell
        rank = order.get((cell.attention, cell.column), ({}, None))[0].get(cell.row, ("", ""))
        mean, interval, n = entry.difference() or ("", None, "")
        [length] = entry.lengths() if len(entry.lengths()) == 1 else [("", "")]
        line = [*entry.key, cell.column, cell.experiment, cell.metric, *length, *(cell.published or ("", ""))]
        line += [*(entry.measured() or ("", ""))[:2], entry.state(), len(entry.values()), *rank]
        writer.writerow(map(plain, [*line, mean, *(interval or ("", "")), n]))


def show(table: Table, found: list[Entry], form: str | None = None) -> None:
    """Prints the table: as a table on a terminal, else as Markdown, or in another form."""
    if form == "csv":
        return show_csv(found)
    formats.show(blocks(table, found), form)


def plot(title: str, found: list[Entry], path: Path) -> None:
    """Draws the validations over the updates and says so."""
    curves.draw(title, found, path)
    print(f"{path} shows the validations over the updates.", file=sys.stderr)


def plot_table(table: Table, found: list[Entry], path: Path) -> None:
    """Draws a table's validations; its title is the picture's where all that it speaks of was run."""
    drawn = {experiment for experiment, _, _ in curves.curves(found)}
    planned = {entry.cell.experiment for entry in found if entry.cell.kind and entry.cell.kind.curve}
    plot(table.settings.title if table.scale == "full" and drawn == planned else named(table), found, path)


def named(table: Table) -> str:
    """Returns what a picture of a table says that is not at the paper's size, or not all of it."""
    return f"the table {table.name}" + ", small form" * (table.scale == "mini")


def main(arguments=None):
    usage = "RESULTS (--table TABLE | --experiment EXPERIMENT) [options] [KEY=VALUE ...]"
    parser = new_parser("python -m fairseq_lrpe.experiments.results", __doc__, usage)
    parser.add_argument("results", type=absolute, help="the folder that the runs were written to")
    shown = parser.add_mutually_exclusive_group(required=True)
    shown.add_argument("--table", help="a file's name in configs/tables")
    shown.add_argument("--experiment", help="such as lm/mini: every run of it that is there")
    parser.add_argument("--scale", choices=SCALES, help="of a table: full (default), or mini, a stand-in")
    forms = (*formats.FORMS, "csv")
    parser.add_argument("--format", choices=forms, help="default: a table on a terminal, else Markdown")
    parser.add_argument("--plot", type=picture, metavar="FILE.png", help="the validations over the updates")
    told = "what a table's columns measured, a line for each row"
    parser.add_argument("--plot-columns", type=picture, metavar="FILE.png", help=told)
    args, overrides = parse(parser, arguments)
    with one_sentence("results"):
        if args.experiment:
            if args.scale or args.plot_columns or overrides:
                given = "--scale" if args.scale else overrides[0] if overrides else "--plot-columns"
                raise ValueError(f"--experiment shows every run of {args.experiment}: leave {given} out")
            rows = listing.read(args.experiment, args.results)
            listing.show(args.experiment, rows, args.format)
            if args.plot:
                plot(args.experiment, listing.to_draw(rows), args.plot)
            return
        table = Table(args.table, args.scale or "full", overrides)
        found = entries.read(table, args.results)
        show(table, found, args.format)
        if args.plot:
            plot_table(table, found, args.plot)
        if args.plot_columns:
            columns.draw(named(table), found, args.plot_columns)
            print(f"{args.plot_columns} shows what the columns measured.", file=sys.stderr)


if __name__ == "__main__":
    main()
