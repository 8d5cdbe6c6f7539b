"""Functions that print lines of text and tables as Markdown, LaTeX, CSV, or tables on a terminal.

In this module, ``sections`` are strings, each of which is a line of text, and tables (:class:`Section`).
"""

import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pandas as pd
from rich.console import Console
from rich.markdown import Markdown

from fairseq_lrpe.experiments.reporting.differences import LEAST_SEEDS

TEXT_COLUMNS = "attention method changes state setting evaluation metric table title".split()
"""Columns that are aligned to the left; all others contain numbers."""
MARKDOWN = str.maketrans({"|": r"\|"})
LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}"}
LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {"±": r"$\pm$", "×": r"$\times$", "ρ": r"$\rho$", "Λ": r"$\Lambda$", "<": "$<$", ">": "$>$"}
LATEX = str.maketrans(LATEX)


class Section(NamedTuple):
    """A table of strings with a title, which may be empty; the names of the columns are the headings."""

    title: str
    frame: pd.DataFrame

    def lines(self) -> list[tuple[tuple[str, ...], bool]]:
        """Returns (row, whether a new group starts with it) for each row; a group has the same first cell."""
        lines = []
        previous = None
        for row in self.frame.itertuples(index=False, name=None):
            lines.append((row, previous is not None and row[0] != previous[0]))
            previous = row
        return lines


class Bold(str):
    """The text of a cell that is printed in bold."""


def heading(name: str) -> str:
    return name.replace("_", " ")


def format_difference(cell: object) -> str:
    """Returns the result of ``Differences.between`` as text, such as "-1.75 [-11.28, +7.78] (3)".

    ``cell`` has the keys of the result and ``decimals``, the number of decimals, as attributes.
    """
    seeds = cell.common_seeds
    if seeds < LEAST_SEEDS:
        return f"{format_interval(cell)} ({seeds} seed{'s' if seeds > 1 else ''}: no interval)"
    return f"{format_interval(cell)} ({seeds})"


def format_interval(cell: object) -> str:
    """Returns a difference without its seeds, such as "-1.75 [-11.28, +7.78]", or "-1.75" of few seeds."""
    digits = cell.decimals
    text = f"{cell.difference:+.{digits}f}"
    if cell.common_seeds < LEAST_SEEDS:
        return text
    return f"{text} [{cell.low:+.{digits}f}, {cell.high:+.{digits}f}]"


def _alignments(header, left, right):
    """Returns the alignment of each column in ``header``; ``left`` and ``right`` are the format's words."""
    return [left if name in TEXT_COLUMNS else right for name in header]


def _escaped(cells, replacements, bold):
    """Returns the cells with escaped characters; cells in bold are inserted into the template ``bold``."""
    texts = []
    for cell in cells:
        text = cell.translate(replacements)
        texts.append(bold % text if isinstance(cell, Bold) else text)
    return texts


def markdown(sections: Iterable[str | Section]) -> Iterator[str]:
    def line(cells):
        return f"| {' | '.join(_escaped(cells, MARKDOWN, '**%s**'))} |"

    for section in sections:
        if isinstance(section, str):
            yield section + "  "  # two spaces at the end are a line break in Markdown
            continue
        header = list(section.frame.columns)
        yield f"\n{section.title}\n" if section.title else ""
        yield line(header)
        yield f"|{'|'.join(_alignments(header, ':--', '--:'))}|"
        for row, _ in section.lines():
            yield line(row)
        yield ""


def latex(sections: Iterable[str | Section]) -> Iterator[str]:
    """Yields the lines of ``sections`` in LaTeX: tables, and lines of text as comments."""

    def line(cells):
        return " & ".join(_escaped(cells, LATEX, r"\textbf{%s}")) + r" \\"

    for section in sections:
        if isinstance(section, str):
            yield f"% {section}"
            continue
        header = list(section.frame.columns)
        if section.title:
            yield f"% {section.title}"
        yield rf"\begin{{tabular}}{{{''.join(_alignments(header, 'l', 'r'))}}}"
        yield from (r"\hline", line(header), r"\hline")
        for row, is_new_group in section.lines():
            if is_new_group:
                yield r"\hline"
            yield line(row)
        yield from (r"\hline", r"\end{tabular}")


def show(sections: Iterable[str | Section], format: str | None) -> None:
    """Prints sections in a format, "markdown" or "latex"; the default is Markdown, rendered on a terminal."""
    text = "\n".join(latex(sections) if format == "latex" else markdown(sections))
    if format is None and sys.stdout.isatty():
        Console().print(Markdown(text))
    else:
        print(text)


def show_csv(frame: pd.DataFrame, count: str) -> None:
    """Prints a DataFrame as CSV, with up to 10 significant digits.

    ``count`` is the name of the column with the number of measurements; if it is 0, the mean is left empty.
    The mean of a diverged run is printed as nan or inf.
    """
    means = frame["mean"].map("{:.10g}".format).where(frame[count] > 0, "")
    frame.assign(mean=means).to_csv(sys.stdout, index=False, float_format="%.10g", lineterminator="\n")
