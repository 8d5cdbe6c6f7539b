"""Runs all tests and measurements that need a GPU, and writes a report: ``bash scripts/gpu_check.sh``.

The parts of the report, in this order, are the machine; the tests of ``fairseq_lrpe.ops`` and the numerical
errors on the device; the speed of attention, of a layer, of training steps of language models and of
decoding; and trainings of RoPER's addition and index, of small language models and of Long-Range Arena. Each
part is written when it is done. The check stops when the time is over, and the same command continues
with the missing parts. Training requires fairseq and prepared data; the other parts require only torch.
Without a GPU, the CPU is measured instead, with smaller sizes.
"""

import gc
import logging
import os
import re
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import torch

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention
from fairseq_lrpe.benchmarks import attention as bench
from fairseq_lrpe.benchmarks import machine
from fairseq_lrpe.benchmarks.exactness import IEEE, encoding_cases, linear_attention_cases, method_options
from fairseq_lrpe.benchmarks.gpu_report import Deadline, Part, Report
from fairseq_lrpe.benchmarks.shared import (
    DEVICE,
    BenchmarkParser,
    in_new_process,
    interleave,
    measuring,
    seconds,
)
from fairseq_lrpe.encodings import build_encoding
from fairseq_lrpe.methods import METHODS, architecture
from fairseq_lrpe.ops.linear_attention.triton import fla_missing_requirement
from fairseq_lrpe.utils.cli import abs_path
from fairseq_lrpe.utils.files import CONFIGS, REPOSITORY, output_folder

HEADS, WIDTH = 8, 64
ROUNDS, MIN_ROUNDS = 7, 3
"""Number of measured rounds per length, and the minimum number when time is short."""

TESTS = "tests/ops"
ATTENTIONS = {
    "chunk": "linear, chunk form",
    "chunk float16": "linear, chunk form, float16",
    "auto": "linear, fla's kernels by linear_attention",
    "auto bfloat16": "linear, fla's kernels by linear_attention, bfloat16",
    "fla": "linear, fla's own function",
    "fla bfloat16": "linear, fla's own function, bfloat16",
    "masked n × n": "linear, masked n × n",
    "softmax": "softmax",
    "softmax float16": "softmax, float16, flash",
}
LAYERS = [("linear", "base"), ("linear", "rope"), ("linear", "tmlr_type1")]
LAYERS += [("softmax", "base"), ("softmax", "rope")]
LAYER_LENGTHS = [512, 4096]
PREFIXES = [64, 1024, 16384]
DECODING_ROUNDS = 10
MODELS = [("linear", "base"), ("linear", "rope"), ("linear", "tmlr_type1")]
MODELS += [("softmax", "base"), ("softmax", "fairseq")]
VOCAB_SIZE = 267744  # size of WikiText-103's vocabulary
CPU_SIZES = {"layers": 2, "vocab_size": 8000, "batch_size": 2}
TRAINING_ROUNDS, WARM_UP = 20, 3


@dataclass
class Check:
    """The sequence lengths of attention, the report's folder, and the peak rates of the first part."""

    lengths: list[int]
    folder: Path
    peak_rates: dict = field(default_factory=dict)  # {"copy": bytes per second, dtype: operations per second}


def log(message: str) -> None:
    """Prints a message about the progress."""
    print(f"gpu_check: {message}", flush=True)


def describe_error(error: Exception) -> str:
    """Returns the type of an error and the first line of its message."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]]).rstrip(".")


def fla_remark() -> str | None:
    """Returns a remark if the kernels of flash-linear-attention (fla) cannot run, else None."""
    missing = fla_missing_requirement(torch.device(DEVICE))
    return missing and f"The kernels of flash-linear-attention (fla) are skipped: they need {missing}."


def release_memory() -> None:
    """Frees unreferenced tensors and cached GPU memory."""
    gc.collect()
    if machine.ON_GPU:
        torch.cuda.empty_cache()


def measure_machine(part: Part, deadline: Deadline, check: Check) -> None:
    """Describes the machine, and measures how fast it copies memory and multiplies matrices."""
    rows = part.table("Hardware and software")
    rows += [{"what": name, "value": value} for name, value in machine.describe_machine().items()]
    rows = part.table(
        "Peak rates", "Fastest of 10 calls. The rate of a copy counts the bytes read and written."
    )
    for name, key, rate in machine.measure_peak_rates():
        check.peak_rates[key] = max(rate, check.peak_rates.get(key, 0.0))
        unit, scale = ("GB/s", 1e9) if key == "copy" else ("TFLOP/s", 1e12)
        rows.append({"what": name, "rate": rate / scale, "unit": unit})


def measure_tests(part: Part, deadline: Deadline, check: Check) -> None:
    """Runs the tests of ``fairseq_lrpe.ops`` and adds the numbers of results and the failures."""
    if missing := [name for name in ("pytest", "hypothesis") if find_spec(name) is None]:
        part.skip(f"The tests are skipped: {' and '.join(missing)} must be installed.")
        return
    if not (REPOSITORY / TESTS).exists():
        part.remark(f"The tests are skipped: the folder {TESTS} is missing.")
        return
    command = [sys.executable, "-m", "pytest", TESTS, "-v", "--tb=line", "-rfE", "-p", "no:cacheprovider"]
    command += ["--ignore", f"{TESTS}/linear_attention/test_interpreter.py"]  # runs the kernels on the CPU
    # The same settings as in scripts/test.sh.
    environment = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", **os.environ, "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONUNBUFFERED": "1", "COLUMNS": "300"}  # pytest truncates messages to the width
    settings = {"cwd": REPOSITORY, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    limit, start, code = deadline.left(), time.monotonic(), 0
    try:
        process = subprocess.run(command, timeout=limit, **settings)
        output, code = process.stdout, process.returncode
    except subprocess.TimeoutExpired as error:
        output = error.output or b""
        part.skip(f"The tests were stopped after {limit:,.0f} seconds: increase --minutes.")
    taken, output = time.monotonic() - start, output.decode(errors="replace")
    results = re.findall(r"^(\S+::.+) (PASSED|FAILED|ERROR|SKIPPED)\b", output, re.MULTILINE)
    counts = Counter(result for _, result in results)
    columns = {"passed": "PASSED", "failed": "FAILED", "errors": "ERROR", "skipped": "SKIPPED"}
    numbers = {column: counts[result] for column, result in columns.items()}
    part.table().append({"tests": TESTS, **numbers, "seconds": taken})
    reasons = dict(re.findall(r"^(?:FAILED|ERROR) (\S+::.+?) - (.+)$", output, re.MULTILINE))
    failures = [(name, result) for name, result in results if result in ("FAILED", "ERROR")]
    for name, result in failures[:10]:
        part.remark(f"{result}: `{name}` {reasons.get(name, '')}")
    if len(failures) > 10:
        part.remark(f"{len(failures) - 10} more tests failed.")
    if code > 1:
        part.remark(f"pytest ended with exit code {code}: {output.strip().splitlines()[-1]}")


def measure_exactness(part: Part, deadline: Deadline, check: Check) -> None:
    """Measures the numerical errors of linear attention and of the encodings on the device."""
    rows = part.table(
        "Causal linear attention against its definition in float64",
        f"Batch 2, {HEADS} heads × {WIDTH}. Errors are relative to the largest value of the definition. "
        "Both have the same rounded inputs. fla's kernels multiply float32 without TF32 in this comparison "
        "(TRITON_F32_DEFAULT=ieee).",
    )
    share = deadline.share(0.8)
    half = [torch.float16, *([torch.bfloat16] if machine.has_bfloat16() else [])]
    for dtype in (torch.float64, torch.float32, *half):
        cases = linear_attention_cases("chunk", dtype, DEVICE)
        run_cases(rows, cases, share, part, f"the chunk form, {dtype}")
    if remark := fla_remark():
        part.remark(remark)
    else:
        for dtype in (torch.float32, *half):
            cases = linear_attention_cases("fla", dtype, DEVICE)
            if dtype == torch.float32:
                cases = [partial(in_ieee_process, case) for case in cases]
            run_cases(rows, cases, share, part, f"fla's kernels, {dtype}")
    count_errors(part, rows, "of linear attention")
    rows = part.table(
        "Encodings in float32, the device against the CPU",
        "The largest error of everything that an encoding provides to attention (queries and keys, bias, "
        "values, decay), relative to the largest value; 300 tokens, at positions from 0 and from 100 on.",
    )
    run_cases(rows, encoding_cases(DEVICE), deadline, part, "the encodings")
    count_errors(part, rows, "of encodings")


def in_ieee_process(case: Callable[[], dict]) -> dict:
    """Runs a case in a new process, in which Triton multiplies float32 without TF32.

    In this process, kernels that are already compiled would ignore the variable.
    """
    with patch.dict(os.environ, IEEE):
        return in_new_process(case)


def run_cases(rows: list[dict], cases: list[Callable], deadline: Deadline, part: Part, name: str) -> None:
    """Runs each case and appends its row to ``rows``.

    Stops with a remark at the deadline or after the first case that raises an error.
    """
    log(f"exactness of {name}")
    for done, case in enumerate(cases):
        if not deadline.left():
            part.skip(f"Out of time: {len(cases) - done} of {len(cases)} comparisons of {name} are skipped.")
            return
        try:
            rows.append(case())
        except Exception as error:
            part.skip(f"The comparisons of {name} failed: {describe_error(error)}.")
            return


def count_errors(part: Part, rows: list[dict], name: str) -> None:
    """Adds a remark with the number of rows whose errors are within the row's bound."""
    errors = [[row[column] for column in row if column.startswith("error")] for row in rows]
    good = sum(all(e <= row["bound"] for e in values) for row, values in zip(rows, errors, strict=True))
    if rows:
        part.remark(f"{good} of {len(rows)} comparisons {name} are within their bound.")


def measure_attention(part: Part, deadline: Deadline, check: Check) -> None:
    """Measures time and memory of forward and backward passes of attention, with lower bounds of the time."""
    rows = part.table(
        f"Forward and backward pass of causal attention, {HEADS} heads × {WIDTH}, float32 unless stated",
        f"Medians of up to {ROUNDS} interleaved rounds. The first step includes compilation. Memory is the "
        "peak beyond q, k, v and all gradients. Floors are lower bounds for sequences of n tokens with h "
        "heads of width d. Traffic: 11·n·h·d numbers (forward reads q, k, v and writes o; backward reads q, "
        "k, v, do and writes dq, dk, dv) at the rate of the copy; data in a cache can be faster. Arithmetic: "
        "14·n·d²·h operations of linear attention (2 products forward and 5 backward, 2·n·d² each), 7·n²·d·h "
        "of causal softmax (2 products forward and 5 backward, n²·d each, as half of the pairs are masked), "
        "14·n²·d·h of masked linear attention, which computes all pairs; "
        "at the rate of the fastest matrix product of that dtype, with TF32 for float32 if measured.",
    )
    if remark := fla_remark():
        part.remark(remark)
    if not machine.ON_GPU:
        part.remark("Half precision and peak memory are only measured on a GPU.")
    names, previous = [name for name in ATTENTIONS if name in bench.IMPLEMENTATIONS], {}
    for length in check.lengths:
        if not deadline.left():
            part.skip(f"Lengths from {length:,} on are skipped: out of time.")
            return
        log(f"attention, {length:,} tokens")
        share = deadline.share(1.0 if length == check.lengths[-1] else 0.5)
        first = first_steps(names, length, previous, share, part)
        names = list(first)
        if not names:
            return
        try:
            times = bench.step_times(names, length, HEADS, WIDTH, share.rounds(ROUNDS + 1, MIN_ROUNDS + 1))
        except torch.OutOfMemoryError:
            part.remark(f"Lengths from {length:,} on are skipped: out of memory.")
            return
        for name, taken in times.items():
            previous[name] = length, statistics.median(taken)
            rows.append(attention_row(name, length, taken, *first[name], check.peak_rates))


def first_steps(names: list[str], length: int, previous: dict, share: Deadline, part: Part) -> dict:
    """Runs one step of each implementation if all of its measurements fit into the remaining time.

    ``previous`` is {name: (shorter length, median seconds of a step)} of the steps that were measured before.

    Returns:
        {name: (seconds, peak memory in bytes on a GPU)} of the steps that succeeded.
    """
    results, planned = {}, 0.0
    for name in names:
        shorter, taken = previous.get(name, (length, 0.0))
        expected = (MIN_ROUNDS + 2) * taken * operations(name, length) / operations(name, shorter)
        reason = ""
        if planned + expected > share.left():
            reason = "its steps would exceed the remaining time"
            part.complete = False
        else:
            planned += expected
            try:
                results[name] = first_step(name, length)
            except torch.OutOfMemoryError:
                reason = "out of memory"
            except Exception as error:
                reason = describe_error(error)
        if reason:
            part.remark(f"From {length:,} tokens on {ATTENTIONS[name]} is skipped: {reason}.")
        release_memory()
    return results


def first_step(name: str, length: int) -> tuple[float, int | None]:
    """Returns the seconds of a step and, on a GPU, its peak memory in bytes, otherwise None."""
    inputs = bench.random_inputs(name, length, HEADS, WIDTH)
    taken = seconds(partial(bench.step, name, *inputs))
    return taken, bench.step_memory(name, *inputs)[0] if machine.ON_GPU else None


def operations(name: str, length: int) -> int:
    """Returns the number of operations of a step, as defined in the caption of the table of attention."""
    per_head = 14 * length * WIDTH**2
    if name in ("softmax", "softmax float16", "masked n × n"):
        per_head = (14 if name == "masked n × n" else 7) * length**2 * WIDTH
    return bench.batch_size(length) * HEADS * per_head


def attention_row(
    name: str, length: int, times: list[float], first: float, memory: int | None, peak_rates: dict
) -> dict:
    """Returns the table row of an implementation at a length, given seconds of its steps and bytes."""
    batch, dtype = bench.batch_size(length), bench.IMPLEMENTATIONS[name].dtype
    size = 11 * batch * length * HEADS * WIDTH * dtype.itemsize
    traffic = 1000 * size / peak_rates["copy"] if "copy" in peak_rates else None
    arithmetic = 1000 * operations(name, length) / peak_rates[dtype] if dtype in peak_rates else None
    median = 1000 * statistics.median(times)
    floor = max(traffic or 0.0, arithmetic or 0.0)
    return {
        "length × batch": f"{length:,} × {batch}",
        "attention": ATTENTIONS[name],
        "median, ms": median,
        "least, ms": 1000 * min(times),
        "greatest, ms": 1000 * max(times),
        "rounds": len(times),
        "first step, ms": 1000 * first,
        "traffic floor, ms": traffic,
        "arithmetic floor, ms": arithmetic,
        "median / greater floor": median / floor if floor else None,
        "memory, MiB": None if memory is None else memory / 2**20,
    }


def measure_layers(part: Part, deadline: Deadline, check: Check) -> None:
    """Measures time and memory of forward and backward passes of attention modules with their encodings."""
    dtypes = [torch.float32]
    if machine.ON_GPU:
        dtypes += [torch.float16, *([torch.bfloat16] if machine.has_bfloat16() else [])]
    rows = part.table(
        f"Forward and backward pass of causal attention with its projections, {HEADS} heads × {WIDTH}",
        f"Medians of up to {ROUNDS} interleaved rounds. Memory is the peak of a step with the module.",
    )
    cases = [(length, dtype) for length in LAYER_LENGTHS for dtype in dtypes]
    for done, (length, dtype) in enumerate(cases):
        if not deadline.left():
            part.skip(f"Out of time: {len(cases) - done} of {len(cases)} lengths and precisions are skipped.")
            return
        log(f"layers, {length:,} tokens, {dtype}")
        share = deadline.share(1 / (len(cases) - done))
        try:
            rows += layer_rows(length, dtype, share)
        except torch.OutOfMemoryError:
            part.remark(f"{length:,} tokens in {dtype} are skipped: out of memory.")
        release_memory()


def layer_rows(length: int, dtype: torch.dtype, deadline: Deadline) -> list[dict]:
    """Interleaves the steps of all layers; returns the rows of the table."""
    batch = bench.batch_size(length)
    x = torch.randn(batch, length, HEADS * WIDTH, device=DEVICE, dtype=dtype, requires_grad=True)
    steps = {(attention, method): layer_step(attention, method, x) for attention, method in LAYERS}
    memory = {name: peak_memory(step) for name, step in steps.items()}
    rounds = deadline.rounds(ROUNDS + 1, MIN_ROUNDS + 1)
    return [
        {
            "length × batch": f"{length:,} × {batch}",
            "attention": name[0],
            "method": name[1],
            "precision": str(dtype).removeprefix("torch."),
            "median, ms": 1000 * statistics.median(times),
            "least, ms": 1000 * min(times),
            "greatest, ms": 1000 * max(times),
            "memory, MiB": None if memory[name] is None else memory[name] / 2**20,
        }
        for name, times in interleave(steps, rounds).items()
    ]


def layer_step(attention: str, method: str, x: torch.Tensor) -> Callable[[], None]:
    """Returns a function that runs a forward and a backward pass of a method's attention module on ``x``."""
    options = method_options(METHODS[method])
    encoding = build_encoding(
        METHODS[method].encoding, num_heads=HEADS, head_dim=WIDTH, causal=True, **options
    )
    if attention == "linear":
        norm = METHODS[method].flags.get("linear_norm", "denominator")
        layer = LinearAttention(HEADS * WIDTH, HEADS, encoding, linear_norm=norm)
    else:
        layer = SoftmaxAttention(HEADS * WIDTH, HEADS, encoding)
    layer.to(x)

    def step():
        layer.zero_grad()
        x.grad = None
        layer(x).sum().backward()

    return step


def peak_memory(step: Callable[[], object]) -> int | None:
    """Runs a step; returns its peak memory on a GPU in bytes, with everything that is stored, else None."""
    step()
    if not machine.ON_GPU:
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def measure_training(part: Part, deadline: Deadline, check: Check) -> None:
    """Measures tokens per second and peak memory of training steps of language models."""
    logging.disable(logging.WARNING)  # fairseq logs each model and each out-of-memory error
    try:
        from omegaconf import OmegaConf

        from fairseq_lrpe.benchmarks import speed
    except ImportError as error:
        part.skip(f"Training is skipped: it requires fairseq and the other packages in setup.py ({error}).")
        return
    cfg = OmegaConf.load(CONFIGS / "lm/wikitext103.yaml")
    flags = OmegaConf.to_container(cfg.train)
    del flags["sample_break_mode"]  # random tokens have no lines
    sizes = {"layers": flags["decoder_layers"], "vocab_size": VOCAB_SIZE, "batch_size": cfg.batch.per_gpu}
    precisions = {"fp16": {"fp16": True}, "bf16": {"bf16": True}}
    if not machine.ON_GPU:
        sizes, precisions = CPU_SIZES, {"float32": {}}
        part.remark("On a CPU the models are smaller than the papers' and use float32.")
    elif not machine.has_bfloat16():
        del precisions["bf16"]
        part.remark("bf16 is skipped: it requires compute capability 8.0.")
    args = Namespace(family="lm", length=flags["tokens_per_sample"], **sizes)
    rows = part.table(
        f"Training steps of language models, {args.layers} × {flags['decoder_embed_dim']}, "
        f"{flags['decoder_attention_heads']} heads, vocabulary {args.vocab_size:,}",
        f"Random tokens, the flags of configs/lm/wikitext103.yaml; medians of up to {TRAINING_ROUNDS} "
        f"interleaved steps (forward, backward, update) after {WARM_UP}. Memory is the peak of a step, with "
        f"the model and its optimizer. Linear attention uses {'the chunk form' if fla_remark() else 'fla'}.",
    )
    for done, (precision, precision_flags) in enumerate(precisions.items()):
        share = deadline.share(1 / (len(precisions) - done))
        training_step = partial(speed.training_step, **flags, **precision_flags)
        while args.batch_size:
            log(f"training, {precision}, {args.batch_size} × {args.length:,} tokens")
            try:
                rows += measure_models(training_step, args, precision, share, part)
                break
            except torch.OutOfMemoryError:
                part.remark(f"{precision}: out of memory with {args.batch_size} sequences per step.")
            args.batch_size //= 2
            release_memory()
        release_memory()


def measure_models(
    training_step: Callable, args: Namespace, precision: str, deadline: Deadline, part: Part
) -> list[dict]:
    """Interleaves the training steps of all models in one precision; returns the rows of the table.

    Raises:
        torch.OutOfMemoryError: If the models do not fit into memory together.
    """
    steps, memory = {}, {}
    for attention, method in MODELS:
        arch = architecture(attention, args.family, method)
        if not deadline.left():
            part.skip(f"{precision}: {arch} is skipped: out of time.")
            continue
        try:
            steps[arch], memory[arch] = warm_up(training_step, arch, args)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            part.remark(f"{precision}: {arch} is skipped: {describe_error(error)}.")
    updates = {arch: step() for arch, step in steps.items()}
    rounds = deadline.rounds(TRAINING_ROUNDS, MIN_ROUNDS) if steps else ()
    tokens, rows = args.batch_size * args.length, []
    for arch, times in interleave(steps, rounds, warm_up=0).items():
        if missed := len(times) + 1 - (steps[arch]() - updates[arch]):
            part.remark(f"{precision}: {missed} steps of {arch} overflowed and made no update.")
        rows.append(
            {
                "model": arch,
                "precision": precision,
                "tokens a step": f"{args.batch_size} × {args.length:,}",
                "tokens/s": tokens / statistics.median(times),
                "least tokens/s": tokens / max(times),
                "greatest tokens/s": tokens / min(times),
                "steps": len(times),
                "memory, GiB": None if memory[arch] is None else memory[arch] / 2**30,
            }
        )
    return rows


def warm_up(training_step: Callable, arch: str, args: Namespace) -> tuple[Callable[[], int], int | None]:
    """Warms up a model; returns its training step and, on a GPU, the peak memory in bytes, otherwise None."""
    before = torch.cuda.memory_allocated() if machine.ON_GPU else 0
    step = training_step(arch, args)
    for _ in range(WARM_UP):
        step()
    if not machine.ON_GPU:
        return step, None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    with patch("torch.cuda.reset_peak_memory_stats"):  # fairseq calls it at the end of a step
        step()
    torch.cuda.synchronize()
    return step, torch.cuda.max_memory_allocated() - before


def measure_decoding(part: Part, deadline: Deadline, check: Check) -> None:
    """Measures the time of decoding steps after a prefix, and the size of the state that they need."""
    results = bench.decoding_times(PREFIXES, HEADS, WIDTH, deadline.rounds(DECODING_ROUNDS, 1))
    rows = part.table(
        f"One decoding step, batch 1, {HEADS} heads × {WIDTH}, float32",
        f"Medians of {bench.DECODING_STEPS} steps in each of up to {DECODING_ROUNDS} interleaved rounds.",
    )
    for n in PREFIXES:
        (linear, state), (softmax, cache) = results["chunk"][n], results["softmax"][n]
        rows.append(
            {
                "tokens before": n,
                "linear, µs": 1e6 * statistics.median(linear),
                "its state, KiB": state / 1024,
                "softmax, µs": 1e6 * statistics.median(softmax),
                "its keys and values, KiB": cache / 1024,
            }
        )


def measure_runs(part: Part, deadline: Deadline, check: Check, **selection) -> None:
    """Executes runs of a table and adds their results; see ``gpu_runs``."""
    try:
        from fairseq_lrpe.benchmarks import gpu_runs
    except ImportError as error:
        part.skip(f"The runs are skipped: they require fairseq and the other packages in setup.py ({error}).")
        return
    gpu_runs.measure_runs(part, deadline, check.folder / "results", gpu_runs.Selection(**selection))


ROPER = {
    "table": "roper",
    "experiments": ("roper/addition", "roper/index"),
    "methods": ("rope", "roper"),
    "attentions": ("softmax",),
}
PARTS = [  # (heading, function that measures the part, relative share of the time; None: all that is left)
    ("Machine", measure_machine, 1),
    ("Tests", measure_tests, 6),
    ("Exactness", measure_exactness, 3),
    ("Attention", measure_attention, 6),
    ("Layers", measure_layers, 2),
    ("Training", measure_training, 6),
    ("Decoding", measure_decoding, 1),
    ("RoPER", partial(measure_runs, **ROPER), None),
    ("Small language models", partial(measure_runs, table="iclr_table2", scale="small"), None),
    ("Long-Range Arena", partial(measure_runs, table="tmlr_table4"), None),
]


def new_report(minutes: int) -> Report:
    """Returns a report with a title and an introduction, but without parts."""
    command = f"bash scripts/gpu_check.sh --minutes {minutes}"
    introduction = f"Output of `{command}`, last called on {datetime.now(UTC):%Y-%m-%d}."
    if machine.ON_GPU:
        title = f"GPU check of {torch.cuda.get_device_name()}"
    else:
        title = "GPU check, measured on a CPU"
        warning = f"This was measured on a CPU, {machine.processor()}, and says nothing about GPUs."
        introduction = f"**{warning}** torch found no GPU. {introduction}"
    return Report(title, DEVICE, introduction, [heading for heading, *_ in PARTS])


def fill_report(report: Report, folder: Path, lengths: list[int], minutes: int) -> None:
    """Measures the missing parts until the time is over, and writes the report to ``folder`` after each part.

    The machine is described in every call, because other parts need its peak rates.
    """
    deadline, check = Deadline(60 * minutes), Check(lengths, folder)
    planned = [part for part in PARTS if part[0] in ("Machine", *report.missing)]
    for number, (heading, measure, weight) in enumerate(planned):
        if not deadline.left():
            return
        log(heading.lower())
        part = Part(heading)
        share = weight / sum(other or 0 for *_, other in planned[number:]) if weight else 1.0
        start = time.monotonic()
        try:
            measure(part, deadline.share(share), check)
        except Exception as error:
            part.skip(f"This part failed: {describe_error(error)}.")
        except BaseException:
            part.skip("This part was interrupted.")
            raise
        finally:
            release_memory()
            part.minutes = (time.monotonic() - start) / 60
            report.add(part)
            report.write(folder)


def main(arguments: list[str] | None = None) -> None:
    parser = BenchmarkParser("gpu-check", __doc__)
    parser.add_int("--minutes", 45, "approximate time limit in minutes; call again to continue")
    default = REPOSITORY / "results/gpu_check"
    help = "output folder (default: results/gpu_check)"
    parser.add_argument("--out", type=abs_path, default=default, help=help)
    parser.add_int("--lengths", [2**n for n in range(9, 17)], "sequence lengths of attention in tokens")
    args = parser.parse_args(arguments)
    with measuring(parser.prog), output_folder(args.out):
        report = new_report(args.minutes)
        report.read(args.out)
        report.write(args.out)
        try:
            fill_report(report, args.out, sorted(set(args.lengths)), args.minutes)
        except KeyboardInterrupt:
            sys.exit(f"{parser.prog}: interrupted; the results so far are in {args.out}")
        missing = f", without {', '.join(report.missing)}: call it again" if report.missing else ""
        log(f"report: {args.out / 'gpu_check.md'}{missing}")
