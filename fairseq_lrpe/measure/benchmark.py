"""Measures linear attention beside its alternatives: time, memory and decoding over the length.

``python -m fairseq_lrpe.measure.benchmark`` measures the forward and backward pass of attention (float32,
every contender in turn, several rounds), its peak memory in a process of its own, a decoding step after a
prefix, and training steps of whole language models; it prints tables and draws a picture.
"""

import argparse
import logging
import math
import multiprocessing
import statistics
import sys
from argparse import Namespace
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import Progress
from rich.table import Table

from fairseq_lrpe.measure.shared import refuse_less, seconds, show_wide
from fairseq_lrpe.ops import linear_attention
from fairseq_lrpe.ops.linear_attention.fla import fla_can

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOKENS = 4096
"""A batch has as many sequences as make this many tokens, and at least one."""

SLOW = 1.0
"""Seconds; what takes longer is not measured at greater lengths."""

DECODING_ROUNDS = 10


def masked(q, k, v):
    """Computes the n × n form of the papers' training code: all scores, a mask, the products with v and 1."""
    n = q.size(2)
    scores = (q @ k.mT) * torch.ones(n, n, device=q.device).tril()
    return scores @ v / scores.sum(-1, keepdim=True).clamp(min=1e-6)


def fla_directly(q, k, v):
    """Computes the same with flash-linear-attention's own function."""
    from fla.ops.linear_attn import chunk_linear_attn

    return chunk_linear_attn(*(x.transpose(1, 2) for x in (q, k, v)), scale=1.0, normalize=True)[0]


CONTENDERS = {
    "chunk": partial(linear_attention, causal=True, normalize=True, backend="chunk"),
    "masked n × n": masked,
    "softmax": partial(F.scaled_dot_product_attention, is_causal=True),
}
if DEVICE == "cuda" and fla_can(torch.empty(0, device=DEVICE), *[torch.empty(0)] * 2, None):
    CONTENDERS["auto"] = partial(linear_attention, causal=True, normalize=True)
    CONTENDERS["fla"] = fla_directly


def inputs(length, heads, width):
    """Returns q, k and v, positive as behind a feature map, and a gradient of the output."""
    g = torch.Generator().manual_seed(0)
    shape = max(1, TOKENS // length), heads, length, width
    q, k, v, gradient = (torch.rand(shape, generator=g).to(DEVICE) for _ in range(4))
    return [x.requires_grad_() for x in (q, k, v)], gradient


def step(name, qkv, gradient):
    """Runs forward and backward; the gradients are made anew, as in a training step after ``zero_grad``."""
    for x in qkv:
        x.grad = None
    CONTENDERS[name](*qkv).backward(gradient)


def times(names, length, args, advance):
    """Returns {name: seconds of every round}, the names in turn, after a first round that is not counted."""
    qkv, gradient = inputs(length, args.heads, args.width)
    found = {name: [] for name in names}
    for n in range(args.rounds + 1):
        for name in names:
            spent = seconds(lambda name=name: step(name, qkv, gradient))
            if n:
                found[name].append(spent)
            advance()
    return found


def peak(name, length, heads, width):
    """Returns (bytes beyond q, k, v, their gradients and the output's; bytes of the whole process)."""
    step(name, *inputs(64, 1, width))  # what libraries keep for themselves
    qkv, gradient = inputs(length, heads, width)
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(name, qkv, gradient)
        highest = torch.cuda.max_memory_allocated()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # the highest so far becomes the present
        before = _resident("VmRSS")
        step(name, qkv, gradient)
        highest = _resident("VmHWM")
    return highest - before - sum(x.grad.nbytes for x in qkv), highest


def _resident(which):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(which)))


def decoding(positions, args, advance):
    """Returns {name: {position: [seconds of a step after that many tokens, ..]}}, and the states' bytes."""
    spent = {name: {n: [] for n in positions} for name in ("chunk", "softmax")}
    size = {name: {} for name in spent}
    states = {}
    linear = partial(linear_attention, causal=True, normalize=True, return_state=True)
    for n in positions:
        q, k, v = (torch.rand(1, args.heads, n, args.width, device=DEVICE) for _ in range(3))
        states[n] = {"chunk": linear(q, k, v)[1], "softmax": (k, v)}
        for name, state in states[n].items():
            size[name][n] = sum(x.nbytes for x in state)
    q, k, v = (torch.rand(1, args.heads, 1, args.width, device=DEVICE) for _ in range(3))

    def softmax(q, k, v, state):
        k, v = (torch.cat(pair, dim=2) for pair in zip(state, (k, v), strict=True))
        return F.scaled_dot_product_attention(q, k, v)

    steps = {"chunk": linear, "softmax": softmax}
    for _ in range(DECODING_ROUNDS):
        for name, function in steps.items():
            for n in positions:
                state = states[n][name]
                now = [seconds(lambda f=function, s=state: f(q, k, v, state=s)) for _ in range(30)]
                spent[name][n] += now[10:]  # the first find the caches as another contender left them
        advance()
    return spent, size


def exponent(lengths, values):
    """Returns the slope of log value over log length, by least squares; nan where a value is not above 0."""
    if min(values) <= 0:  # memory of tiny inputs: what earlier steps left free
        return math.nan
    x, y = ([math.log(a) for a in row] for row in (lengths, values))
    middle_x, middle_y = statistics.mean(x), statistics.mean(y)
    return sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True)) / sum(
        (a - middle_x) ** 2 for a in x
    )


def measure(args, progress):
    """Returns {name: {length: {"seconds": [..], "extra": bytes, "total": bytes}}}."""
    found = {name: {} for name in CONTENDERS}
    bar = progress.add_task("time", total=len(args.lengths) * len(CONTENDERS) * (args.rounds + 1))
    names = list(CONTENDERS)
    for length in args.lengths:
        progress.update(bar, description=f"time, length {length:,}")
        try:
            for name, spent in times(names, length, args, lambda: progress.advance(bar)).items():
                found[name][length] = {"seconds": spent}
        except torch.OutOfMemoryError:
            break
        # The chunk form stays: it is what all others are compared with.
        names = [n for n in names if n == "chunk" or statistics.median(found[n][length]["seconds"]) < SLOW]
    progress.update(bar, completed=progress.tasks[bar].total)

    bar = progress.add_task("memory", total=sum(map(len, found.values())))
    for name, by_length in found.items():
        for length, row in by_length.items():
            progress.update(bar, description=f"memory, {name}, {length:,}")
            fresh = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, mp_context=fresh) as process:
                row["extra"], row["total"] = process.submit(
                    peak, name, length, args.heads, args.width
                ).result()
            progress.advance(bar)
    return found


def models(args, progress):
    """Returns {length: [(seconds of linear_lm_base, of softmax_lm_base) of every round]}."""
    from fairseq_lrpe.measure.speed import compare

    logging.disable(logging.INFO)
    bar = progress.add_task("models", total=len(args.model_lengths) * args.rounds)
    found = {}
    for length in args.model_lengths:
        progress.update(bar, description=f"models, length {length:,}")
        size = Namespace(
            **{"family": "lm", "vocab_size": args.vocab_size, "layers": args.layers, "rounds": args.rounds},
            **{"length": length, "batch_size": max(1, TOKENS // length)},
        )
        found[length] = compare("linear_lm_base", "softmax_lm_base", size, lambda: progress.advance(bar))
    return found


def fits(found):
    """Returns {name: (exponent of time, of memory)} over the lengths from 4,096 on, or the last three."""
    result = {}
    for name, by_length in found.items():
        rows = {n: row for n, row in by_length.items() if n >= TOKENS}
        if len(rows) < 3:
            rows = dict(list(by_length.items())[-3:])
        if len(rows) < 2:
            continue
        batch = {n: max(1, TOKENS // n) for n in rows}
        result[name] = tuple(
            exponent(list(rows), [x / batch[n] for n, x in zip(rows, values, strict=True)])
            for values in (
                [statistics.median(row["seconds"]) for row in rows.values()],
                [row["extra"] for row in rows.values()],
            )
        )
    return result


def show(found, decoded, trained, args):
    """Prints the tables of attention, of decoding steps and of whole models."""
    names = list(found)

    table = Table(
        title=f"Forward + backward, {args.heads} heads × {args.width}, float32, {DEVICE}",
        caption=f"ms: median of {args.rounds} interleaved rounds (least-greatest); ×: of the chunk form's; "
        "qkv: peak memory beyond q, k, v and all gradients, in multiples of q, k and v together",
    )
    table.add_column("length × batch", justify="right")
    for name in names:
        table.add_column(name, justify="right")
    for length in found["chunk"]:
        cells = []
        base = statistics.median(found["chunk"][length]["seconds"])
        qkv = 3 * 4 * max(TOKENS, length) * args.heads * args.width
        for name in names:
            row = found[name].get(length)
            if row is None:
                cells.append("-")
                continue
            low, middle, high = (1000 * f(row["seconds"]) for f in (min, statistics.median, max))
            ratio = "" if name == "chunk" else f" {middle / 1000 / base:.1f}×"
            cells.append(f"{middle:,.0f} ms{ratio}\n({low:,.0f}-{high:,.0f})\n{row['extra'] / qkv:.1f} qkv")
        table.add_row(f"{length:,} × {max(1, TOKENS // length)}", *cells, end_section=True)
    slopes = fits(found)
    for n, what in enumerate(("time", "memory")):
        cells = (f"{slopes[name][n]:.2f}" if name in slopes else "-" for name in names)
        table.add_row(f"exponent of {what}", *cells)
    show_wide(table)
    longest = max(found["chunk"])
    total = found["chunk"][longest]["total"]
    show_wide(f"Whole process at {longest:,} tokens, chunk form: {total / 2**30:.2f} GiB at its peak")

    spent, size = decoded
    table = Table(
        title="One decoding step, batch 1", caption=f"median of {20 * DECODING_ROUNDS} interleaved steps"
    )
    for column in ("tokens before", *(f"{name}, {what}" for name in spent for what in ("µs", "state KiB"))):
        table.add_column(column, justify="right")
    for n in args.positions:
        cells = ((1e6 * statistics.median(spent[x][n]), size[x][n] / 1024) for x in spent)
        table.add_row(f"{n:,}", *(f"{value:,.0f}" for pair in cells for value in pair))
    show_wide(table)

    if not trained:
        return
    table = Table(
        title=f"Training steps of *_lm_base, {args.layers} × 512, vocabulary {args.vocab_size:,}",
        caption=f"tokens/s: median of {args.rounds} interleaved rounds; spread of a round's ratio",
    )
    for column in ("length × batch", "linear tokens/s", "softmax tokens/s", "linear / softmax", "spread"):
        table.add_column(column, justify="right")
    for length, rounds in trained.items():
        batch = max(1, TOKENS // length)
        linear, softmax = (length * batch / statistics.median(x) for x in zip(*rounds, strict=True))
        ratios = sorted(b / a for a, b in rounds)
        cells = f"{linear:,.0f}", f"{softmax:,.0f}", f"{linear / softmax:.2f}"
        table.add_row(f"{length:,} × {batch}", *cells, f"{ratios[0]:.2f}-{ratios[-1]:.2f}")
    show_wide(table)


def draw(found, path):
    """Draws time of a sequence and memory beside the inputs over its length, one line a contender."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    slopes = fits(found)
    for n, (axes, what, unit) in enumerate(
        zip(panels, ("forward + backward", "peak beyond q, k, v, gradients"), ("ms", "MiB"), strict=True)
    ):
        for (name, by_length), marker in zip(found.items(), "osD^v", strict=False):
            values = [
                (1000 * statistics.median(row["seconds"]), row["extra"] / 2**20)[n] / max(1, TOKENS // length)
                for length, row in by_length.items()
            ]
            label = f"{name} ~ n^{slopes[name][n]:.2f}" if name in slopes else name
            axes.plot(list(by_length), values, marker=marker, label=label)
        axes.set(xscale="log", yscale="log", xlabel="length n", ylabel=f"{unit} per sequence", title=what)
        axes.set_xticks(list(found["chunk"]), [f"{x:,}" for x in found["chunk"]], rotation=45)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(prog="python -m fairseq_lrpe.measure.benchmark", description=__doc__)
    default = [2**n for n in range(9, 17)]
    add = partial(parser.add_argument, type=int)
    add("--lengths", nargs="+", default=default, help="tokens a sequence (default: 512, 1024, .. 65536)")
    add("--heads", default=8, help="(default: %(default)s)")
    add("--width", default=64, help="of q, k and v in a head (default: %(default)s)")
    add("--rounds", default=7, help="measured rounds (default: %(default)s)")
    add("--positions", nargs="+", default=[64, 1024, 16384], help="tokens before a decoding step")
    add("--model-lengths", nargs="*", default=[512, 4096], help="of whole models; none: leave them out")
    add("--layers", default=6, help="of whole models (default: %(default)s)")
    add("--vocab-size", default=50265, help="of whole models: the papers' Books, %(default)s")
    add("--plot", type=Path, default=Path("results/benchmark.png"), help="(default: %(default)s)")
    args = parser.parse_args()
    refuse_less(parser, args, **{name: 1 for name in vars(args) if name != "plot"})
    args.lengths = sorted(set(args.lengths))
    try:  # before minutes of work
        args.plot.parent.mkdir(parents=True, exist_ok=True)
        args.plot.open("ab").close()
    except OSError as error:
        parser.error(f"--plot {args.plot} cannot be written ({error.strerror}): name another file")

    with Progress() as progress:
        found = measure(args, progress)
        if not found["chunk"]:
            sys.exit(
                f"benchmark: the memory of {DEVICE} is too small for --lengths {args.lengths[0]}: try less"
            )
        bar = progress.add_task("decoding", total=DECODING_ROUNDS)
        decoded = decoding(args.positions, args, lambda: progress.advance(bar))
        trained = models(args, progress)
    show(found, decoded, trained, args)
    draw(found, args.plot)
    print(f"picture: {args.plot}")


if __name__ == "__main__":
    main()
