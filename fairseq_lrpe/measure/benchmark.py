"""Measures linear attention beside its alternatives: time, memory and decoding over the length.

``python -m fairseq_lrpe.measure.benchmark`` measures the forward and backward pass of attention (float32,
every contender in turn, several rounds), its peak memory in a process of its own, a decoding step after a
prefix, and training steps of whole language models; it prints tables and draws a picture.
"""

import logging
import statistics
from argparse import ArgumentParser, Namespace
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import torch
from rich.progress import track
from rich.table import Table

from fairseq_lrpe.measure.attention import (
    CONTENDERS,
    COUNTED_STEPS,
    DEVICE,
    TOKENS,
    decoding,
    exponent,
    peak,
    sequences,
    times,
)
from fairseq_lrpe.measure.shared import measuring, numbers, spread
from fairseq_lrpe.programs import at_least, picture, show_wide

NAMES = [name for name, contender in CONTENDERS.items() if contender.dtype is torch.float32]
SLOW = 1.0
"""Seconds; what takes longer is not measured at greater lengths."""

DECODING_ROUNDS = 10


def measure(args):
    """Returns {name: {length: {"seconds": [..], "extra": bytes, "total": bytes}}}."""
    found = {name: {} for name in NAMES}
    names = list(NAMES)
    for length in track(args.lengths, "time"):
        try:
            for name, spent in times(names, length, args.heads, args.width, range(args.rounds + 1)).items():
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
    caption = f"median of {COUNTED_STEPS * DECODING_ROUNDS} interleaved steps"
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
    add(
        "--vocab-size",
        type=at_least(5),
        default=50265,
        help="of whole models: the papers' Books, %(default)s",
    )
    add("--plot", type=picture, default="results/benchmark.png", help="(default: %(default)s)")
    args = parser.parse_args()
    args.lengths = sorted(set(args.lengths))
    with measuring("benchmark"):
        found = measure(args)
        if not found["chunk"]:
            raise ValueError(f"the memory of {DEVICE} is too small for --lengths {args.lengths[0]}: try less")
        rounds = track(range(DECODING_ROUNDS), "decoding")
        show(found, decoding(args.positions, args.heads, args.width, rounds), models(args), args)
        args.plot.parent.mkdir(parents=True, exist_ok=True)
        draw(found, args.plot)
        print(f"picture: {args.plot}")


if __name__ == "__main__":
    main()
