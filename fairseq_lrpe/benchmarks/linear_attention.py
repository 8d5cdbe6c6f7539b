"""Compares linear attention with its alternatives over the sequence length.

Measures the time of forward and backward passes of attention in float32, in interleaved rounds, and their
peak memory, each in a new process. Also measures the time of decoding steps after a prefix, and of training
steps of language models.
"""

import statistics
from argparse import Namespace

import torch
from rich.progress import track

from fairseq_lrpe.benchmarks import attention, shared
from fairseq_lrpe.benchmarks.attention import batch_size
from fairseq_lrpe.utils.cli import image_path, min_int, print_wide
from fairseq_lrpe.utils.files import save_figure

NAMES = [name for name, item in attention.IMPLEMENTATIONS.items() if item.dtype is torch.float32]
SLOW = 1.0
"""Seconds of a step above which an implementation is not measured at greater lengths."""

DECODING_ROUNDS = 10


def measure(args: Namespace) -> dict[str, dict[int, dict]]:
    """Measures the time and the peak memory of forward and backward passes.

    Returns:
        {name: {length: {"seconds": [..], "extra": bytes beyond the inputs and gradients, "total": bytes}}}.
    """
    results = {name: {} for name in NAMES}
    names = list(NAMES)
    for length in track(args.lengths, "time"):
        try:
            times = attention.step_times(names, length, args.heads, args.width, range(args.rounds + 1))
        except torch.OutOfMemoryError:
            break
        for name, taken in times.items():
            results[name][length] = {"seconds": taken}
        # The chunk form is always measured because all others are compared with it.
        names = [name for name in names if name == "chunk" or statistics.median(times[name]) < SLOW]
    rows = [(name, length, row) for name in results for length, row in results[name].items()]
    for name, length, row in track(rows, "memory"):
        sizes = name, length, args.heads, args.width
        row["extra"], row["total"] = shared.in_new_process(attention.peak_memory, *sizes)
    return results


def measure_models(args: Namespace) -> dict[int, list[tuple[float, float]]]:
    """Returns {length: [(seconds of a step of linear_lm_base, of softmax_lm_base) in each round]}."""
    from fairseq_lrpe.benchmarks.speed import compare

    def sizes(length):
        return Namespace(**vars(args), family="lm", length=length, batch_size=batch_size(length))

    return {n: compare("linear_lm_base", "softmax_lm_base", sizes(n)) for n in args.model_lengths}


def per_sequence(by_length: dict[int, dict]) -> dict[int, tuple[float, float]]:
    """Returns {length: (median seconds, "extra" bytes)} per sequence of a batch, for one implementation."""
    return {
        n: (statistics.median(row["seconds"]) / batch_size(n), row["extra"] / batch_size(n))
        for n, row in by_length.items()
    }


def fit_exponents(results: dict) -> dict[str, tuple[float, float]]:
    """Returns {name: (exponent of time, exponent of memory)} over the length.

    They are fitted to the lengths of at least TOKENS or, if these are fewer than three, to the last three.
    """
    exponents = {}
    for name, by_length in results.items():
        rows = list(per_sequence(by_length).items())
        long = [row for row in rows if row[0] >= attention.TOKENS]
        lengths, values = zip(*(long if len(long) > 2 else rows[-3:]), strict=True)
        if len(lengths) > 1:
            columns = zip(*values, strict=True)
            exponents[name] = tuple(attention.scaling_exponent(lengths, column) for column in columns)
    return exponents


def print_attention(results: dict, args: Namespace) -> None:
    """Prints a table of the time and memory of forward and backward passes."""

    def cell(name, length):
        row = results[name].get(length)
        if row is None:
            return None
        low, median, high = (1000 * f(row["seconds"]) for f in (min, statistics.median, max))
        relative = median / 1000 / statistics.median(results["chunk"][length]["seconds"])
        ratio = "" if name == "chunk" else f" {relative:.1f}×"
        qkv = 3 * 4 * max(attention.TOKENS, length) * args.heads * args.width
        return f"{median:,.0f} ms{ratio}\n({low:,.0f}-{high:,.0f})\n{row['extra'] / qkv:.1f} qkv"

    table = shared.Table(
        f"Forward + backward, {args.heads} heads × {args.width}, float32, {shared.DEVICE}",
        f"ms: median of {args.rounds} interleaved rounds (minimum-maximum); ×: relative to chunk; "
        "qkv: peak memory beyond q, k, v and all gradients, in multiples of q, k and v together",
    )
    for length in results["chunk"]:
        row = {"length × batch": f"{length:,} × {batch_size(length)}"}
        table.rows.append(row | {name: cell(name, length) for name in results})
    exponents = fit_exponents(results)
    for index, quantity in enumerate(("time", "memory")):
        row = {"length × batch": f"exponent of {quantity}"}
        table.rows.append(row | {name: exponents.get(name, (None, None))[index] for name in results})
    table.print()
    length, row = max(results["chunk"].items())
    print_wide(f"Peak memory of the process at {length:,} tokens, chunk: {row['total'] / 2**30:.2f} GiB")


def print_decoding(results: dict[str, dict], positions: list[int]) -> None:
    """Prints a table of the time of decoding steps."""
    steps = attention.DECODING_STEPS * DECODING_ROUNDS
    table = shared.Table("One decoding step, batch 1", f"median of {steps} interleaved steps")
    for n in positions:
        row = {"tokens before": n}
        for name, (times, size) in ((name, by_prefix[n]) for name, by_prefix in results.items()):
            row |= {f"{name}, µs": 1e6 * statistics.median(times), f"{name}, state KiB": size / 1024}
        table.rows.append(row)
    table.print()


def print_models(results: dict[int, list], args: Namespace) -> None:
    """Prints a table of the training speed of language models."""
    table = shared.Table(
        f"Training steps of *_lm_base, {args.layers} × 512, vocabulary {args.vocab_size:,}",
        f"tokens/s: median of {args.rounds} interleaved rounds; spread: range of the rounds' ratios",
    )
    for length, rounds in results.items():
        batch = batch_size(length)
        linear, softmax = (length * batch / statistics.median(x) for x in zip(*rounds, strict=True))
        row = {"length × batch": f"{length:,} × {batch}"}
        row |= {"linear tokens/s": linear, "softmax tokens/s": softmax}
        row |= {"linear / softmax": linear / softmax, "spread": shared.ratios(rounds)[1]}
        table.rows.append(row)
    table.print()


def plot(results: dict, path) -> None:
    """Plots the time and memory per sequence over the length, with one line per implementation."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    exponents = fit_exponents(results)
    panels = ("forward + backward", "ms", 1000), ("peak beyond q, k, v, gradients", "MiB", 2**-20)
    for n, (axes, (title, unit, scale)) in enumerate(zip(figure.subplots(1, 2), panels, strict=True)):
        for (name, by_length), marker in zip(results.items(), "osD^v", strict=False):
            values = [row[n] * scale for row in per_sequence(by_length).values()]
            label = f"{name} ~ n^{exponents[name][n]:.2f}" if name in exponents else name
            axes.plot(list(by_length), values, marker=marker, label=label)
        axes.set(xscale="log", yscale="log", xlabel="length n", ylabel=f"{unit} per sequence", title=title)
        axes.set_xticks(list(results["chunk"]), [f"{x:,}" for x in results["chunk"]], rotation=45)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    save_figure(figure, path, dpi=150)


def main(arguments: list[str] | None = None) -> None:
    parser = shared.BenchmarkParser("linear-attention", __doc__)
    parser.add_int("--lengths", [2**n for n in range(9, 17)], "sequence lengths of attention in tokens")
    parser.add_int("--heads", 8, "number of attention heads")
    parser.add_int("--width", 64, "dimension of q, k and v per head")
    parser.add_int("--positions", [64, 1024, 16384], "numbers of tokens before a decoding step")
    help = "sequence lengths of language models in tokens; empty: measure none (default: %(default)s)"
    parser.add_argument("--model-lengths", type=min_int(1), nargs="*", default=[512, 4096], help=help)
    parser.add_sizes(rounds=7, layers=6, vocab_size=50265)
    help = "image file for the plot (default: %(default)s)"
    parser.add_argument("--plot", type=image_path, default="results/benchmark.png", help=help)
    args = parser.parse_args(arguments)
    args.lengths = sorted(set(args.lengths))
    with shared.measuring(parser.prog):
        results = measure(args)
        if not results["chunk"]:
            raise ValueError(f"out of memory at --lengths {args.lengths[0]}: try smaller lengths")
        rounds = track(range(DECODING_ROUNDS), "decoding")
        decoding = attention.decoding_times(args.positions, args.heads, args.width, rounds)
        models = measure_models(args)
        print_attention(results, args)
        print_decoding(decoding, args.positions)
        if models:
            print_models(models, args)
        plot(results, args.plot)
        print(f"plot: {args.plot}")
