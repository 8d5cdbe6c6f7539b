"""Says what a machine is, and measures how fast it copies and multiplies matrices. Needs torch alone."""

import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from fairseq_lrpe.files import REPOSITORY
from fairseq_lrpe.gpus import BF16
from fairseq_lrpe.measure.attention import DEVICE
from fairseq_lrpe.measure.shared import seconds

ON_GPU = DEVICE == "cuda"
COPIED, MATRIX = (2**30, 8192) if ON_GPU else (2**28, 2048)
"""Bytes of the copy, and rows and columns of the matrices, that show the roofs."""


def facts() -> dict[str, str]:
    """Returns what there is to say of the device and of what is installed."""
    device = gpu() if ON_GPU else {"processor": processor(), "threads": str(torch.get_num_threads())}
    return device | {
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}",
        "fla-core": installed("fla-core"),
        "triton": installed("triton"),
        "fairseq-fixed": installed("fairseq-fixed"),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "load in the last minute": f"{os.getloadavg()[0]:.1f} of {os.cpu_count()} CPUs",
        "commit": printed("git", "-C", str(REPOSITORY), "describe", "--always", "--dirty") or "unknown",
    }


def gpu() -> dict[str, str]:
    """Returns what there is to say of the GPU."""
    properties = torch.cuda.get_device_properties(DEVICE)
    driver = printed("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()
    return {
        "GPU": f"{properties.name}, the first of {torch.cuda.device_count()} that are visible",
        "compute capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "memory": f"{properties.total_memory / 2**30:.1f} GiB",
        "multiprocessors": str(properties.multi_processor_count),
        "driver": driver[0] if driver else "unknown",
        "torch has code for": ", ".join(torch.cuda.get_arch_list()),
    }


def processor() -> str:
    """Returns the name of the CPU."""
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.+)$", cpuinfo.read_text() if cpuinfo.exists() else "", re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def installed(package: str) -> str:
    """Returns the version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def printed(*command: str) -> str:
    """Returns what a command prints, nothing if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def roofs() -> Iterator[tuple[str, object, float]]:
    """Yields (what, "copy" or the dtype of a matrix product, bytes or operations a second)."""
    size = min(COPIED, torch.cuda.mem_get_info()[0] // 4) if ON_GPU else COPIED
    yield f"copy of {size / 2**20:,.0f} MiB", "copy", copy_rate(size)
    product = f"product of {MATRIX:,} × {MATRIX:,} matrices"
    setting = torch.get_float32_matmul_precision()
    yield f"{product}, float32, torch's precision {setting!r}", torch.float32, product_rate(torch.float32)
    if ON_GPU:
        yield f"{product}, float16", torch.float16, product_rate(torch.float16)
    if has_bfloat16():
        yield f"{product}, bfloat16", torch.bfloat16, product_rate(torch.bfloat16)
        yield f"{product}, float32, torch's precision 'high' (TF32)", torch.float32, tf32_rate()


def has_bfloat16() -> bool:
    """Returns whether it is a GPU that computes in bfloat16 and TF32."""
    return ON_GPU and torch.cuda.get_device_capability() >= BF16


def fastest(function: Callable[[], object]) -> float:
    """Returns the seconds of the fastest of 10 calls, after one that is not counted."""
    function()
    return min(seconds(function) for _ in range(10))


def copy_rate(size: int) -> float:
    """Returns the bytes a second, read and written, of a copy of ``size`` bytes on the device."""
    source = torch.ones(size // 4, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.nbytes / fastest(lambda: target.copy_(source))


def product_rate(dtype: torch.dtype) -> float:
    """Returns the operations a second of a matrix product."""
    a, b = (torch.randn(MATRIX, MATRIX, device=DEVICE).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * MATRIX**3 / fastest(lambda: torch.mm(a, b, out=out))


def tf32_rate() -> float:
    """Returns :func:`product_rate` of float32 matrices with TF32 allowed."""
    setting = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return product_rate(torch.float32)
    finally:
        torch.set_float32_matmul_precision(setting)
