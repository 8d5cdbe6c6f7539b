"""Holds what the measuring programs share: a clock, tables as wide as they need, the refusal of zeros."""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable

import torch
from rich.console import Console, RenderableType


def seconds(function: Callable[[], object]) -> float:
    """Returns how long a call takes, on a GPU until its work is done."""
    start = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def show_wide(shown: RenderableType) -> None:
    """Prints a table or a line; into a pipe, which has no width of its own, 130 characters wide."""
    console = Console()
    (console if console.is_terminal else Console(width=130)).print(shown)


def refuse_less(parser: ArgumentParser, args: Namespace, **least: int) -> None:
    """Ends the program with one sentence where a flag, or one number of a list, is below its least value."""
    for name, number in least.items():
        value = getattr(args, name)
        smallest = min(value if isinstance(value, list) else [value], default=number)
        if smallest < number:
            parser.error(f"--{name.replace('_', '-')} must be at least {number}, not {smallest}")
