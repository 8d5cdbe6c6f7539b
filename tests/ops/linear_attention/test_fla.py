"""Compares the kernels of flash-linear-attention with the reference; needs a GPU and the extra ``gpu``."""

import os
from importlib.util import find_spec

import pytest
import torch

from fairseq_lrpe.ops import linear_attention

# Disables TF32 in the kernels, whose error grows where terms cancel.
os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or find_spec("fla") is None, reason="needs a GPU and flash-linear-attention"
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("decay, normalize, queries, keys, d, dv", [
    ("plain", True, 1, 1, 16, 16),
    ("plain", False, 1000, 1000, 128, 64),
    ("weak", True, 70, 70, 24, 17),
    ("strong", True, 300, 300, 64, 64),
    ("learned", False, 1000, 1000, 128, 64),
    ("learned", True, 300, 410, 64, 64),
    ("feature", True, 300, 410, 64, 64),
    ("feature", False, 70, 70, 24, 17),
])  # fmt: skip
def test_fla_matches_reference(decay, normalize, queries, keys, d, dv, dtype):
    """Outputs, state and gradients, up to 2^-9 or half-precision rounding of the largest value."""
    g = torch.Generator().manual_seed(0)
    shapes = {"q": (queries, d), "k": (keys, d), "v": (keys, dv), "kv": (d, dv), "k_sum": (d,)}
    leaves = {name: torch.rand(2, 2, *shape, generator=g).cuda() for name, shape in shapes.items()}
    decays = {"plain": None, "weak": torch.tensor([-0.01, -0.1]), "strong": torch.tensor([-5.0, -2.5])}
    decays |= {"learned": decays["weak"], "feature": -torch.linspace(0.001, 0.5, 2 * d).view(2, d)}
    log_decay = None if decays[decay] is None else decays[decay].cuda()
    if decay in ("learned", "feature"):
        leaves["log_decay"] = log_decay

    def results(backend, to):
        inputs = {n: x.to(dtype if n in "qkv" else torch.float32).to(to) for n, x in leaves.items()}
        inputs = {n: x.requires_grad_() for n, x in inputs.items()}
        out, new = linear_attention(
            *(inputs[n] for n in "qkv"),
            causal=True,
            normalize=normalize,
            log_decay=inputs.get("log_decay", log_decay),
            state=(inputs["kv"], inputs["k_sum"]),
            return_state=True,
            backend=backend,
        )
        loss = sum((x.double() * torch.linspace(-1, 1, x.size(-1)).cuda()).sum() for x in (out, *new))
        return out, *new, *torch.autograd.grad(loss, list(inputs.values()))

    bound = max(2**-9, 2 * torch.finfo(dtype).eps)
    for ours, exact in zip(results("fla", dtype), results("reference", torch.float64), strict=True):
        assert (ours.double() - exact).abs().max() <= bound * exact.abs().max()


def test_auto_uses_chunk_for_unsupported_arguments():
    q, k, v = (torch.rand(1, 2, 70, 16, device="cuda", dtype=torch.float64) for _ in range(3))
    decay = torch.full((2,), -0.1, device="cuda", dtype=torch.float64, requires_grad=True)
    out = linear_attention(q, k, v, causal=True, normalize=True, log_decay=decay)
    exact = linear_attention(q, k, v, causal=True, normalize=True, log_decay=decay, backend="reference")
    torch.testing.assert_close(out, exact, rtol=1e-10, atol=1e-10)
    assert torch.autograd.grad(out.sum(), decay)[0].isfinite().all()
