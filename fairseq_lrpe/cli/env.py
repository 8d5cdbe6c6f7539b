"""Print the environment in a form to paste into an issue: versions, devices, threads and kernels.

It needs no package besides torch, and lists what is missing. For example:

  lrpe env
"""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import fairseq_lrpe
from fairseq_lrpe.utils.cli import exit_on_error, new_parser
from fairseq_lrpe.utils.cpu import cpu_name

PACKAGES = (
    "fairseq-fixed fairseq numpy hydra-core omegaconf pydantic pandas transformers tokenizers sentencepiece "
    "triton fla-core"
).split()
"""Packages whose versions matter; fairseq-fixed and fairseq are two builds of one module."""
VARIABLES = (
    "LRPE_IMPORT LRPE_CONFIGS OMP_NUM_THREADS CUDA_VISIBLE_DEVICES ONEDNN_MAX_CPU_ISA TRITON_INTERPRET "
    "TRITON_F32_DEFAULT PYTORCH_ENABLE_MPS_FALLBACK"
).split()
"""Environment variables that change what is computed, or where."""
CHECKOUT = Path(__file__).parents[2]


def main(arguments: list[str] | None = None) -> None:
    new_parser("lrpe env", __doc__, "").parse_args(arguments)
    with exit_on_error("env"):
        for name, value in describe_environment().items():
            print(f"{name}: {value}")


def describe_environment() -> dict[str, str]:
    """Returns {part of the environment: its description in one line}."""
    described = {
        "fairseq_lrpe": f"{fairseq_lrpe.__version__}{_revision()}",
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "OS": platform.platform(),
        "CPU": f"{cpu_name()}, {os.cpu_count()} cores",
    }
    described |= _describe_torch()
    installed = {}
    missing = []
    for package in PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            missing.append(package)
    described["packages"] = _listed(f"{name} {version}" for name, version in installed.items())
    described["not installed"] = _listed(missing)
    described["variables"] = _listed(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ)
    return described


def _listed(texts):
    return ", ".join(texts) or "none"


def _revision():
    """Returns the commit of a checkout as text, or "" for an installed package."""
    if not (CHECKOUT / ".git").exists():
        return ""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        text = subprocess.check_output(command, cwd=CHECKOUT, stderr=subprocess.DEVNULL, text=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f" (git {text.strip()})"


def _describe_torch():
    try:
        import torch  # this import takes seconds
    except ImportError as error:
        return {"torch": f"cannot be imported ({error})"}
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    return {
        "torch": f"{torch.__version__} ({cuda})",
        "CPU instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "GPUs": _listed(_gpus()),
        "MPS": "available" if torch.backends.mps.is_available() else "not available",
        **_kernels(),
    }


def _gpus():
    import torch

    from fairseq_lrpe.utils.gpus import gpus_here

    texts = []
    for index, (name, (major, minor)) in enumerate(gpus_here().items()):
        memory = torch.cuda.get_device_properties(index).total_memory / 2**30
        texts.append(f"{name}, compute capability {major}.{minor}, {memory:.0f} GiB")
    return texts


def _kernels():
    """Returns whether each backend of linear attention that needs a GPU can run here, or what it lacks."""
    import torch

    from fairseq_lrpe.ops.linear.fla import missing_requirement

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    described = {}
    for backend in ("fla", "triton"):
        reason = missing_requirement(device, backend)
        described[f"backend {backend}"] = f"needs {reason}" if reason else "available"
    return described
