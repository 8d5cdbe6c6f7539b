"""Prints lines of text and tables of strings as Markdown, LaTeX, CSV, or tables on a terminal.

In this module, ``sections`` contain a string for each line of text, and a :class:`Section` for each table.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import jinja2
import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

TEXT_COLUMNS = ("attention", "method", "changes", "state", "setting", "evaluation", "metric")
TEXT_COLUMNS += ("table", "title")
"""Columns that are aligned to the left; all others contain numbers."""


class Section(NamedTuple):
    """A table of strings with a title, which may be empty; the names of the columns are the headings."""

    title: str
    frame: pd.DataFrame

    def lines(self) -> list[tuple[tuple[str, ...], bool]]:
        """Returns (row, is_new_group) of each row; a new group starts where the first cell changes."""
        rows = list(self.frame.itertuples(index=False, name=None))
        return [(row, i > 0 and row[0] != rows[i - 1][0]) for i, row in enumerate(rows)]


class Bold(str):
    """The text of a cell that is printed in bold."""

    __slots__ = ()


def html_environment() -> jinja2.Environment:
    """Returns the environment of the templates in this folder, which escapes HTML."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def format_number(mean: float, std: float | None, digits: int) -> str:
    """Returns a mean with its standard deviation as text, such as "95.00 ± 3.00", or "diverged"."""
    if not math.isfinite(mean):
        return "diverged"
    has_std = std is not None and not math.isnan(std)
    return f"{mean:,.{digits}f} ± {std:,.{digits}f}" if has_std else f"{mean:,.{digits}f}"


def show_rich(sections: Iterable[str | Section]) -> None:
    """Prints sections on a terminal."""
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


def markdown(sections: Iterable[str | Section]) -> Iterator[str]:
    """Yields the lines of sections as Markdown."""

    def escape(cell):
        text = cell.replace("|", r"\|")
        return f"**{text}**" if isinstance(cell, Bold) else text

    for section in sections:
        if isinstance(section, str):
            yield section + "  "  # two spaces at the end are a line break in Markdown
            continue
        header = list(section.frame.columns)
        yield f"\n{section.title}\n" if section.title else ""
        yield f"| {' | '.join(map(escape, header))} |"
        yield f"|{'|'.join(':--' if name in TEXT_COLUMNS else '--:' for name in header)}|"
        for row, _ in section.lines():
            yield f"| {' | '.join(map(escape, row))} |"
        yield ""


def show_markdown(sections: Iterable[str | Section]) -> None:
    """Prints sections as Markdown."""
    for line in markdown(sections):
        print(line)


LATEX = {character: f"\\{character}" for character in "&%_#${}"}
LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {"±": r"$\pm$", "×": r"$\times$", "ρ": r"$\rho$", "Λ": r"$\Lambda$", "<": "$<$", ">": "$>$"}


def show_latex(sections: Iterable[str | Section]) -> None:
    """Prints sections as LaTeX, in which lines of text are comments."""

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


FORMATS: dict[str, Callable] = {"markdown": show_markdown, "latex": show_latex}
"""{name of a format: function that prints sections in this format}, except CSV and text on a terminal."""


def show(sections: Iterable[str | Section], format: str | None) -> None:
    """Prints sections in one of ``FORMATS``; the default is text on a terminal, and Markdown otherwise."""
    (FORMATS[format] if format else show_rich if sys.stdout.isatty() else show_markdown)(sections)


def show_csv(frame: pd.DataFrame, count: str) -> None:
    """Prints a DataFrame as CSV, with up to 10 significant digits.

    ``count`` is the column with the number of measurements. Without measurements, the mean is empty. The mean
    of a diverged run is printed as nan or inf.
    """
    means = frame["mean"].map("{:.10g}".format).where(frame[count] > 0, "")
    frame.assign(mean=means).to_csv(sys.stdout, index=False, float_format="%.10g", lineterminator="\n")
