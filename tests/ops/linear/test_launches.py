"""The number of operations that a GPU has to start for linear attention, counted on a CPU."""

from importlib import import_module

import pytest
import torch
from support.launches import Launches
from support.linear_results import positive

from fairseq_lrpe.ops import constants, linear_attention

CHUNK_MODULE = import_module("fairseq_lrpe.ops.linear.chunk")
HEADS, WIDTH = 2, 8
LIMITS = {  # decay: (largest number of kernels, of calls) without and with normalization
    "none": ((40, 110), (40, 110)),
    "constant": ((65, 160), (65, 160)),
    "learned": ((65, 160), (65, 175)),
    "gates": ((65, 160), (75, 175)),
    "features": ((115, 315), (120, 325)),
    "feature gates": ((115, 315), (120, 325)),
}


def log_decay_of(decay, batch, length):
    shapes = {
        "constant": (HEADS,),
        "learned": (HEADS,),
        "gates": (batch, HEADS, length),
        "features": (HEADS, WIDTH),
        "feature gates": (batch, HEADS, length, WIDTH),
    }
    if decay == "none":
        return None
    return (-0.05 * positive(*shapes[decay])).float().requires_grad_(decay != "constant")


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("length, batch", [(512, 8), (2048, 2), (32768, 1)])
@pytest.mark.parametrize("decay", LIMITS)
def test_forward_and_backward(decay, length, batch, normalize, monkeypatch):
    """The counts do not depend on the length up to 256 chunks."""
    if "feature" in decay:
        length = min(length, 16384)  # chunks are half as long
    monkeypatch.setattr(CHUNK_MODULE, "_uses_all_chunks", lambda q: True)
    monkeypatch.setattr(constants, "is_tracing", lambda: False)  # the counter is a dispatch mode

    def run():
        # As views of a projection's output (L, B, H·d), in half precision.
        rows = [torch.rand(length, batch, HEADS, WIDTH).bfloat16() for _ in range(3)]
        inputs = [x.permute(1, 2, 0, 3).requires_grad_() for x in rows]
        options = {"causal": True, "normalize": normalize, "log_decay": log_decay_of(decay, batch, length)}
        gradient = torch.ones(batch, HEADS, length, WIDTH)
        with Launches() as counted:
            linear_attention(*inputs, **options).backward(gradient)
        return counted

    run()  # constants are computed once
    counted = run()
    kernels, calls = LIMITS[decay][normalize]
    assert counted.kernels <= kernels and counted.calls <= calls, (counted.kernels, counted.calls)
