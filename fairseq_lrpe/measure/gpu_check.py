"""Measures what only a GPU can tell, in one command and one report: ``bash scripts/gpu_check.sh``.

The machine and its roofs, the tests of ``fairseq_lrpe.ops``, how exact the device computes, attention,
training steps of language models, decoding steps. It needs torch, and fairseq for the training alone.
Without a GPU the CPU stands in, which says nothing about GPUs.
"""

import gc
import logging
import os
import re
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import torch

from fairseq_lrpe.files import REPOSITORY, new_folder
from fairseq_lrpe.measure.attention import (
    CONTENDERS,
    COUNTED_STEPS,
    DEVICE,
    decoding,
    inputs,
    peak_of_step,
    sequences,
    step,
    times,
)
from fairseq_lrpe.measure.exactness import encoding_cases, linear_attention_cases
from fairseq_lrpe.measure.gpu_report import Deadline, Part, Report
from fairseq_lrpe.measure.machine import ON_GPU, facts, has_bfloat16, processor, roofs
from fairseq_lrpe.measure.shared import measuring, seconds
from fairseq_lrpe.methods import architecture
from fairseq_lrpe.ops.linear_attention.fla import fla_lacks
from fairseq_lrpe.programs import absolute, at_least

LENGTHS = [2**n for n in range(9, 17)]
HEADS, WIDTH = 8, 64
ROUNDS, LEAST = 7, 3
"""Rounds that are counted of each length: so many, and where time is short at least these."""

TESTS = "tests/ops"
ATTENTIONS = {
    "chunk": "linear, chunk form",
    "auto": "linear, fla's kernels by linear_attention",
    "fla": "linear, fla's own function",
    "softmax": "softmax",
    "softmax float16": "softmax, float16, flash",
}
POSITIONS = [64, 1024, 16384]
DECODING_ROUNDS = 10
MODELS = [
    ("linear", "base"),
    ("linear", "rope"),
    ("linear", "tmlr_type1"),
    ("softmax", "base"),
    ("softmax", "fairseq"),
]
VOCABULARY = 267744
"""Types of fairseq's dictionary of WikiText-103."""

STAND_IN = {"layers": 2, "vocab_size": 8000, "batch_size": 2}
"""The sizes of the models on a CPU."""

TRAINING_ROUNDS, WARM_UP = 20, 3


@dataclass
class Check:
    """What is asked for, and what the first part finds for those after it."""

    lengths: list[int]
    roofs: dict = field(default_factory=dict)  # {"copy": bytes a second, dtype: operations a second}


def say(what: str) -> None:
    print(f"gpu_check: {what}", flush=True)


def first_line(error: Exception) -> str:
    """Returns the kind of an error and the first line of its message."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]]).rstrip(".")


def no_fla() -> str | None:
    """Returns why the kernels of fla are left out, as a sentence; None where they run."""
    lacks = fla_lacks(torch.device(DEVICE))
    return lacks and f"fla's kernels are left out: they need {lacks}."


def release() -> None:
    """Gives back the GPU's memory that nothing uses any more."""
    gc.collect()
    if ON_GPU:
        torch.cuda.empty_cache()


# --- the machine


def measure_machine(part: Part, deadline: Deadline, check: Check) -> None:
    """Fills in what the machine is, and how fast it copies and multiplies matrices."""
    rows = part.table("What it is")
    rows += [{"what": what, "value": value} for what, value in facts().items()]
    rows = part.table("Roofs", "The fastest of 10 calls each. A copy's bytes count as read and as written.")
    for what, roof, rate in roofs():
        check.roofs[roof] = max(rate, check.roofs.get(roof, 0.0))
        unit, one = ("GB/s", 1e9) if roof == "copy" else ("TFLOP/s", 1e12)
        rows.append({"what": what, "rate": rate / one, "unit": unit})
    release()


# --- is it right?


def measure_tests(part: Part, deadline: Deadline, check: Check) -> None:
    """Fills in how many of the tests of ``fairseq_lrpe.ops`` pass, fail and skip."""
    if missing := [name for name in ("pytest", "hypothesis") if find_spec(name) is None]:
        part.remark(f"The tests are left out: not installed are {' and '.join(missing)}.")
        return
    if not (REPOSITORY / TESTS).exists():
        part.remark(f"The tests are left out: there is no {TESTS} beside the package.")
        return
    command = [sys.executable, "-m", "pytest", TESTS, "-v", "--tb=line", "-rfE", "-p", "no:cacheprovider"]
    environment = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", **os.environ, "OMP_NUM_THREADS": "1"}  # as test.sh
    environment |= {"PYTHONUNBUFFERED": "1", "COLUMNS": "300"}  # pytest cuts reasons to the width
    settings = {"cwd": REPOSITORY, "env": environment, "stderr": subprocess.STDOUT, "text": True}
    taken = deadline.left()
    with subprocess.Popen(command, stdout=subprocess.PIPE, **settings) as process:
        try:
            printed, _ = process.communicate(timeout=deadline.left())
        except subprocess.TimeoutExpired:
            process.kill()
            printed, _ = process.communicate()
            part.remark(f"The tests were cut short after {taken:,.0f} seconds; --minutes gives them more.")
        except BaseException:
            process.kill()
            raise
    taken -= deadline.left()
    results = re.findall(r"^(\S+::.+) (PASSED|FAILED|ERROR|SKIPPED)\b", printed, re.MULTILINE)
    counts = Counter(result for _, result in results)
    columns = {"passed": "PASSED", "failed": "FAILED", "errors": "ERROR", "skipped": "SKIPPED"}
    numbers = {column: counts[result] for column, result in columns.items()}
    part.table().append({"tests": TESTS, **numbers, "seconds": taken})
    reasons = dict(re.findall(r"^(?:FAILED|ERROR) (\S+::.+?) - (.+)$", printed, re.MULTILINE))
    bad = [(name, result) for name, result in results if result in ("FAILED", "ERROR")]
    for name, result in bad[:10]:
        part.remark(f"{result}: `{name}` {reasons.get(name, '')}")
    if len(bad) > 10:
        part.remark(f"{len(bad) - 10} more tests failed.")
    if process.returncode > 1:
        part.remark(f"pytest ended with exit code {process.returncode}: {printed.strip().splitlines()[-1]}")


def measure_exactness(part: Part, deadline: Deadline, check: Check) -> None:
    """Fills in the errors of linear attention's backends and of the encodings on the device."""
    rows = part.table(
        "Causal linear attention against its definition in float64",
        f"Batch 2, {HEADS} heads × {WIDTH}. An error is the greatest one over the greatest number of the "
        "definition. fla's kernels multiply in TF32, unless TRITON_F32_DEFAULT=ieee is set.",
    )
    share = deadline.share(0.8)
    for dtype in (torch.float64, torch.float32):
        fill(rows, linear_attention_cases("chunk", dtype, DEVICE), share, part, f"the chunk form, {dtype}")
    if why := no_fla():
        part.remark(why)
    else:
        fill(rows, linear_attention_cases("fla", torch.float32, DEVICE), share, part, "fla's kernels")
    say_bound(part, rows, "of linear attention")
    rows = part.table(
        "Encodings in float32, the device against the CPU",
        "The greatest error of all that an encoding gives attention (queries and keys, bias, values, decay) "
        "over the greatest number; 300 tokens, at positions from 0 and from 100 on.",
    )
    fill(rows, encoding_cases(DEVICE), deadline, part, "the encodings")
    say_bound(part, rows, "of encodings")
    release()


def fill(rows: list[dict], cases: list[Callable], deadline: Deadline, part: Part, what: str) -> None:
    """Adds the row of each case, until the time is up or one fails, which the part then says."""
    say(f"exactness of {what}")
    for done, case in enumerate(cases):
        if not deadline.left():
            rest = f"{len(cases) - done} of {len(cases)}"
            part.remark(f"The time was up: {rest} comparisons of {what} are left out.")
            return
        try:
            rows.append(case())
        except Exception as error:
            part.remark(f"The comparisons of {what} ended with {first_line(error)}.")
            return


def say_bound(part: Part, rows: list[dict], what: str) -> None:
    """Remarks how many rows are within their bound."""
    if not rows:
        return
    errors = [[row[column] for column in row if column.startswith("error")] for row in rows]
    good = sum(all(e <= row["bound"] for e in found) for row, found in zip(rows, errors, strict=True))
    part.remark(f"{good} of {len(rows)} comparisons {what} are within their bound.")


# --- attention


def measure_attention(part: Part, deadline: Deadline, check: Check) -> None:
    """Fills in time and memory of forward and backward passes over the length, beside their floors."""
    rows = part.table(
        f"Forward and backward pass of causal attention, {HEADS} heads × {WIDTH}, float32 unless said",
        f"Medians of up to {ROUNDS} interleaved rounds. The first step compiles what is not compiled yet. "
        "Memory is the peak beyond q, k, v and all gradients. With n tokens a sequence and h heads of width "
        "d, each sequence has these floors. Traffic: 11·n·h·d numbers (the forward pass reads q, k, v and "
        "writes o; the backward pass reads q, k, v, do and writes dq, dk, dv) over the copy's rate; what "
        "fits into a cache can be faster. Arithmetic: 14·n·d²·h operations of linear attention (2 products "
        "forward and 5 backward, 2·n·d² each), 7·n²·d·h of causal softmax (2 products forward and 5 "
        "backward, n²·d each, for half of the pairs are masked), over the rate of the fastest matrix product "
        "of that dtype, in float32 with TF32 if that was measured.",
    )
    if why := no_fla():
        part.remark(why)
    if not ON_GPU:
        part.remark("Float16 and peak memory are left out: they are measured on a GPU alone.")
    names, before = [name for name in ATTENTIONS if name in CONTENDERS], {}
    for length in check.lengths:
        if not deadline.left():
            part.remark(f"Lengths from {length:,} on are left out: the time was up.")
            return
        say(f"attention, {length:,} tokens")
        share = deadline.share(1.0 if length == check.lengths[-1] else 0.5)
        first, planned = {}, 0.0
        for name in names:
            shorter, taken = before.get(name, (length, 0.0))
            needed = (LEAST + 2) * taken * operations(name, length) / operations(name, shorter)
            if planned + needed > share.left():
                why = "its steps would take longer than the time that is left"
            else:
                planned += needed
                why, first[name] = tried(name, length)
            if why:
                part.remark(f"From {length:,} tokens on {ATTENTIONS[name]} is left out: {why}.")
                first.pop(name, None)
            release()
        names = list(first)
        if not names:
            return
        try:
            spent = times(names, length, HEADS, WIDTH, share.rounds(ROUNDS + 1, LEAST + 1))
        except torch.OutOfMemoryError:
            part.remark(f"Lengths from {length:,} on are left out: they do not fit into memory.")
            return
        for name, values in spent.items():
            before[name] = length, statistics.median(values)
            rows.append(attention_row(name, length, values, *first[name], check.roofs))


def operations(name: str, length: int) -> int:
    """Returns the operations of a step, as the caption of the table counts them."""
    each = 7 * length**2 * WIDTH if name.startswith("softmax") else 14 * length * WIDTH**2
    return sequences(length) * HEADS * each


def tried(name: str, length: int) -> tuple[str, tuple[float, int | None] | None]:
    """Returns why a step cannot be taken, or nothing, and its (seconds, peak memory in bytes on a GPU)."""
    try:
        given = inputs(name, length, HEADS, WIDTH)
        taken = seconds(partial(step, name, *given))
        return "", (taken, peak_of_step(name, *given)[0] if ON_GPU else None)
    except torch.OutOfMemoryError:
        return "it does not fit into memory", None
    except Exception as error:
        return first_line(error), None


def attention_row(
    name: str, length: int, spent: list[float], first: float, memory: int | None, roofs: dict
) -> dict:
    """Returns the row of a contender at a length."""
    batch, dtype = sequences(length), CONTENDERS[name].dtype
    moved = 11 * batch * length * HEADS * WIDTH * dtype.itemsize
    traffic = 1000 * moved / roofs["copy"] if "copy" in roofs else None
    arithmetic = 1000 * operations(name, length) / roofs[dtype] if dtype in roofs else None
    median = 1000 * statistics.median(spent)
    floor = max(traffic or 0.0, arithmetic or 0.0)
    return {
        "length × batch": f"{length:,} × {batch}",
        "attention": ATTENTIONS[name],
        "median, ms": median,
        "least, ms": 1000 * min(spent),
        "greatest, ms": 1000 * max(spent),
        "rounds": len(spent),
        "first step, ms": 1000 * first,
        "traffic floor, ms": traffic,
        "arithmetic floor, ms": arithmetic,
        "median / greater floor": median / floor if floor else None,
        "memory, MiB": None if memory is None else memory / 2**20,
    }


# --- training


def measure_training(part: Part, deadline: Deadline, check: Check) -> None:
    """Fills in the tokens a second and the peak memory of training steps of whole language models."""
    logging.disable(logging.WARNING)  # fairseq's log of each model, and of memory that does not suffice
    try:
        from omegaconf import OmegaConf

        from fairseq_lrpe.measure import speed
    except ImportError as error:
        part.remark(f"Training is left out: it needs fairseq and what setup.py names beside it, and {error}.")
        return
    cfg = OmegaConf.load(REPOSITORY / "configs/lm/wikitext103.yaml")
    flags = OmegaConf.to_container(cfg.train)
    del flags["sample_break_mode"]  # random tokens have no lines
    size = {"layers": flags["decoder_layers"], "vocab_size": VOCABULARY, "batch_size": cfg.batch.per_gpu}
    if not ON_GPU:
        size = STAND_IN
        part.remark("On a CPU the models are smaller than the papers', and compute in float32.")
    args = Namespace(family="lm", length=flags["tokens_per_sample"], **size)
    rows = part.table(
        f"Training steps of language models, {args.layers} × {flags['decoder_embed_dim']}, "
        f"{flags['decoder_attention_heads']} heads, vocabulary {args.vocab_size:,}",
        f"Random tokens, the flags of configs/lm/wikitext103.yaml; medians of up to {TRAINING_ROUNDS} "
        f"interleaved steps (forward, backward, update) after {WARM_UP}. Memory is the peak of a step, with "
        f"the model and its optimizer. Linear attention is by {'the chunk form' if no_fla() else 'fla'}.",
    )
    precisions = {"float32": {}}
    if ON_GPU:
        precisions = {"fp16": {"fp16": True}, "bf16": {"bf16": True}}
        if not has_bfloat16():
            del precisions["bf16"]
            part.remark("bf16 is left out: it needs compute capability 8.0.")
    for done, (precision, given) in enumerate(precisions.items()):
        share = deadline.share(1 / (len(precisions) - done))
        train = partial(speed.training_step, **flags, **given)
        while args.batch_size:
            say(f"training, {precision}, {args.batch_size} × {args.length:,} tokens")
            try:
                rows += trained(train, args, precision, share, part)
                break
            except torch.OutOfMemoryError:
                part.remark(f"{precision}: {args.batch_size} sequences a step do not fit into memory.")
            args.batch_size //= 2
            release()
        release()


def trained(train: Callable, args: Namespace, precision: str, deadline: Deadline, part: Part) -> list[dict]:
    """Returns the rows of all models in one precision, their steps in turn."""
    steps, memory, spent = {}, {}, {}
    for attention, method in MODELS:
        arch = architecture(attention, args.family, method)
        if not deadline.left():
            part.remark(f"{precision}: {arch} is left out: the time was up.")
            continue
        try:
            steps[arch], memory[arch] = warmed_up(train, arch, args)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            part.remark(f"{precision}: {arch} is left out: {first_line(error)}.")
    updates = {arch: take() for arch, take in steps.items()}
    for _ in deadline.rounds(TRAINING_ROUNDS, LEAST):
        for arch, take in steps.items():
            spent.setdefault(arch, []).append(seconds(take))
    tokens = args.batch_size * args.length
    rows = []
    for arch, take in steps.items():
        missed = len(spent[arch]) + 1 - (take() - updates[arch])
        if missed:
            part.remark(f"{precision}: {missed} steps of {arch} overflowed and made no update.")
        rows.append(
            {
                "model": arch,
                "precision": precision,
                "tokens a step": f"{args.batch_size} × {args.length:,}",
                "tokens/s": tokens / statistics.median(spent[arch]),
                "least tokens/s": tokens / max(spent[arch]),
                "greatest tokens/s": tokens / min(spent[arch]),
                "steps": len(spent[arch]),
                "memory, GiB": None if memory[arch] is None else memory[arch] / 2**30,
            }
        )
    return rows


def warmed_up(train: Callable, arch: str, args: Namespace) -> tuple[Callable[[], int], int | None]:
    """Returns a model's training step after a few, and on a GPU its peak memory in bytes."""
    before = torch.cuda.memory_allocated() if ON_GPU else 0
    take = train(arch, args)
    for _ in range(WARM_UP):
        take()
    if not ON_GPU:
        return take, None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    with patch("torch.cuda.reset_peak_memory_stats"):  # fairseq calls it at the end of a step
        take()
    torch.cuda.synchronize()
    return take, torch.cuda.max_memory_allocated() - before


# --- decoding


def measure_decoding(part: Part, deadline: Deadline, check: Check) -> None:
    """Fills in the time of a decoding step after a prefix, and the size of what is kept of it."""
    found = decoding(POSITIONS, HEADS, WIDTH, deadline.rounds(DECODING_ROUNDS, 1))
    rows = part.table(
        f"One decoding step, batch 1, {HEADS} heads × {WIDTH}, float32",
        f"Medians of {COUNTED_STEPS} steps in each of up to {DECODING_ROUNDS} interleaved rounds.",
    )
    for n in POSITIONS:
        (linear, state), (softmax, cache) = found["chunk"][n], found["softmax"][n]
        rows.append(
            {
                "tokens before": n,
                "linear, µs": 1e6 * statistics.median(linear),
                "its state, KiB": state / 1024,
                "softmax, µs": 1e6 * statistics.median(softmax),
                "its keys and values, KiB": cache / 1024,
            }
        )
    release()


PARTS = [  # heading, function, weight of its share of the time
    ("Machine", measure_machine, 1),
    ("Tests", measure_tests, 6),
    ("Exactness", measure_exactness, 3),
    ("Attention", measure_attention, 6),
    ("Training", measure_training, 6),
    ("Decoding", measure_decoding, 1),
]


def new_report(minutes: int) -> Report:
    """Returns a report without parts that says where and how it was measured."""
    asked = f"This is `bash scripts/gpu_check.sh --minutes {minutes}` on {datetime.now(UTC):%Y-%m-%d}."
    title, opening = "GPU check, measured on a CPU", asked
    if ON_GPU:
        title = f"GPU check of {torch.cuda.get_device_name()}"
    else:
        opening = (
            f"**This was measured on a CPU, {processor()}, and says nothing about GPUs.** torch saw no "
            f"GPU; on a machine with one the same command measures that. {asked}"
        )
    return Report(title, DEVICE, opening, [heading for heading, *_ in PARTS])


def fill_report(report: Report, folder: Path, lengths: list[int], minutes: int) -> None:
    """Measures all parts and writes the report after each."""
    whole, check = Deadline(60 * minutes), Check(lengths)
    for number, (heading, measure, weight) in enumerate(PARTS):
        say(heading.lower())
        part = Part(heading)
        report.parts.append(part)
        share = weight / sum(weight for *_, weight in PARTS[number:])
        start = time.monotonic()
        try:
            if whole.left():
                measure(part, whole.share(share), check)
            else:
                part.remark("This part is left out: the time was up; --minutes gives more.")
        except Exception as error:
            part.remark(f"This part ended with {first_line(error)}.")
        except BaseException:
            report.write(folder)
            raise
        part.minutes = (time.monotonic() - start) / 60
        report.missing.remove(heading)
        report.write(folder)


def main():
    parser = ArgumentParser(prog="bash scripts/gpu_check.sh", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=at_least(1), default=8, help="about how long it may take (default: %(default)s)")
    add("--out", type=absolute, default=REPOSITORY / "results/gpu_check", help="(default: results/gpu_check)")
    add("--lengths", type=at_least(1), nargs="+", default=LENGTHS, help="(default: 512, 1024, .. 65536)")
    args = parser.parse_args()
    with measuring("gpu_check"), new_folder(args.out):
        report = new_report(args.minutes)
        report.write(args.out)
        try:
            fill_report(report, args.out, sorted(set(args.lengths)), args.minutes)
        except KeyboardInterrupt:
            sys.exit(f"gpu_check: interrupted; {args.out} has what was measured before")
        say(f"the report is {args.out / 'gpu_check.md'}")


if __name__ == "__main__":
    main()
