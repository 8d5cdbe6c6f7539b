"""Measurement of time and memory, command-line options, and tables for all benchmarks."""

import logging
import math
import statistics
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import torch
from torch.utils.benchmark import timer

from fairseq_lrpe.methods import ATTENTIONS, METHODS
from fairseq_lrpe.utils.cli import exit_on_error, min_int, print_wide
from fairseq_lrpe.utils.gpus import check_architectures

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "terminated abruptly")
"""Parts of the error messages of a GPU or CPU without memory, and of a killed process."""


class BenchmarkParser(ArgumentParser):
    """Parser of the options of ``lrpe bench NAME``, with methods that add options of several benchmarks."""

    def __init__(self, name: str, description: str):
        super().__init__(prog=f"lrpe bench {name}", description=description)

    def add_int(self, flag: str, default: int | list[int] | None, help: str, minimum: int = 1) -> None:
        """Adds an integer option, or one with several integers if the default is a list."""
        nargs = "+" if isinstance(default, list) else None
        help += "" if default is None else " (default: %(default)s)"
        self.add_argument(flag, type=min_int(minimum), default=default, nargs=nargs, help=help)

    def add_sizes(self, rounds: int, layers: int | None = None, vocab_size: int | None = None) -> None:
        """Adds --rounds, --layers and --vocab-size; None as a default is described as the papers' size."""
        papers = " (default: as in the papers)"
        self.add_int("--rounds", rounds, "number of measured rounds")
        self.add_int("--layers", layers, "number of layers" + ("" if layers else papers))
        self.add_int(
            "--vocab-size", vocab_size, "vocabulary size" + ("" if vocab_size else papers), minimum=5
        )

    def add_methods(self, default: str, names: Iterable[str] = METHODS) -> None:
        """Adds --attention and --methods.

        Args:
            default: Description of the default methods.
            names: Names of the methods that can be selected.
        """
        add = self.add_argument
        add("--attention", choices=ATTENTIONS, help="measure only this attention (default: both)")
        help = f"methods to measure (default: {default})"
        add("--methods", nargs="+", choices=list(names), metavar="METHOD", help=help)

    def methods_by_attention(self, args: Namespace, default: Iterable[str]) -> dict[str, list[str]]:
        """Returns {attention: methods} selected by --attention and --methods; ``default`` without --methods.

        Exits with an error if a requested method does not support the requested attention.
        """
        supported = {name: method.attentions() for name, method in METHODS.items()} | {"fairseq": ATTENTIONS}
        for name in args.methods or ():
            if args.attention and args.attention not in supported[name]:
                self.error(f"{name} only works with {', '.join(supported[name])} attention")
        attentions = [args.attention] if args.attention else ATTENTIONS
        names = args.methods or default
        return {attention: [n for n in names if attention in supported[n]] for attention in attentions}


@contextmanager
def measuring(program: str) -> Iterator[None]:
    """Context in which logs are silenced, and invalid input, lack of memory and Ctrl-C exit with one line."""
    warnings.filterwarnings("ignore", category=UserWarning)  # fairseq uses a deprecated interface of hydra
    logging.disable(logging.INFO)
    torch.set_flush_denormal(True)  # as in training
    with exit_on_error(program):
        check_architectures()
        try:
            yield
        except RuntimeError as error:
            if not any(message in str(error) for message in OUT_OF_MEMORY):
                raise
            raise ValueError("out of memory: try smaller sizes") from None


def seconds(function: Callable[[], object]) -> float:
    """Returns the duration of a call in seconds; on a GPU, it includes all work that the call queues."""
    start = timer()
    function()
    return timer() - start


def interleave(
    steps: dict[str, Callable[[], object]], rounds: Iterable, warm_up: int = 1
) -> dict[str, list[float]]:
    """Measures each step once per round.

    Args:
        steps: {name: function}; each round begins with the next step.
        rounds: An iterable that ends when enough rounds have been measured.
        warm_up: Number of rounds at the beginning that are discarded.

    Returns:
        {name: seconds in each round}.
    """
    times = {name: [] for name in steps}
    for number, _ in enumerate(rounds):
        first = number % len(steps)
        for name in [*steps][first:] + [*steps][:first]:
            times[name].append(seconds(steps[name]))
    return {name: taken[warm_up:] for name, taken in times.items()}


def in_new_process(function: Callable, *arguments: object) -> object:
    """Calls a function in a new Python process, so that earlier work does not affect its memory."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def resident_memory(field: str) -> int:
    """Returns the current ("VmRSS") or peak ("VmHWM") resident memory of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(field)))


def ratios(pairs: Iterable[tuple[float, float]]) -> tuple[float, str]:
    """Returns the median of b / a, and the range of b / a as text, for pairs (a, b) of times in a round."""
    values = [b / a for a, b in pairs]
    return statistics.median(values), f"{min(values):.2f}-{max(values):.2f}"


@dataclass
class Table:
    """A table with a title and a caption, whose rows {name of the column: value} have the same columns."""

    title: str = ""
    caption: str = ""
    rows: list[dict] = field(default_factory=list)

    def cells(self) -> tuple[dict[str, str], list[list[str]]]:
        """Returns {column: "left" or "right"} for columns with values, and the rows of formatted cells."""
        names = [name for name in self.rows[0] if any(row[name] is not None for row in self.rows)]
        sides = {
            name: "left" if any(isinstance(row[name], str) for row in self.rows) else "right"
            for name in names
        }
        return sides, [[format_cell(row[name]) for name in names] for row in self.rows]

    def markdown(self) -> str:
        """Returns the title, the table and the caption in Markdown."""
        sides, rows = self.cells()
        lines = [sides, [":--" if side == "left" else "--:" for side in sides.values()], *rows]
        table = "\n".join("| " + " | ".join(x.replace("|", r"\|") for x in line) + " |" for line in lines)
        return "\n\n".join(text for text in (self.title and f"**{self.title}**", table, self.caption) if text)

    def print(self) -> None:
        """Prints the table."""
        from rich.table import Column, Table  # imported here because the GPU check must work without rich

        sides, rows = self.cells()
        columns = (Column(name, justify=side) for name, side in sides.items())
        lines = any("\n" in cell for row in rows for cell in row)
        table = Table(*columns, title=self.title, caption=self.caption, show_lines=lines)
        for row in rows:
            table.add_row(*row)
        print_wide(table)


def format_cell(value: object) -> str:
    """Formats a value as text.

    Integers, and floats of at least 100 rounded to integers, get thousands separators; other floats have
    three significant digits, or two below 0.01; None becomes a dash.
    """
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.01 else f"{value:.1e}"
