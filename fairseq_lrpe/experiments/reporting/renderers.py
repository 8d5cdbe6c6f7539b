"""Prints sections of a report as Markdown, LaTeX, CSV, or tables on a terminal.

A section is a line of text, or a title and a DataFrame of strings.
"""

import math
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

TEXT_COLUMNS = ("attention", "method", "changes", "state", "setting", "evaluation", "metric")
"""Columns that are aligned to the left; the others hold numbers."""


class Section(NamedTuple):
    """A table with its title, which may be empty; the columns' names are the headings."""

    title: str
    frame: pd.DataFrame

    def lines(self) -> list[tuple[tuple[str, ...], bool]]:
        """Returns the rows, and for each whether its first cell differs from that of the row before."""
        rows = list(self.frame.itertuples(index=False, name=None))
        return [(row, i > 0 and row[0] != rows[i - 1][0]) for i, row in enumerate(rows)]


class Bold(str):
    """A cell that is printed in bold."""

    __slots__ = ()


def format_number(mean: float, std: float | None, digits: int) -> str:
    """Formats a mean with its standard deviation, such as "95.00 ± 3.00"."""
    if not math.isfinite(mean):
        return "diverged"
    has_std = std is not None and not math.isnan(std)
    return f"{mean:,.{digits}f} ± {std:,.{digits}f}" if has_std else f"{mean:,.{digits}f}"


def show_rich(sections: Iterable[str | Section]) -> None:
    """Prints tables for a terminal."""
    console = Console()
    for section in sections:
        if isinstance(section, str):
            console.print(section, markup=False, highlight=False)
            continue
        table = Table(title=section.title or None, title_justify="left")
        for name in section.frame.columns:
            table.add_column(name, justify="left" if name in TEXT_COLUMNS else "right")
        for row, is_new_group in section.lines():
            if is_new_group:
                table.add_section()
            table.add_row(*(Text(cell, "bold" if isinstance(cell, Bold) else "") for cell in row))
        console.print(table)


def show_markdown(sections: Iterable[str | Section]) -> None:
    """Prints Markdown."""

    def escape(cell):
        text = cell.replace("|", r"\|")
        return f"**{text}**" if isinstance(cell, Bold) else text

    for section in sections:
        if isinstance(section, str):
            print(section + "  ")  # two spaces are a line break
            continue
        header = list(section.frame.columns)
        print(f"\n{section.title}\n" if section.title else "")
        print(f"| {' | '.join(map(escape, header))} |")
        print(f"|{'|'.join(':--' if name in TEXT_COLUMNS else '--:' for name in header)}|")
        for row, _ in section.lines():
            print(f"| {' | '.join(map(escape, row))} |")
        print()


LATEX = {character: f"\\{character}" for character in "&%_#${}"}
LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {"±": r"$\pm$", "×": r"$\times$", "ρ": r"$\rho$", "Λ": r"$\Lambda$", "<": "$<$", ">": "$>$"}


def show_latex(sections: Iterable[str | Section]) -> None:
    """Prints LaTeX; text is printed as comments."""

    def escape(cell):
        text = "".join(LATEX.get(character, character) for character in cell)
        return rf"\textbf{{{text}}}" if isinstance(cell, Bold) else text

    for section in sections:
        if isinstance(section, str):
            print(f"% {section}")
            continue
        header = list(section.frame.columns)
        if section.title:
            print(f"% {section.title}")
        print(rf"\begin{{tabular}}{{{''.join('l' if name in TEXT_COLUMNS else 'r' for name in header)}}}")
        print(r"\hline")
        print(" & ".join(map(escape, header)) + " \\\\\n\\hline")
        for row, is_new_group in section.lines():
            if is_new_group:
                print(r"\hline")
            print(" & ".join(map(escape, row)) + r" \\")
        print(r"\hline")
        print(r"\end{tabular}")


FORMS: dict[str, Callable] = {"markdown": show_markdown, "latex": show_latex}
"""Besides CSV, and tables on a terminal."""


def show(sections: Iterable[str | Section], form: str | None) -> None:
    """Prints the sections in a form; the default is tables on a terminal, and Markdown elsewhere."""
    (FORMS[form] if form else show_rich if sys.stdout.isatty() else show_markdown)(sections)


def show_csv(frame: pd.DataFrame, count: str) -> None:
    """Prints a DataFrame as CSV, with up to 10 significant digits.

    ``count`` is the column with the number of measurements: a mean of none is empty, a diverged one nan.
    """
    means = frame["mean"].map("{:.10g}".format).where(frame[count] > 0, "")
    frame.assign(mean=means).to_csv(sys.stdout, index=False, float_format="%.10g", lineterminator="\n")
