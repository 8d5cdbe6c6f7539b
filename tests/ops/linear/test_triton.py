"""The triton backend without a GPU: what it launches, and the machine code of its kernel."""

import os
import re
import subprocess
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from support.launches import Launches

from fairseq_lrpe.ops import constants, linear_attention

BACKEND = import_module("fairseq_lrpe.ops.linear.triton_backend")
pytestmark = pytest.mark.skipif(not find_spec("triton"), reason="needs triton")


@pytest.mark.parametrize("length, batch, launches", [(512, 8, 4), (2048, 2, 6), (32768, 1, 6)])
@pytest.mark.parametrize("normalize, decay, kernels, calls", [
    (False, None, 0, 9),
    (True, None, 8, 21),
    (True, "constant", 8, 21),
    (True, "gates", 21, 38),
])  # fmt: skip
def test_launches(length, batch, launches, normalize, decay, kernels, calls, monkeypatch):
    """The first numbers are of the Triton kernel, the others of torch's kernels and calls."""
    grids = []

    class Recorder:
        def __getitem__(self, grid):
            grids.append(grid)
            return lambda *args, **options: None

    triton_kernels = import_module("fairseq_lrpe.ops.linear.triton_kernels")
    monkeypatch.setattr(triton_kernels, "attend", Recorder())
    monkeypatch.setattr(BACKEND, "missing_requirement", lambda device, backend: None)
    for module in (constants, BACKEND):
        monkeypatch.setattr(module, "is_tracing", lambda: False)  # the counter is a dispatch mode
    # As views of a projection's output (L, B, H·d), in half precision.
    rows = [torch.zeros(length, batch, 8, 8).bfloat16() for _ in range(3)]
    inputs = [x.permute(1, 2, 0, 3).requires_grad_() for x in rows]
    gradient = torch.zeros(batch, 8, length, 8)
    constant = constants.constant(_log_decay, device="cpu")
    gates = torch.zeros(batch, 8, length, requires_grad=True)
    log_decay = {None: None, "constant": constant, "gates": gates}[decay]
    options = {"causal": True, "normalize": normalize, "log_decay": log_decay, "backend": "triton"}
    linear_attention(*inputs, **options)  # what depends on constant decays is computed once
    grids.clear()
    with Launches() as counted:
        linear_attention(*inputs, **options).backward(gradient)
    assert len(grids) == launches
    assert counted.kernels <= kernels and counted.calls <= calls, (counted.kernels, counted.calls)


def _log_decay(device):
    return torch.full((8,), -0.1, device=device)


ROLES = {  # dtypes of x, y, z and out; whether the state is transposed, and rows are reversed
    "output": (("T", "T", "T", "fp32"), False, False),
    "gradient of q": (("fp32", "T", "T", "fp32"), True, False),
    "gradient of k": (("T", "fp32", "T", "fp32"), True, True),
    "gradient of v": (("T", "T", "fp32", "T"), False, True),
}


@pytest.mark.slow
@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="compiles nothing in the interpreter")
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("capability", [80, 90])
def test_no_spills(role, dtype, capability, tmp_path):
    """Numbers stay in registers for widths of 64, with all optional inputs, on GPUs that are not here."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    tool = Path(triton.__file__).with_name("backends") / "nvidia/bin/cuobjdump"
    if not tool.exists():
        pytest.skip("needs the compiler in the package triton")
    kernel = import_module("fairseq_lrpe.ops.linear.triton_kernels").attend
    dtypes, transposed, reversed_ = ROLES[role]
    pointers = dict(zip(("x", "y", "z", "out"), dtypes, strict=True))
    fixed = {"WIDTH": 64, "VALUES": 64, "X": 64, "TRANSPOSED": transposed, "REVERSED": reversed_}
    fixed |= {"Z": BACKEND._COLUMNS, "C": BACKEND._CHUNK_SIZE}
    if role == "output":
        fixed["g_sums"] = None
    else:
        fixed["sums"] = None
    if transposed:
        fixed |= {"last_kv": None, "last_k_sum": None}
    signature, aligned = {}, {}
    for i, name in enumerate(kernel.arg_names):
        is_stride = re.fullmatch(r".*_[bhl]", name) is not None
        if name in fixed:
            signature[name] = "constexpr"
        elif is_stride or name in ("heads", "length", "chunks", "segments"):
            signature[name] = "i32"
        elif name == "eps":
            signature[name] = "fp32"
        else:
            signature[name] = "*" + pointers.get(name, "fp32").replace("T", dtype)
        if is_stride or signature[name].startswith("*"):
            aligned[i,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, fixed, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=BACKEND._OPTIONS)
    code = tmp_path / "kernel.cubin"
    code.write_bytes(compiled.asm["cubin"])
    usage = subprocess.run([tool, "-res-usage", code], capture_output=True, text=True, check=True)
    assert re.search(r"STACK:(\d+)", usage.stdout + usage.stderr)[1] == "0"
    assert compiled.metadata.shared <= 48 << 10
    assert "mma" in compiled.asm["ptx"]  # tensor cores
