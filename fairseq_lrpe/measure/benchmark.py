"""Measures linear attention beside its alternatives: time, memory and decoding over the length.

``python -m fairseq_lrpe.measure.benchmark`` measures the forward and backward pass of attention (float32,
every contender in turn, several rounds), its peak memory in a process of its own, a decoding step after a
prefix, and training steps of whole language models; it prints tables and draws a picture.
"""

import logging
import math
import statistics
import sys
from argparse import ArgumentParser, Namespace
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import track
from rich.table import Table

from fairseq_lrpe.measure.shared import numbers, seconds, spread
from fairseq_lrpe.ops import linear_attention
from fairseq_lrpe.ops.linear_attention.fla import fla_can
from fairseq_lrpe.programs import at_least, show_wide

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOKENS = 4096
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


def sequences(length):
    """Returns how many sequences a batch has: as many as make TOKENS tokens, and at least one."""
    return max(1, TOKENS // length)


def inputs(length, heads, width):
    """Returns q, k and v, positive as behind a feature map, and a gradient of the output."""
    g = torch.Generator().manual_seed(0)
    shape = sequences(length), heads, length, width
    q, k, v, gradient = (torch.rand(shape, generator=g).to(DEVICE) for _ in range(4))
    return [x.requires_grad_() for x in (q, k, v)], gradient


def step(name, qkv, gradient):
    """Runs forward and backward; the gradients are made anew, as in a training step after ``zero_grad``."""
    for x in qkv:
        x.grad = None
    CONTENDERS[name](*qkv).backward(gradient)


def times(names, length, args):
    """Returns {name: seconds of every round}, the names in turn, after a first round that is not counted."""
    qkv, gradient = inputs(length, args.heads, args.width)
    found = {name: [] for name in names}
    for _ in range(args.rounds + 1):
        for name in names:
            found[name].append(seconds(partial(step, name, qkv, gradient)))
    return {name: spent[1:] for name, spent in found.items()}


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


def decoding(args):
    """Returns {name: {tokens before: (seconds of every step after them, bytes of the state)}}."""
    linear = partial(linear_attention, causal=True, normalize=True, return_state=True)

    def softmax(q, k, v, state):
        k, v = (torch.cat(pair, dim=2) for pair in zip(state, (k, v), strict=True))
        return F.scaled_dot_product_attention(q, k, v)

    def random(length):
        return [torch.rand(1, args.heads, length, args.width, device=DEVICE) for _ in range(3)]

    found, steps, token = {"chunk": {}, "softmax": {}}, [], random(1)
    for n in args.positions:
        q, k, v = random(n)
        for name, function, state in (("chunk", linear, linear(q, k, v)[1]), ("softmax", softmax, (k, v))):
            found[name][n] = [], sum(x.nbytes for x in state)
            steps.append((partial(function, *token, state=state), found[name][n][0]))
    for _ in track(range(DECODING_ROUNDS), "decoding"):
        for function, spent in steps:
            now = [seconds(function) for _ in range(30)]
            spent += now[10:]  # the first find the caches as another contender left them
    return found


def exponent(lengths, values):
    """Returns the slope of log value over log length, by least squares; nan where a value is not above 0."""
    if min(values) <= 0:  # memory of tiny inputs: what earlier steps left free
        return math.nan
    return statistics.linear_regression(*([math.log(a) for a in row] for row in (lengths, values))).slope


def measure(args):
    """Returns {name: {length: {"seconds": [..], "extra": bytes, "total": bytes}}}."""
    found = {name: {} for name in CONTENDERS}
    names = list(CONTENDERS)
    for length in track(args.lengths, "time"):
        try:
            for name, spent in times(names, length, args).items():
                found[name][length] = {"seconds": spent}
        except torch.OutOfMemoryError:
            break
        # The chunk form stays: it is what all others are compared with.
        names = [n for n in names if n == "chunk" or statistics.median(found[n][length]["seconds"]) < SLOW]
    rows = [(name, length, row) for name in found for length, row in found[name].items()]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as fresh:
        for name, length, row in track(rows, "memory"):
            row["extra"], row["total"] = fresh.submit(peak, name, length, args.heads, args.width).result()
    return found


def models(args):
    """Returns {length: [(seconds of linear_lm_base, of softmax_lm_base) of every round]}."""
    from fairseq_lrpe.measure.speed import compare

    logging.disable(logging.INFO)
    found = {}
    for length in args.model_lengths:
        size = Namespace(**vars(args), family="lm", length=length, batch_size=sequences(length))
        found[length] = compare("linear_lm_base", "softmax_lm_base", size)
    return found


def per_sequence(by_length):
    """Returns {length: (seconds, bytes beyond the inputs)} of one sequence of a batch."""
    return {
        n: (statistics.median(row["seconds"]) / sequences(n), row["extra"] / sequences(n))
        for n, row in by_length.items()
    }


def fits(found):
    """Returns {name: (exponent of time, of memory)} over the lengths from 4,096 on, or the last three."""
    result = {}
    for name, by_length in found.items():
        rows = list(per_sequence(by_length).items())
        long = [row for row in rows if row[0] >= TOKENS]
        lengths, values = zip(*(long if len(long) > 2 else rows[-3:]), strict=True)
        if len(lengths) > 1:
            result[name] = tuple(exponent(lengths, each) for each in zip(*values, strict=True))
    return result


def show(found, decoded, trained, args):
    """Prints the tables of attention, of decoding steps and of whole models."""
    table = Table(
        *numbers("length × batch", *found),
        title=f"Forward + backward, {args.heads} heads × {args.width}, float32, {DEVICE}",
        caption=f"ms: median of {args.rounds} interleaved rounds (least-greatest); ×: of the chunk form's; "
        "qkv: peak memory beyond q, k, v and all gradients, in multiples of q, k and v together",
    )
    for length, chunk in found["chunk"].items():
        cells = []
        qkv = 3 * 4 * max(TOKENS, length) * args.heads * args.width
        for name, by_length in found.items():
            row = by_length.get(length)
            if row is None:
                cells.append("-")
                continue
            low, middle, high = (1000 * f(row["seconds"]) for f in (min, statistics.median, max))
            times_chunk = middle / 1000 / statistics.median(chunk["seconds"])
            ratio = "" if name == "chunk" else f" {times_chunk:.1f}×"
            cells.append(f"{middle:,.0f} ms{ratio}\n({low:,.0f}-{high:,.0f})\n{row['extra'] / qkv:.1f} qkv")
        table.add_row(f"{length:,} × {sequences(length)}", *cells, end_section=True)
    slopes = fits(found)
    for n, what in enumerate(("time", "memory")):
        cells = (f"{slopes[name][n]:.2f}" if name in slopes else "-" for name in found)
        table.add_row(f"exponent of {what}", *cells)
    show_wide(table)
    longest, row = max(found["chunk"].items())
    show_wide(f"Whole process at {longest:,} tokens, chunk form: {row['total'] / 2**30:.2f} GiB at its peak")

    columns = (f"{name}, {what}" for name in decoded for what in ("µs", "state KiB"))
    caption = f"median of {20 * DECODING_ROUNDS} interleaved steps"
    table = Table(*numbers("tokens before", *columns), title="One decoding step, batch 1", caption=caption)
    for n in args.positions:
        cells = []
        for spent, size in (by_position[n] for by_position in decoded.values()):
            cells += f"{1e6 * statistics.median(spent):,.0f}", f"{size / 1024:,.0f}"
        table.add_row(f"{n:,}", *cells)
    show_wide(table)

    if not trained:
        return
    table = Table(
        *numbers("length × batch", "linear tokens/s", "softmax tokens/s", "linear / softmax", "spread"),
        title=f"Training steps of *_lm_base, {args.layers} × 512, vocabulary {args.vocab_size:,}",
        caption=f"tokens/s: median of {args.rounds} interleaved rounds; spread of a round's ratio",
    )
    for length, rounds in trained.items():
        batch = sequences(length)
        linear, softmax = (length * batch / statistics.median(x) for x in zip(*rounds, strict=True))
        cells = f"{linear:,.0f}", f"{softmax:,.0f}", f"{linear / softmax:.2f}", spread(rounds)
        table.add_row(f"{length:,} × {batch}", *cells)
    show_wide(table)


def draw(found, path):
    """Draws time of a sequence and memory beside the inputs over its length, one line a contender."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    panels = figure.subplots(1, 2)
    slopes = fits(found)
    panel = zip(panels, ("forward + backward", "peak beyond q, k, v, gradients"), ("ms", "MiB"), strict=True)
    for n, (axes, what, unit) in enumerate(panel):
        for (name, by_length), marker in zip(found.items(), "osD^v", strict=False):
            values = [row[n] * (1000, 2**-20)[n] for row in per_sequence(by_length).values()]
            label = f"{name} ~ n^{slopes[name][n]:.2f}" if name in slopes else name
            axes.plot(list(by_length), values, marker=marker, label=label)
        axes.set(xscale="log", yscale="log", xlabel="length n", ylabel=f"{unit} per sequence", title=what)
        axes.set_xticks(list(found["chunk"]), [f"{x:,}" for x in found["chunk"]], rotation=45)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)


def main():
    parser = ArgumentParser(prog="python -m fairseq_lrpe.measure.benchmark", description=__doc__)
    default = [2**n for n in range(9, 17)]
    add = partial(parser.add_argument, type=at_least(1))
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
    args.lengths = sorted(set(args.lengths))
    try:  # before minutes of work
        args.plot.parent.mkdir(parents=True, exist_ok=True)
        args.plot.open("ab").close()
    except OSError as error:
        parser.error(f"--plot {args.plot} cannot be written ({error.strerror}): name another file")

    found = measure(args)
    if not found["chunk"]:
        sys.exit(f"benchmark: the memory of {DEVICE} is too small for --lengths {args.lengths[0]}: try less")
    show(found, decoding(args), models(args), args)
    draw(found, args.plot)
    print(f"picture: {args.plot}")


if __name__ == "__main__":
    main()
