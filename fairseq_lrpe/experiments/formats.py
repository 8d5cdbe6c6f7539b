"""What the results command prints, in each of its forms.

It is made of parts: lines of text, and (title, header, rows) for a table, whose first columns are text and
whose others are numbers.
"""

import math
import sys
from collections.abc import Callable, Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

Part = str | tuple[str, list[str], list[list[str]]]
TEXTS = ("attention", "method", "changes", "state")
"""The columns that stand at the left."""


class Bold(str):
    """A cell that stands out from its column."""

    __slots__ = ()


def number(mean: float, deviation: float | None, digits: int) -> str:
    """Returns a mean and its deviation as people read them."""
    if not math.isfinite(mean):
        return "diverged"
    return f"{mean:,.{digits}f}" if deviation is None else f"{mean:,.{digits}f} ± {deviation:,.{digits}f}"


def plain(value: object) -> object:
    """Returns a number as CSV has it: ten digits, without what binary arithmetic leaves after them."""
    return f"{value:.10g}" if isinstance(value, float) else value


def show_rich(parts: Iterable[Part]) -> None:
    console = Console()
    for part in parts:
        if isinstance(part, str):
            console.print(part, markup=False, highlight=False)
            continue
        title, header, rows = part
        table = Table(title=title or None, title_justify="left")
        for name in header:
            table.add_column(name, justify="left" if name in TEXTS else "right")
        for row, following in zip(rows, [*rows[1:], None], strict=True):
            cells = (Text(cell, "bold" if isinstance(cell, Bold) else "") for cell in row)
            table.add_row(*cells, end_section=following is not None and following[0] != row[0])
        console.print(table)


def show_markdown(parts: Iterable[Part]) -> None:
    def escape(cell):
        text = cell.replace("|", r"\|")
        return f"**{text}**" if isinstance(cell, Bold) else text

    for part in parts:
        if isinstance(part, str):
            print(part + "  ")  # two spaces keep the line's end
            continue
        title, header, rows = part
        print(f"\n{title}\n" if title else "")
        print(f"| {' | '.join(map(escape, header))} |")
        print(f"|{'|'.join(':--' if name in TEXTS else '--:' for name in header)}|")
        for row in rows:
            print(f"| {' | '.join(map(escape, row))} |")
        print()


LATEX = {character: f"\\{character}" for character in "&%_#${}"}
LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {"±": r"$\pm$", "×": r"$\times$", "ρ": r"$\rho$", "Λ": r"$\Lambda$", "<": "$<$", ">": "$>$"}


def show_latex(parts: Iterable[Part]) -> None:
    def escape(cell):
        text = "".join(LATEX.get(character, character) for character in cell)
        return rf"\textbf{{{text}}}" if isinstance(cell, Bold) else text

    for part in parts:
        if isinstance(part, str):
            print(f"% {part}")
            continue
        title, header, rows = part
        if title:
            print(f"% {title}")
        print(rf"\begin{{tabular}}{{{''.join('l' if name in TEXTS else 'r' for name in header)}}}")
        print(r"\hline")
        for row, before in zip([header, *rows], [None, header, *rows], strict=False):
            if before is header or (before and before[0] != row[0]):
                print(r"\hline")
            print(" & ".join(map(escape, row)) + r" \\")
        print(r"\hline")
        print(r"\end{tabular}")


FORMS: dict[str, Callable] = {"markdown": show_markdown, "latex": show_latex}
"""Beside the table on a terminal, and CSV, which has rows of its own."""


def show(parts: Iterable[Part], form: str | None) -> None:
    """Prints the parts in a form; by default as tables on a terminal, else as Markdown."""
    (FORMS[form] if form else show_rich if sys.stdout.isatty() else show_markdown)(parts)
