"""Describes the machine and measures its rates of copying and of matrix products. Requires only torch."""

import os
import platform
import re
import shlex
from collections.abc import Callable, Iterator
from importlib.metadata import distributions

import torch
from torch.utils import collect_env

from fairseq_lrpe.benchmarks.shared import DEVICE, seconds
from fairseq_lrpe.utils.files import REPOSITORY
from fairseq_lrpe.utils.gpus import BF16

ON_GPU = DEVICE == "cuda"
COPY_BYTES, MATRIX_SIZE = (2**30, 8192) if ON_GPU else (2**28, 2048)
PACKAGES = ("fla-core", "triton", "fairseq-fixed")


def describe_machine() -> dict[str, str]:
    """Returns {name: value} of the properties of the device and the versions of the software."""
    device = describe_gpu() if ON_GPU else {"processor": processor(), "threads": f"{torch.get_num_threads()}"}
    installed = {package.name: package.version for package in distributions()}
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    return {
        **device,
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}",
        **{name: installed.get(name, "not installed") for name in PACKAGES},
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "load in the last minute": f"{os.getloadavg()[0]:.1f} of {os.cpu_count()} CPUs",
        "commit": collect_env.run_and_read_all(collect_env.run, shlex.join(command)) or "unknown",
    }


def describe_gpu() -> dict[str, str]:
    """Returns {name: value} of the properties of the GPU."""
    properties = torch.cuda.get_device_properties(DEVICE)
    return {
        "GPU": f"{properties.name}, the first of {torch.cuda.device_count()} visible",
        "compute capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "memory": f"{properties.total_memory / 2**30:.1f} GiB",
        "multiprocessors": str(properties.multi_processor_count),
        "driver": collect_env.get_nvidia_driver_version(collect_env.run) or "unknown",
        "CUDA architectures": ", ".join(torch.cuda.get_arch_list()),
    }


def processor() -> str:
    """Returns the name of the CPU."""
    model = re.search(r"Model name:\s*(.+)", collect_env.get_cpu_info(collect_env.run))
    return model[1] if model else platform.processor() or platform.machine()


def measure_peak_rates() -> Iterator[tuple[str, object, float]]:
    """Yields (description, "copy" or the dtype of a matrix product, bytes or operations per second).

    The rate of a copy counts the bytes read and written. float32 products are also measured with TF32.
    """
    size = min(COPY_BYTES, torch.cuda.mem_get_info()[0] // 4) if ON_GPU else COPY_BYTES
    yield f"copy of {size / 2**20:,.0f} MiB", "copy", copy_rate(size)
    product = f"product of {MATRIX_SIZE:,} × {MATRIX_SIZE:,} matrices"
    default = torch.get_float32_matmul_precision()
    yield f"{product}, float32, precision {default!r}", torch.float32, product_rate(torch.float32)
    if ON_GPU:
        yield f"{product}, float16", torch.float16, product_rate(torch.float16)
    if has_bfloat16():
        yield f"{product}, bfloat16", torch.bfloat16, product_rate(torch.bfloat16)
        torch.set_float32_matmul_precision("high")
        try:
            rate = product_rate(torch.float32)
        finally:
            torch.set_float32_matmul_precision(default)
        yield f"{product}, float32, precision 'high' (TF32)", torch.float32, rate


def has_bfloat16() -> bool:
    """Returns whether the device is a GPU that supports bfloat16 and TF32."""
    return ON_GPU and torch.cuda.get_device_capability() >= BF16


def copy_rate(size: int) -> float:
    """Returns the bytes that are read and written per second while copying ``size`` bytes on the device."""
    source = torch.ones(size // 4, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.nbytes / fastest(lambda: target.copy_(source))


def product_rate(dtype: torch.dtype) -> float:
    """Returns the operations (multiplications and additions) per second of a matrix product."""
    a, b = (torch.randn(MATRIX_SIZE, MATRIX_SIZE, device=DEVICE).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * MATRIX_SIZE**3 / fastest(lambda: torch.mm(a, b, out=out))


def fastest(function: Callable[[], object]) -> float:
    """Returns the duration in seconds of the fastest of 10 calls, after one warm-up call."""
    function()
    return min(seconds(function) for _ in range(10))
