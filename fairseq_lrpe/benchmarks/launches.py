"""Compare the calls and kernels of linear attention and of training steps with those of torch.profiler.

Calls and kernels are counted on torch's meta device, where tensors have shapes but no values, without a GPU.
The time that a host needs to start the calls is calculated by the model of docs/gpu.md. On a GPU, the
profiler counts the calls and kernels that are started, and times are measured. On a CPU, linear attention has
another form with other calls. For example:

  lrpe bench launches linear_lm_base softmax_lm_base --length 512 --batch-size 8 -- --fp16
  lrpe bench launches linear_vit_base --lengths 512 --layers 2 --cpu
"""

import json
import shlex
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from fairseq_lrpe.benchmarks import measurement, train
from fairseq_lrpe.benchmarks.linear_attention import TOKENS
from fairseq_lrpe.experiments.estimation.cost import DTYPES, BuiltModel, measure
from fairseq_lrpe.experiments.estimation.launches import Launches, operation_seconds, update_seconds
from fairseq_lrpe.experiments.estimation.meta_device import meta_device
from fairseq_lrpe.ops import linear_attention
from fairseq_lrpe.utils.cli import min_int
from fairseq_lrpe.utils.files import output_folder, write_atomic

HEADS = 8
WIDTH = 64


def attention_pass(length: int, device: str) -> Callable[[], None]:
    """Returns a function that computes a forward and backward pass of causal, normalized linear attention."""
    shape = max(1, TOKENS // length), HEADS, length, WIDTH
    options = {"dtype": torch.float16, "device": device, "requires_grad": True}
    inputs = [torch.ones(shape, **options) for _ in range(3)]
    gradient = torch.ones(shape, device=device)

    def step():
        for x in inputs:
            x.grad = None
        linear_attention(*inputs, causal=True, normalize=True, backend="chunk").backward(gradient)

    return step


def count_attention(length: int) -> dict:
    with meta_device():
        step = attention_pass(length, "meta")
        step()  # constants are computed once
        with Launches() as counted:
            step()
    return row_of([counted], operation_seconds(counted.calls))


def count_training_step(model: str, args: Namespace) -> dict:
    args = train.sizes(train.family_of(shlex.split(model)[0]), args)
    cfg, task = train.setup(model, args)
    with meta_device():
        built = BuiltModel(task.build_model(cfg.model).to("meta"), task, cfg)
    precision = "fp32"
    if cfg.common.fp16:
        precision = "fp16"
    elif cfg.common.bf16:
        precision = "bf16"
    step = measure(built, args.batch_size, built.longest(), DTYPES[precision])
    return row_of([step.passes, step.update], update_seconds(step.passes.calls, step.update.calls))


def row_of(parts: list[Launches], seconds: float) -> dict:
    """Returns a row of the table: the sums of the counts of the parts of a step, and the time on the host."""
    row = {"calls": 0, "detach": 0, "kernels": 0}
    for part in parts:
        row["calls"] += part.calls
        row["detach"] += part.detached
        row["kernels"] += part.kernels
    row["model, ms"] = 1000 * seconds
    return row


def profiled(step: Callable[[], None], args: Namespace) -> dict:
    """Returns the number of calls and kernels of a step that torch.profiler records."""
    step()
    step()  # from the second step on the optimizer's state exists
    is_gpu = measurement.device(args.cpu) == "cuda"
    activities = [ProfilerActivity.CPU]
    if is_gpu:
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as recorded:
        step()
        if is_gpu:
            torch.cuda.synchronize()
    events = recorded.events()
    counts = {"profiler: calls": count_calls(events)}
    if is_gpu:
        counts["profiler: kernels"] = sum(map(is_kernel, events))
    return counts


def is_kernel(event: FunctionEvent) -> bool:
    """Returns whether an event is a kernel or a copy on the GPU."""
    return event.device_type == DeviceType.CUDA and not event.is_user_annotation


def count_calls(events: Iterable[FunctionEvent]) -> int:
    """Counts the calls that ``Launches`` counts, without those inside of them or made of others."""
    return sum(is_call(event) and not any(map(is_call, ancestors(event))) for event in events)


def ancestors(event: FunctionEvent) -> Iterator[FunctionEvent]:
    while event := event.cpu_parent:
        yield event


def is_call(event: FunctionEvent) -> bool:
    return event.name.startswith("aten::") and event.name not in composite()


@cache
def composite() -> set[str]:
    """Returns the names of operations that only call other operations, also where gradients are recorded."""
    overloads = {}
    for name in torch._C._dispatch_get_all_op_names():
        is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
        name, _, overload = name.partition(".")
        overloads.setdefault(name, {})[overload] = is_composite
    names = set()
    for name, kinds in overloads.items():
        if kinds.get("", all(kinds.values())):
            names.add(name)
    return names


def compare(name: str, counted: dict, build: Callable[[], Callable[[], None]], args: Namespace) -> dict:
    """Returns a row: the counted numbers, those that the profiler records, and on a GPU the measured time."""
    row = {"name": name, **counted, **profiled(build(), args)}
    if measurement.device(args.cpu) == "cuda":
        [measured] = measurement.compare(lambda _: build(), [name], args)
        row["ms"] = measured["ms"]
    return row


def main(arguments: list[str] | None = None) -> None:
    parser = measurement.model_parser("launches", __doc__)
    help = "lengths of linear attention, in tokens (default: %(default)s)"
    parser.add_argument("--lengths", type=min_int(2), nargs="+", default=[512, 2048, 32768], help=help)
    args = measurement.parse(parser, arguments)
    device = measurement.device(args.cpu)
    with measurement.measuring(parser.prog):
        rows = []
        for length in args.lengths:
            name = f"linear attention, {max(1, TOKENS // length)} × {length:,}"
            build = partial(attention_pass, length, device)
            rows.append(compare(name, count_attention(length), build, args))
        for model in args.archs:
            build = partial(train.training_step, model, args)
            rows.append(compare(model, count_training_step(model, args), build, args))
        caption = (
            "calls, kernels: counted on the meta device; detach: those calls of which some are made only "
            "while they are counted; model: about the time on the host of an H200; the profiler also records "
            "fairseq's logs, 40 to 60 calls of an update"
        )
        measurement.print_table(rows, f"calls of operations and kernels on the device {device}", caption)
        if args.json:
            with output_folder(args.json.parent):
                write_atomic(args.json, json.dumps(rows, indent=1) + "\n")
