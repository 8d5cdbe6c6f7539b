"""Time and peak memory of functions, and the options and tables of the benchmarks."""

import json
import logging
import statistics
import warnings
import weakref
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.benchmark import timer

from fairseq_lrpe.utils.cli import exit_on_error, min_int, new_parser, output_path, print_wide
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.gpus import check_architectures

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def model_parser(name: str, description: str) -> ArgumentParser:
    arguments = "ARCH [ARCH ...] [options] [-- fairseq-train's flags]"
    parser = new_parser(f"lrpe bench {name}", description, arguments)
    add = parser.add_argument
    add("archs", nargs="+", metavar="ARCH", help="architecture, with flags of its own: 'ARCH --FLAG VALUE'")
    add("--batch-size", type=min_int(1), default=2, help="number of inputs per batch (default: %(default)s)")
    add("--length", type=min_int(2), help="number of tokens per input, or of pixels per side of an image")
    add("--layers", type=min_int(1), help="number of layers of encoder and decoder (default: ARCH's)")
    add("--vocab-size", type=min_int(5), help="vocabulary size (default: 50265; classifiers: 260)")
    add("--rounds", type=min_int(1), default=7, help="number of measured rounds (default: %(default)s)")
    add("--cpu", action="store_true", help="use the CPU even if there is a GPU")
    help = "write the measurements to a file, too"
    add("--json", type=lambda text: output_path(text, ".json"), metavar="FILE.json", help=help)
    return parser


def parse(parser: ArgumentParser, arguments: list[str]) -> Namespace:
    split = arguments.index("--") if "--" in arguments else len(arguments)
    return parser.parse_args(arguments[:split], Namespace(flags=arguments[split + 1 :]))


@contextmanager
def measuring(program: str, cpu: bool = False) -> Iterator[None]:
    """Context without logs, in which lack of memory is a UserError."""
    for category in (UserWarning, FutureWarning):  # fairseq uses deprecated interfaces of hydra and torch
        warnings.filterwarnings("ignore", category=category)
    logging.disable(logging.INFO)
    torch.set_flush_denormal(True)  # as in training
    with exit_on_error(program):
        if not cpu:
            check_architectures()
        try:
            yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise UserError("out of memory: try smaller sizes") from None


def is_out_of_memory(error: Exception) -> bool:
    return any(message in str(error) for message in ("out of memory", "can't allocate memory"))


def device(cpu: bool = False) -> str:
    return "cuda" if torch.cuda.is_available() and not cpu else "cpu"


def seconds(function: Callable[[], object]) -> float:
    start = timer()
    function()
    return timer() - start


def interleave(steps: list[Callable[[], object]], rounds: Iterable) -> list[list[float]]:
    """Measures each step once per round, so that changes of the machine's speed affect all of them.

    Each round begins with the next step, and the first round is a warm-up. Returns the seconds of each step
    in each round after the first.
    """
    times = [[] for _ in steps]
    for number, _ in enumerate(rounds):
        first = number % len(steps)
        for i in [*range(first, len(steps)), *range(first)]:
            times[i].append(seconds(steps[i]))
    return [taken[1:] for taken in times]


def peak_memory(function: Callable[[], object], cpu: bool = False) -> int:
    if device(cpu) == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with TensorMemory() as memory:
        function()
    return memory.peak


class TensorMemory(TorchDispatchMode):
    """Counts the bytes of the tensors that are created in this context, while they exist.

    torch has no such count for the CPU. Buffers inside an operator are not included.
    """

    def __init__(self):
        super().__init__()
        self.current = self.peak = 0
        self.storages = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and x.untyped_storage()._cdata not in before | self.storages:
                self._add(x.untyped_storage())
        return out

    def _add(self, storage):
        key, size = storage._cdata, storage.nbytes()
        self.storages.add(key)
        self.current += size
        self.peak = max(self.peak, self.current)
        weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key, size):
        self.storages.remove(key)
        self.current -= size


def compare(build: Callable[[str], Callable[[], object]], args: Namespace) -> list[dict]:
    """Returns a row {column: value} for each element of ``args.archs``, whose step ``build`` returns.

    The speed is relative to the first one.
    """

    def two_steps(arch):  # from the second step on the optimizer's state exists
        step = build(arch)
        step()
        step()

    memory = [peak_memory(lambda arch=arch: two_steps(arch), args.cpu) for arch in args.archs]
    rounds = track(range(args.rounds + 1), "rounds", transient=True)
    times = interleave([build(arch) for arch in args.archs], rounds)
    rows = []
    for arch, taken, peak in zip(args.archs, times, memory, strict=True):
        ratios = [first / own for first, own in zip(times[0], taken, strict=True)]
        speed = statistics.median(times[0]) / statistics.median(taken)
        row = {"model": arch, "ms": 1000 * statistics.median(taken), "relative": speed}
        rows.append(row | {"spread": f"{min(ratios):.2f}-{max(ratios):.2f}", "MiB": peak / 2**20})
    return rows


def report(rows: list[dict], title: str, args: Namespace) -> None:
    caption = (
        f"medians of {args.rounds} interleaved rounds; relative: speed relative to the first model; "
        "spread: range of the rounds' ratios; MiB: peak memory, with the model"
    )
    print_table(rows, title, caption)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


def print_table(rows: list[dict], title: str, caption: str) -> None:
    table = Table(title=title, caption=caption)
    for name, value in rows[0].items():
        table.add_column(name, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*map(format_cell, row.values()))
    print_wide(table)


def format_cell(value: object) -> str:
    """Formats a value: a float with three digits at least, None as a dash."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
