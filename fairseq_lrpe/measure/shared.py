"""Holds what the measuring programs share: a clock, the choice of methods, cells of tables, refusals."""

import sys
import time
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fairseq_lrpe.gpus import check_architectures
from fairseq_lrpe.methods import ATTENTIONS, METHODS
from fairseq_lrpe.programs import one_sentence

NO_MEMORY = ("out of memory", "can't allocate memory", "terminated abruptly")
"""How errors for want of memory read: of a GPU, of a CPU, and of a process that was killed."""


@contextmanager
def measuring(program: str) -> Iterator[None]:
    """Ends a program in one sentence, also where memory is too small or torch has no code for the GPU."""
    warnings.filterwarnings("ignore", category=UserWarning)  # of hydra, whose old interface fairseq calls
    with one_sentence(program):
        check_architectures()
        try:
            yield
        except KeyboardInterrupt:
            sys.exit(f"{program}: interrupted")
        except RuntimeError as error:
            if not any(words in str(error) for words in NO_MEMORY):
                raise
            raise ValueError("the memory is too small for that: try smaller numbers") from None


def seconds(function: Callable[[], object]) -> float:
    """Returns how long a call takes, on a GPU from the end of earlier work until its own is done."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def resident(which: str) -> int:
    """Returns the bytes of memory that this process has (VmRSS), or the most that it had (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(which)))


def numbers(*headers: str) -> list:
    """Returns columns of rich's tables, of numbers, which stand at the right."""
    from rich.table import Column

    return [Column(header, justify="right") for header in headers]


def spread(pairs: list[tuple[float, float]]) -> str:
    """Returns the least and the greatest b / a of the (a, b), each the times of one round."""
    ratios = [b / a for a, b in pairs]
    return f"{min(ratios):.2f}-{max(ratios):.2f}"


def add_methods(parser: ArgumentParser, default: str, names: Iterable[str] = METHODS) -> None:
    """Adds --attention and --methods, whose ``default`` is said in words."""
    parser.add_argument("--attention", choices=ATTENTIONS, help="only this one (default: both)")
    told = f"only these (default: {default})"
    parser.add_argument("--methods", nargs="+", choices=list(names), metavar="METHOD", help=told)


def plan(parser: ArgumentParser, args: Namespace, default: Iterable[str]) -> dict[str, list[str]]:
    """Returns {attention: its methods}, all that ``--attention`` and ``--methods`` (or ``default``) ask for.

    Ends the program with one sentence where a method that was asked for is not in that attention.
    """
    exist = {name: method.attentions() for name, method in METHODS.items()} | {"fairseq": ATTENTIONS}
    for name in args.methods or ():
        if args.attention and args.attention not in exist[name]:
            parser.error(f"{name} works in {', '.join(exist[name])} attention alone")
    asked, names = [args.attention] if args.attention else ATTENTIONS, args.methods or default
    return {attention: [name for name in names if attention in exist[name]] for attention in asked}
