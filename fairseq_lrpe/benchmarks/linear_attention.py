"""Compare linear attention with softmax attention and simpler implementations over the sequence length.

Measures the time of forward and backward passes of causal attention, their peak memory, and the time of a
decoding step after a prefix. The kernels of flash-linear-attention (fla) and of this project (triton) are
measured where they run. With `--busy N`, the passes are measured again while N other processes keep CPU cores
busy. For example:

  lrpe bench linear-attention --lengths 512 4096 --dtype bfloat16
"""

import math
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import linear_regression

import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from fairseq_lrpe.benchmarks import measurement
from fairseq_lrpe.benchmarks.measurement import DTYPES, print_table
from fairseq_lrpe.ops import linear_attention
from fairseq_lrpe.ops.linear.fla import missing_requirement
from fairseq_lrpe.utils.cli import image_path, min_int, new_parser
from fairseq_lrpe.utils.files import save_figure
from fairseq_lrpe.utils.subprocesses import die_with_parent

TOKENS = 4096
"""Number of tokens per batch."""
SLOW = 1000
"""Milliseconds of a step from which implementations, except chunk, are not measured at greater lengths."""
MASKED = "masked n × n"
DECODING_STEPS = 20
"""Number of decoding steps per round."""


def masked(q, k, v):
    """Computes causal linear attention as the papers' training code does, with an n × n mask."""
    n = q.size(2)
    scores = (q @ k.mT) * torch.ones(n, n, dtype=q.dtype, device=q.device).tril()
    return scores @ v / scores.sum(-1, keepdim=True).clamp(min=1e-6)


def plain_chunks(q, k, v, size=64):
    """Computes causal linear attention in chunks of rows with differentiable operations of torch."""
    length = q.size(2)
    q, k, v = (F.pad(x, (0, 0, 0, -length % size)).unflatten(2, (-1, size)) for x in (q, k, v))
    updates = k.mT @ v
    key_sums = k.sum(3, keepdim=True)
    past = updates.cumsum(2) - updates
    past_sums = key_sums.cumsum(2) - key_sums
    scores = (q @ k.mT).tril()
    denominator = scores.sum(-1, keepdim=True) + q @ past_sums.mT
    return ((scores @ v + q @ past) / denominator.clamp(min=1e-6)).flatten(2, 3)[:, :, :length]


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """Runs ``number`` processes in the block, each of which keeps a CPU core busy."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command, preexec_fn=die_with_parent()) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def implementations(device: str) -> dict[str, Callable]:
    linear = partial(linear_attention, causal=True, normalize=True)
    functions = {
        "chunk": partial(linear, backend="chunk"),
        MASKED: masked,
        "plain chunks": plain_chunks,
        "softmax": partial(F.scaled_dot_product_attention, is_causal=True),
    }
    for backend in ("fla", "triton"):
        if missing_requirement(torch.device(device), backend) is None:
            functions[backend] = partial(linear, backend=backend)
    return functions


def training_step(name: str, length: int, args: Namespace) -> Callable[[], None]:
    device = measurement.device(args.cpu)
    shape = max(1, TOKENS // length), args.heads, length, args.width
    *inputs, gradient = (torch.rand(shape, device=device, dtype=DTYPES[args.dtype]) for _ in range(4))
    compute = implementations(device)[name]

    def step():
        qkv = [x.detach().requires_grad_() for x in inputs]  # without gradients, as after ``zero_grad``
        compute(*qkv).backward(gradient)

    return step


def measure(args: Namespace) -> list[dict]:
    """Returns the rows of all lengths, without implementations that are too slow or exceed the memory."""
    rows = []
    names = list(implementations(measurement.device(args.cpu)))
    for length in args.lengths:
        measured = measure_length(length, names, args)
        names = []
        for row in measured:
            rows.append({"length": length, "batch": max(1, TOKENS // length), **row})
            # The chunk form is always measured because all others are compared with it.
            if row["model"] == "chunk" or row["ms"] < SLOW:
                names.append(row["model"])
    return rows


def measure_length(length: int, names: list[str], args: Namespace) -> list[dict]:
    """Returns the rows of a length, without the masked form if it exceeds the memory."""
    build = partial(training_step, length=length, args=args)
    try:
        return measurement.compare(build, names, args)
    except torch.OutOfMemoryError:
        if MASKED not in names:
            raise
    print(f"{MASKED} does not fit into memory at {length:,} tokens", file=sys.stderr)
    return measurement.compare(build, [name for name in names if name != MASKED], args)


def decoding_steps(name: str, args: Namespace) -> Callable[[], None]:
    name, length = name.split(", ")

    def random_qkv(length):
        shape = 1, args.heads, length, args.width
        return [torch.rand(shape, device=measurement.device(args.cpu)) for _ in range(3)]

    new_q, new_k, new_v = random_qkv(1)
    q, k, v = random_qkv(int(length))
    linear = partial(linear_attention, causal=True, normalize=True, return_state=True)
    _, state = linear(q, k, v)

    def step():
        for _ in range(DECODING_STEPS):
            if name == "chunk":
                linear(new_q, new_k, new_v, state=state)
            else:
                keys = torch.cat((k, new_k), dim=2)
                values = torch.cat((v, new_v), dim=2)
                F.scaled_dot_product_attention(new_q, keys, values)

    return step


def exponent(rows: list[dict]) -> float:
    """Returns the slope of log(ms per sequence) over log(length) for long texts, or NaN for one length."""
    long = [row for row in rows if row["length"] >= TOKENS]
    rows = long if len(long) > 2 else rows[-3:]
    if len(rows) < 2:
        return math.nan
    lengths = []
    times = []
    for row in rows:
        lengths.append(math.log(row["length"]))
        times.append(math.log(row["ms"] / row["batch"]))
    return linear_regression(lengths, times).slope


def plot(by_name: dict[str, list[dict]], path: Path) -> None:
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for axes, unit in zip(figure.subplots(1, 2), ("ms", "MiB"), strict=True):
        for (name, rows), marker in zip(by_name.items(), "osvD^P", strict=False):
            frame = pd.DataFrame(rows)
            axes.plot(frame["length"], frame[unit] / frame["batch"], marker=marker, label=name)
        axes.set(xscale="log", yscale="log", xlabel="length n", ylabel=f"{unit} per sequence")
        lengths = [row["length"] for row in by_name["chunk"]]
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=45)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    save_figure(figure, path, dpi=150)


def main(arguments: list[str] | None = None) -> None:
    args, program = parse(arguments)
    with measurement.measuring(program):
        rows = measure(args)
        by_name = report_passes(rows, args)
        if args.busy:
            report_busy(rows, args)
        if len(args.lengths) > 1:
            plot(by_name, args.plot)
            print(f"plot: {args.plot}")
        else:
            print("no plot, which needs more than one of --lengths")
        report_decoding(args)


def parse(arguments: list[str] | None) -> tuple[Namespace, str]:
    """Returns the parsed options and the name of the command."""
    parser = new_parser("lrpe bench linear-attention", __doc__, "[options]")
    add = parser.add_argument
    number = min_int(1)
    default = "(default: %(default)s)"
    lengths = [2**n for n in range(9, 17)]
    add("--lengths", type=number, nargs="+", default=lengths, help=f"lengths in tokens {default}")
    add("--heads", type=number, default=8, help=f"number of attention heads {default}")
    add("--width", type=number, default=64, help=f"dimension of q, k and v per head {default}")
    add("--dtype", choices=DTYPES, default="float32", help=f"data type of training {default}")
    help = f"numbers of tokens before a decoding step {default}"
    add("--positions", type=number, nargs="+", default=[64, 1024, 16384], help=help)
    add("--rounds", type=number, default=7, help=f"number of measured rounds {default}")
    help = "measure a second time while N other processes keep CPU cores busy"
    add("--busy", type=number, metavar="N", help=help)
    add("--cpu", action="store_true", help="use the CPU even if there is a GPU")
    add("--plot", type=image_path, default="results/benchmark.png", help=f"image file of the plot {default}")
    args = parser.parse_args(arguments)
    args.lengths = sorted(set(args.lengths))
    args.json = None
    return args, parser.prog


def report_passes(rows: list[dict], args: Namespace) -> dict[str, list[dict]]:
    """Prints the measurements of passes and how they grow; returns {implementation: rows of the table}."""
    title = f"forward + backward, {args.heads} heads × {args.width}, {args.dtype}"
    measurement.report(rows, title, args)
    by_name = {}
    for row in rows:
        by_name.setdefault(row["model"], []).append(row)
    exponents = {name: exponent(measured) for name, measured in by_name.items()}
    print_table([exponents], "exponent of time", "time of one sequence ~ length ** exponent")
    return by_name


def report_busy(rows: list[dict], args: Namespace) -> None:
    """Measures the passes again beside busy processes, and prints how much slower the passes are."""
    with busy_processes(args.busy):
        busy_rows = measure(args)
    quiet = {(row["length"], row["model"]): row["ms"] for row in rows}
    for row in busy_rows:
        row["busy / quiet"] = row["ms"] / quiet[row["length"], row["model"]]
    title = f"beside {args.busy} busy processes, {args.heads} heads × {args.width}, {args.dtype}"
    measurement.report(busy_rows, title, args)


def report_decoding(args: Namespace) -> None:
    names = []
    for length in args.positions:
        names += [f"chunk, {length}", f"softmax, {length}"]
    rows = measurement.compare(partial(decoding_steps, args=args), names, args)
    for row in rows:
        row["µs a token"] = 1000 * row.pop("ms") / DECODING_STEPS
    measurement.report(rows, "decoding steps after a number of tokens, batch 1, float32", args)
