"""Time and peak memory of functions, and the options and tables of the benchmarks."""

import json
import logging
import sys
import warnings
import weakref
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pandas as pd
import torch
from rich.progress import track
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.benchmark import timer

from fairseq_lrpe.utils.cli import exit_on_error, min_int, new_parser, output_path
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import output_folder, write_atomic

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def model_parser(name: str, description: str) -> ArgumentParser:
    arguments = "ARCH [ARCH ...] [options] [-- fairseq-train's flags]"
    parser = new_parser(f"lrpe bench {name}", description, arguments)
    add = parser.add_argument
    add("archs", nargs="+", metavar="ARCH", help="architecture, or in quotes with flags: 'ARCH --FLAG VALUE'")
    add("--batch-size", type=min_int(1), default=2, help="number of inputs per batch (default: %(default)s)")
    help = "number of tokens per input (default: 512, or 128 for `bench generate`), or of pixels per side of "
    help += "an image (default: 224)"
    add("--length", type=min_int(2), help=help)
    add("--layers", type=min_int(1), help="number of layers of encoder and decoder (default: ARCH's)")
    add("--vocab-size", type=min_int(5), help="vocabulary size (default: 50265; classifiers: 260)")
    add("--rounds", type=min_int(1), default=7, help="number of measured rounds (default: %(default)s)")
    add("--cpu", action="store_true", help="use the CPU even if there is a GPU")
    help = "write the measurements to a file, too"
    add("--json", type=lambda text: output_path(text, ".json"), metavar="FILE.json", help=help)
    return parser


def parse(parser: ArgumentParser, arguments: list[str] | None) -> Namespace:
    arguments = sys.argv[1:] if arguments is None else arguments
    split = arguments.index("--") if "--" in arguments else len(arguments)
    return parser.parse_args(arguments[:split], Namespace(flags=arguments[split + 1 :]))


@contextmanager
def measuring(program: str) -> Iterator[None]:
    for category in (UserWarning, FutureWarning):  # fairseq uses deprecated interfaces of hydra and torch
        warnings.filterwarnings("ignore", category=category)
    logging.disable(logging.INFO)
    torch.set_flush_denormal(True)  # as in training
    with exit_on_error(program):
        try:
            yield
        except RuntimeError as error:
            messages = "out of memory", "can't allocate memory"
            if not any(message in str(error) for message in messages):
                raise
            raise UserError("out of memory: try smaller sizes") from None


def device(cpu: bool = False) -> str:
    return "cuda" if torch.cuda.is_available() and not cpu else "cpu"


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
    """Context that measures ``peak``, the maximum number of bytes of the tensors created in the context.

    torch does not count these bytes for the CPU. Buffers inside an operator are not included.
    """

    def __init__(self):
        super().__init__()
        self.peak = 0
        self.sizes = {}  # of the storages that exist

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = {storage._cdata for storage in storages((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for storage in storages(out):
            if storage._cdata not in before | self.sizes.keys():
                self.sizes[storage._cdata] = storage.nbytes()
                self.peak = max(self.peak, sum(self.sizes.values()))
                weakref.finalize(storage, self.sizes.pop, storage._cdata)
        return out


def storages(tree: object) -> list[torch.UntypedStorage]:
    """Returns the storage of each tensor in nested lists, tuples and dictionaries."""
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def compare(build: Callable[[str], Callable], names: list[str], args: Namespace) -> list[dict]:
    """Measures the step that ``build`` returns for each name; returns a row for each name.

    Each step is measured once per round, so that changes of the machine's speed affect all steps. Each round
    begins with another step, and the first round is a warm-up. A row has the keys "model", "ms" (median),
    "relative" (speed relative to the first), "spread" (its range) and "MiB" (peak memory).
    """
    steps = []

    def two_steps(name):  # from the second step on the optimizer's state exists
        steps.append(build(name))
        steps[-1]()
        steps[-1]()

    memory = [peak_memory(partial(two_steps, name), args.cpu) for name in names]
    times = np.zeros((args.rounds + 1, len(steps)))
    for number in track(range(args.rounds + 1), "rounds", transient=True):
        for i in np.roll(range(len(steps)), -number):
            start = timer()
            steps[i]()
            times[number, i] = timer() - start
    times = 1000 * times[1:]  # in ms, without the first round
    rows = []
    medians = np.median(times, axis=0).tolist()
    for name, peak, taken, ms in zip(names, memory, times.T, medians, strict=True):
        ratios = times[:, 0] / taken
        row = {
            "model": name,
            "ms": ms,
            "relative": medians[0] / ms,
            "spread": f"{ratios.min():.2f}-{ratios.max():.2f}",
            "MiB": peak / 2**20,
        }
        rows.append(row)
    return rows


def report(rows: list[dict], title: str, args: Namespace) -> None:
    caption = (
        f"medians of {args.rounds} interleaved rounds; relative: speed relative to the first model; "
        "spread: its range over the rounds; MiB: peak memory, with the model if there is one"
    )
    print_table(rows, title, caption)
    if args.json:
        with output_folder(args.json.parent):
            write_atomic(args.json, json.dumps(rows, indent=1) + "\n")


def print_table(rows: list[dict], title: str, caption: str) -> None:
    def format_number(value):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"

    table = pd.DataFrame(rows).to_string(index=False, float_format=format_number, na_rep="-")
    print(f"\n{title}\n\n{table}\n\n{caption}", flush=True)
