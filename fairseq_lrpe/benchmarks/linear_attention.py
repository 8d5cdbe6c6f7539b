"""Compare linear attention with its alternatives over the sequence length.

Measures the time of forward and backward passes of causal attention, their peak memory, and the time of a
decoding step after a prefix. Where the kernels of flash-linear-attention run, they are measured as well. For
example:

  lrpe bench linear-attention --lengths 512 4096 --dtype bfloat16
"""

import statistics
import sys
from argparse import Namespace
from functools import partial

import torch
import torch.nn.functional as F
from rich.progress import track

from fairseq_lrpe.benchmarks import measurement
from fairseq_lrpe.benchmarks.measurement import DTYPES, interleave, peak_memory, print_table, seconds
from fairseq_lrpe.ops import linear_attention
from fairseq_lrpe.ops.linear_attention.triton import fla_missing_requirement
from fairseq_lrpe.utils.cli import image_path, min_int, new_parser
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import save_figure

TOKENS = 4096
"""Number of tokens per batch."""
SLOW = 1.0
"""Seconds of a step above which an implementation is not measured at greater lengths."""
DECODING_ROUNDS, DECODING_STEPS, WARM_UP_STEPS = 10, 20, 10
"""Numbers of rounds, of measured decoding steps per round, and of discarded steps before them."""


def masked(q, k, v):
    """Computes causal linear attention as the papers' training code does, with an n × n mask."""
    n = q.size(2)
    scores = (q @ k.mT) * torch.ones(n, n, dtype=q.dtype, device=q.device).tril()
    return scores @ v / scores.sum(-1, keepdim=True).clamp(min=1e-6)


def implementations(device: str) -> dict:
    """Returns {name: function of (q, k, v) that computes causal attention}."""
    linear = partial(linear_attention, causal=True, normalize=True)
    found = {"chunk": partial(linear, backend="chunk"), "masked n × n": masked}
    found["softmax"] = partial(F.scaled_dot_product_attention, is_causal=True)
    if fla_missing_requirement(torch.device(device)) is None:
        found["kernels"] = partial(linear, backend="fla")
    return found


def batch_size(length: int) -> int:
    """Returns the number of sequences with TOKENS tokens in total, at least one."""
    return max(1, TOKENS // length)


def random_inputs(length: int, args: Namespace) -> list[torch.Tensor]:
    """Returns q, k, v, which are positive like the output of a feature map, and a gradient of the output.

    All have the shape (batch, heads, length, width).
    """
    shape = batch_size(length), args.heads, length, args.width
    settings = {"device": measurement.device(args.cpu), "dtype": DTYPES[args.dtype]}
    return [torch.rand(shape, **settings, requires_grad=name != "gradient") for name in (*"qkv", "gradient")]


def step(compute, q, k, v, gradient) -> None:
    """Runs a forward and a backward pass, which allocates new gradients, like a step after ``zero_grad``."""
    q.grad = k.grad = v.grad = None
    compute(q, k, v).backward(gradient)


def measure(args: Namespace) -> dict[str, dict[int, dict]]:
    """Measures the time and the peak memory of forward and backward passes.

    Returns:
        {name: {length: {"seconds": [..], "extra": bytes beyond q, k, v and all gradients}}}.
    """
    functions = implementations(measurement.device(args.cpu))
    results = {name: {} for name in functions}
    names = list(functions)
    for length in track(args.lengths, "forward and backward passes", transient=True):
        try:
            inputs = random_inputs(length, args)
            steps = {name: partial(step, functions[name], *inputs) for name in names}
            times = interleave(list(steps.values()), range(args.rounds + 1))
        except torch.OutOfMemoryError:
            break
        for (name, function), taken in zip(steps.items(), times, strict=True):
            inputs[0].grad = inputs[1].grad = inputs[2].grad = None
            extra = peak_memory(function, args.cpu) - sum(x.nbytes for x in inputs[:3])
            results[name][length] = {"seconds": taken, "extra": extra}
        # The chunk form is always measured because all others are compared with it.
        medians = {name: statistics.median(results[name][length]["seconds"]) for name in names}
        names = [name for name in names if name == "chunk" or medians[name] < SLOW]
    return results


def measure_decoding(args: Namespace) -> list[dict]:
    """Returns a table row for each prefix, with the time of a decoding step and the size of the state."""
    linear = partial(linear_attention, causal=True, normalize=True, return_state=True)

    def softmax(q, k, v, state):
        k, v = (torch.cat(pair, dim=2) for pair in zip(state, (k, v), strict=True))
        return F.scaled_dot_product_attention(q, k, v)

    def random_qkv(length):
        shape = 1, args.heads, length, args.width
        return [torch.rand(shape, device=measurement.device(args.cpu)) for _ in range(3)]

    token, rows, steps = random_qkv(1), [], []
    for length in args.positions:
        q, k, v = random_qkv(length)
        rows.append({"tokens before": length})
        for name, function, state in (("chunk", linear, linear(q, k, v)[1]), ("softmax", softmax, (k, v))):
            times, size = [], sum(x.nbytes for x in state)
            rows[-1] |= {f"{name}, µs": times, f"{name}, state KiB": size / 1024}
            steps.append((partial(function, *token, state=state), times))
    for _ in track(range(DECODING_ROUNDS), "decoding steps", transient=True):
        for function, times in steps:
            # The first steps are slower because other steps have filled the CPU's caches.
            times += [seconds(function) for _ in range(WARM_UP_STEPS + DECODING_STEPS)][WARM_UP_STEPS:]
    return [
        {name: 1e6 * statistics.median(x) if isinstance(x, list) else x for name, x in row.items()}
        for row in rows
    ]


def scaling_exponent(lengths: list[int], values: list[float]) -> float | None:
    """Returns the least-squares slope of log(value) over log(length), or None if it is not defined."""
    if len(lengths) < 2 or min(values) <= 0:
        return None
    logs = (torch.tensor(numbers, dtype=torch.float64).log().tolist() for numbers in (lengths, values))
    return statistics.linear_regression(*logs).slope


def fit_exponents(by_length: dict[int, dict]) -> tuple[float | None, float | None]:
    """Returns the exponents of time and memory per sequence over the length, for one implementation.

    They are fitted to the lengths of at least TOKENS or, if these are fewer than three, to the last three.
    """
    long = [length for length in by_length if length >= TOKENS]
    lengths = long if len(long) > 2 else list(by_length)[-3:]
    columns = zip(*(per_sequence(by_length, length) for length in lengths), strict=True)
    time, memory = (scaling_exponent(lengths, column) for column in columns)
    return time, memory


def per_sequence(by_length: dict[int, dict], length: int) -> tuple[float, float]:
    """Returns the median seconds and the "extra" bytes of one sequence of a batch."""
    row = by_length[length]
    return statistics.median(row["seconds"]) / batch_size(length), row["extra"] / batch_size(length)


def print_attention(results: dict, args: Namespace) -> None:
    """Prints a table of the time and memory of forward and backward passes."""

    def cell(name, length):
        row = results[name].get(length)
        if row is None:
            return None
        low, median, high = (1000 * f(row["seconds"]) for f in (min, statistics.median, max))
        relative = median / 1000 / statistics.median(results["chunk"][length]["seconds"])
        ratio = "" if name == "chunk" else f" {relative:.1f}×"
        qkv = 3 * DTYPES[args.dtype].itemsize * batch_size(length) * length * args.heads * args.width
        return f"{median:,.0f} ms{ratio}\n({low:,.0f}-{high:,.0f})\n{row['extra'] / qkv:.1f} qkv"

    rows = []
    for length in results["chunk"]:
        row = {"length × batch": f"{length:,} × {batch_size(length)}"}
        rows.append(row | {name: cell(name, length) for name in results})
    exponents = {name: fit_exponents(by_length) for name, by_length in results.items() if by_length}
    for index, quantity in enumerate(("time", "memory")):
        row = {"length × batch": f"exponent of {quantity}"}
        rows.append(row | {name: exponents.get(name, (None, None))[index] for name in results})
    device = measurement.device(args.cpu)
    print_table(
        rows,
        f"Forward + backward, {args.heads} heads × {args.width}, {args.dtype}, {device}",
        f"ms: median of {args.rounds} interleaved rounds (minimum-maximum); ×: relative to chunk; "
        "qkv: peak memory beyond q, k, v and all gradients, in multiples of q, k and v together",
    )


def plot(results: dict, path) -> None:
    """Plots the time and memory per sequence over the length, with one line per implementation."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    panels = ("forward + backward", "ms", 1000), ("peak beyond q, k, v, gradients", "MiB", 2**-20)
    for n, (axes, (title, unit, scale)) in enumerate(zip(figure.subplots(1, 2), panels, strict=True)):
        for (name, by_length), marker in zip(results.items(), "osD^", strict=False):
            values = [scale * per_sequence(by_length, length)[n] for length in by_length]
            exponent = fit_exponents(by_length)[n] if by_length else None
            label = name if exponent is None else f"{name} ~ n^{exponent:.2f}"
            axes.plot(list(by_length), values, marker=marker, label=label)
        axes.set(xscale="log", yscale="log", xlabel="length n", ylabel=f"{unit} per sequence", title=title)
        axes.set_xticks(list(results["chunk"]), [f"{x:,}" for x in results["chunk"]], rotation=45)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    save_figure(figure, path, dpi=150)


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe bench linear-attention", __doc__, "[options]")
    add, number, default = parser.add_argument, min_int(1), "(default: %(default)s)"
    lengths = [2**n for n in range(9, 17)]
    add("--lengths", type=number, nargs="+", default=lengths, help=f"lengths in tokens {default}")
    add("--heads", type=number, default=8, help=f"number of attention heads {default}")
    add("--width", type=number, default=64, help=f"dimension of q, k and v per head {default}")
    add("--dtype", choices=DTYPES, default="float32", help=f"data type of training {default}")
    help = f"numbers of tokens before a decoding step {default}"
    add("--positions", type=number, nargs="+", default=[64, 1024, 16384], help=help)
    add("--rounds", type=number, default=7, help=f"number of measured rounds {default}")
    add("--cpu", action="store_true", help="use the CPU even if there is a GPU")
    add("--plot", type=image_path, default="results/benchmark.png", help=f"image file of the plot {default}")
    args = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    args.lengths = sorted(set(args.lengths))
    with measurement.measuring(parser.prog, args.cpu):
        results = measure(args)
        if not results["chunk"]:
            raise UserError(f"out of memory at --lengths {args.lengths[0]}: try smaller lengths")
        print_attention(results, args)
        steps = DECODING_STEPS * DECODING_ROUNDS
        title = "one decoding step, batch 1, float32"
        print_table(measure_decoding(args), title, f"median of {steps} interleaved steps")
        plot(results, args.plot)
        print(f"plot: {args.plot}")
