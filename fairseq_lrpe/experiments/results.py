"""Shows a table beside the paper's: ``python -m fairseq_lrpe.experiments.results``.

Published numbers come from configs/paper and are labelled as the paper's; every other one comes from the
logs and evaluations of the runs below the results folder, finished or not.
"""

import csv
import math
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from fairseq_lrpe.experiments import curves, entries
from fairseq_lrpe.experiments.entries import Entry, decimals, ranks
from fairseq_lrpe.experiments.table import SCALES, Table
from fairseq_lrpe.experiments.train import new_parser, parse
from fairseq_lrpe.programs import absolute, one_sentence


def number(mean: float, deviation: float | None) -> str:
    """Returns a mean and its deviation as people read them."""
    if not math.isfinite(mean):
        return "diverged"
    digits = decimals(mean)
    return f"{mean:,.{digits}f}" if deviation is None else f"{mean:,.{digits}f} ± {deviation:,.{digits}f}"


def heading(table: Table, found: list[Entry]) -> list[str]:
    """Returns what the numbers are and what they were measured on."""
    measured, metrics, signatures = {}, {}, {}
    for entry in found:
        cell = entry.cell
        for run in filter(None, entry.records.values()):
            number, unit = run.length
            measured.setdefault((cell.experiment.name, unit), set()).add(number)
            if how := run.values.get(cell.evaluation, {}).get(f"{cell.metric}_signature"):
                signatures[f"{cell.column}: {cell.metric}, signature {how}"] = None
        if cell.metric:
            metrics.setdefault(cell.metric, {})[cell.column] = None
    names = [f"{name} ({' or '.join(map(str, sorted(n)))} {unit})" for (name, unit), n in measured.items()]
    stand_in = ", a small stand-in: compare orders, not values" if table.scale == "mini" else ""
    told = [f"{metric} of {', '.join(columns)}" for metric, columns in metrics.items()]
    return [
        table.settings.title,
        *([f"paper: {table.source}, {table.settings.table}"] if table.source else []),
        f"measured on {', '.join(names)}{stand_in}",
        f"{'; '.join(told if len(metrics) > 1 else metrics)}: mean ± sample standard deviation (seeds)"
        + (", the worst of three or more seeds left out" if table.settings.drop_worst else ""),
        *signatures,
    ]


def grid(found, cells, value):
    """(header, lines): a line for each row, for each of its columns the cells that ``value(entry)`` gives."""
    columns = list(dict.fromkeys(entry.cell.column for entry in found))
    header = ["attention", "row", *(f"{column} {cell}".strip() for column in columns for cell in cells)]
    rows = {}
    for entry in found:
        rows.setdefault(entry.key, {})[entry.cell.column] = value(entry)
    blank = ["-"] * len(cells)
    return header, [
        [*key, *(cell for column in columns for cell in row.get(column, blank))] for key, row in rows.items()
    ]


def values_grid(found, ours):
    numbers = any(entry.cell.published for entry in found)

    def value(entry):
        measured = entry.measured()
        text = entry.state() if measured is None else f"{number(*measured[:2])} ({entry.state()})"
        published = entry.cell.published
        return [*([number(*published) if published else "-"] if numbers else []), text]

    return grid(found, ("paper", ours) if numbers else (ours,), value)


def ranks_grid(found, ours):
    order = ranks(found)

    def value(entry):
        pair = order.get((entry.cell.attention, entry.cell.column), ({}, None))[0].get(entry.cell.row)
        return [f"{rank:g}" for rank in pair] if pair else ["-", "-"]

    found = [entry for entry in found if entry.comparable()]
    header, rows = grid(found, ("paper", ours), value)
    columns, lines = list(dict.fromkeys(entry.cell.column for entry in found)), []
    for attention in dict.fromkeys(row[0] for row in rows):
        rhos = [order.get((attention, column), ({}, None))[1] for column in columns]
        last = [x for rho in rhos for x in ("", "needs 3 methods" if rho is None else f"{rho:.2f}")]
        lines += [row for row in rows if row[0] == attention] + [[attention, "Spearman ρ", *last]]
    return header, lines


def differences_grid(found):
    def value(entry):
        mean, interval, n = entry.difference() or (None, None, 0)
        if mean is None:
            return ["-"]
        form = f"+.{decimals(entry.measured()[0])}f"
        if interval is None:
            return [f"{mean:{form}} (1 seed: no interval)"]
        return [f"{mean:{form}} [{interval[0]:{form}}, {interval[1]:{form}}] ({n})"]

    return grid([entry for entry in found if entry.difference()], ("",), value)


def blocks(table: Table, found: list[Entry]):
    """Yields what is printed, in order: lines of text, and (title, header, rows) for a table."""
    yield from heading(table, found)
    ours = "mini" if table.scale == "mini" else "measured"
    yield "", *values_grid(found, ours)
    if any(entry.comparable() for entry in found):
        yield "Ranks among the methods that both have, 1 is best", *ranks_grid(found, ours)
    elif any(entry.cell.published for entry in found):
        yield "Ranks need a finished run."
    elif table.source:
        yield "The paper gives no numbers here to rank by."
    base = table.settings.baseline
    if any(entry.difference() for entry in found):
        yield (
            f"Measured difference to {base} of the same attention, seed by seed: mean "
            "[95% confidence interval, Student t] (common seeds)",
            *differences_grid(found),
        )
    elif base:
        yield f"Differences to {base} need a seed that both {base} and another method have finished."


def show_rich(parts):
    console = Console()
    for part in parts:
        if isinstance(part, str):
            console.print(part, markup=False, highlight=False)
            continue
        title, header, rows = part
        table = RichTable(title=title or None, title_justify="left")
        for name in header:
            table.add_column(name, justify="left" if name in ("attention", "row") else "right")
        for row, following in zip(rows, [*rows[1:], None], strict=True):
            table.add_row(*row, end_section=following is not None and following[0] != row[0])
        console.print(table)


def show_markdown(parts):
    for part in parts:
        if isinstance(part, str):
            print(part + "  ")  # two spaces keep the line's end
            continue
        title, header, rows = part
        print(f"\n{title}\n" if title else "")
        print(f"| {' | '.join(header)} |")
        print(f"|{'|'.join([':--', ':--', *['--:'] * (len(header) - 2)])}|")
        for row in rows:
            print(f"| {' | '.join(row)} |")
        print()


LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "±": r"$\pm$", "×": r"$\times$", "ρ": r"$\rho$"}


def show_latex(parts):
    def escape(text):
        return "".join(LATEX.get(character, character) for character in text)

    for part in parts:
        if isinstance(part, str):
            print(f"% {part}")
            continue
        title, header, rows = part
        if title:
            print(f"% {title}")
        print(rf"\begin{{tabular}}{{ll{'r' * (len(header) - 2)}}}")
        print(r"\hline")
        for row, before in zip([header, *rows], [None, header, *rows], strict=False):
            if before is header or (before and before[0] != row[0]):
                print(r"\hline")
            print(" & ".join(map(escape, row)) + r" \\")
        print(r"\hline")
        print(r"\end{tabular}")


CSV = "attention row column measured_on paper paper_std mean std state seeds paper_rank rank".split()
CSV += "difference low high common_seeds".split()


def show_csv(found):
    """Prints a line for each row and column, with all that the other formats show in several tables."""
    order = ranks(found)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(CSV)
    for entry in found:
        cell = entry.cell
        rank = order.get((cell.attention, cell.column), ({}, None))[0].get(cell.row, ("", ""))
        mean, interval, n = entry.difference() or ("", None, "")
        name = cell.experiment.name if cell.experiment else ""
        line = [*entry.key, cell.column, name, *(cell.published or ("", ""))]
        line += [*(entry.measured() or ("", ""))[:2], entry.state(), len(entry.values()), *rank]
        writer.writerow([*line, mean, *(interval or ("", "")), n])


def show(table: Table, found: list[Entry], form: str | None = None) -> None:
    """Prints the table: as a table on a terminal, else as Markdown, or in another form."""
    if form == "csv":
        return show_csv(found)
    showing = {"markdown": show_markdown, "latex": show_latex, None: show_rich}
    showing[form or (None if sys.stdout.isatty() else "markdown")](blocks(table, found))


def plot(table: Table, found: list[Entry], path: Path) -> None:
    """Draws the validations over the updates and says so."""
    curves.draw(table.settings.title, found, path)
    print(f"{path} shows the validations over the updates.", file=sys.stderr)


def main(arguments=None):
    usage = "RESULTS --table TABLE [options] [KEY=VALUE ...]"
    parser = new_parser("python -m fairseq_lrpe.experiments.results", __doc__, usage)
    parser.add_argument("results", type=absolute, help="the folder that the runs were written to")
    parser.add_argument("--table", required=True, help="a file's name in configs/tables")
    parser.add_argument("--scale", choices=SCALES, default="full", help="mini: the table's small stand-in")
    forms = "markdown", "csv", "latex"
    parser.add_argument("--format", choices=forms, help="default: a table on a terminal, else Markdown")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="the validations over the updates")
    args, overrides = parse(parser, arguments)
    with one_sentence("results"):
        table = Table(args.table, args.scale, overrides)
        found = entries.read(table, args.results)
        show(table, found, args.format)
        if args.plot:
            plot(table, found, args.plot)


if __name__ == "__main__":
    main()
