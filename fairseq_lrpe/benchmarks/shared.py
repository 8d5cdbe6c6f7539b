"""Timing, memory, command-line options, and tables shared by the benchmarks."""

import logging
import sys
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import torch
from torch.utils.benchmark import timer

from fairseq_lrpe.methods import ATTENTIONS, METHODS
from fairseq_lrpe.utils.cli import exit_on_error, min_int, print_wide
from fairseq_lrpe.utils.gpus import check_architectures

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "terminated abruptly")
"""Messages of errors of a GPU, of a CPU, and of a process that was killed."""


class BenchmarkParser(ArgumentParser):
    """Parses the options of ``lrpe bench NAME``, of which several benchmarks share some."""

    def __init__(self, name: str, description: str):
        super().__init__(prog=f"lrpe bench {name}", description=description)

    def add_int(self, flag: str, default: int | list[int] | None, help: str, minimum: int = 1) -> None:
        """Adds an integer option, or one with several integers if the default is a list."""
        nargs = "+" if isinstance(default, list) else None
        help += "" if default is None else " (default: %(default)s)"
        self.add_argument(flag, type=min_int(minimum), default=default, nargs=nargs, help=help)

    def add_sizes(self, rounds: int, layers: int | None = None, vocab_size: int | None = None) -> None:
        """Adds the number of rounds and the sizes of a model; None is the size in the papers."""
        papers = " (default: as in the papers)"
        self.add_int("--rounds", rounds, "number of measured rounds")
        self.add_int("--layers", layers, "number of layers" + ("" if layers else papers))
        self.add_int(
            "--vocab-size", vocab_size, "vocabulary size" + ("" if vocab_size else papers), minimum=5
        )

    def add_methods(self, default: str, names: Iterable[str] = METHODS) -> None:
        """Adds ``--attention`` and ``--methods``; ``default`` describes the default methods."""
        add = self.add_argument
        add("--attention", choices=ATTENTIONS, help="measure only this attention (default: both)")
        help = f"methods to measure (default: {default})"
        add("--methods", nargs="+", choices=list(names), metavar="METHOD", help=help)

    def methods_by_attention(self, args: Namespace, default: Iterable[str]) -> dict[str, list[str]]:
        """Returns {attention: methods} selected by ``--attention`` and ``--methods``.

        Exits if a requested method does not support the requested attention.
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
    """Silences logging; invalid input, a lack of memory, and interruptions end in a one-line error."""
    warnings.filterwarnings("ignore", category=UserWarning)  # fairseq calls a deprecated interface of hydra
    logging.disable(logging.INFO)
    with exit_on_error(program):
        check_architectures()
        try:
            yield
        except KeyboardInterrupt:
            sys.exit(f"{program}: interrupted")
        except RuntimeError as error:
            if not any(message in str(error) for message in OUT_OF_MEMORY):
                raise
            raise ValueError("out of memory: try smaller sizes") from None


def seconds(function: Callable[[], object]) -> float:
    """Returns the duration of a call; on a GPU, the clock waits for all work that was queued."""
    start = timer()
    function()
    return timer() - start


def interleave(
    steps: dict[str, Callable[[], object]], rounds: Iterable, warm_up: int = 1
) -> dict[str, list[float]]:
    """Times each step once per round.

    Args:
        steps: {name: step}; each round begins with the next of them.
        rounds: an iterable that ends when enough rounds were measured.
        warm_up: number of first rounds that are discarded.

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
    """Calls a function in a new Python process, whose memory no earlier work has touched."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def resident_memory(field: str) -> int:
    """Returns the current (VmRSS) or peak (VmHWM) resident memory of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(field)))


def ratio_range(pairs: Iterable[tuple[float, float]]) -> str:
    """Returns the smallest and largest b / a of pairs (a, b) of times in the same round."""
    ratios = [b / a for a, b in pairs]
    return f"{min(ratios):.2f}-{max(ratios):.2f}"


def print_table(
    columns: Sequence[str], rows: Iterable[Iterable[str]], text_columns: int = 1, **options
) -> None:
    """Prints a table whose first columns contain text and the others numbers.

    Args:
        options: passed to ``rich.table.Table``, such as ``title`` and ``caption``.
    """
    from rich.table import Column, Table  # the GPU check works without rich

    sides = ["left" if index < text_columns else "right" for index, _ in enumerate(columns)]
    table = Table(*(Column(name, justify=side) for name, side in zip(columns, sides, strict=True)), **options)
    for row in rows:
        table.add_row(*row)
    print_wide(table)
