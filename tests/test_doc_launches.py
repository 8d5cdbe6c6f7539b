"""Numbers of calls and kernels in docs/gpu.md are those of the code, counted on the meta device."""

import re
from argparse import Namespace

import pytest
import torch
import torch.nn.functional as F
from support.tiny import REPOSITORY

from fairseq_lrpe.benchmarks import launches, train
from fairseq_lrpe.benchmarks.linear_attention import plain_chunks
from fairseq_lrpe.experiments.estimation.launches import Launches
from fairseq_lrpe.experiments.estimation.meta_device import meta_device
from fairseq_lrpe.ops import linear_attention

PAGE = (REPOSITORY / "docs/gpu.md").read_text()
MODELS = {
    "linear, Base": "linear_lm_base",
    "linear, RoPE": "linear_lm_rope",
    "linear, TMLR's Type1": "linear_lm_tmlr_type1",
    "softmax, Base": "softmax_lm_base",
    "fairseq's Transformer": "transformer_lm",
}
HEADS, WIDTH = 8, 64
DECAYS = {
    "none": None,
    "of each head, learned": (HEADS,),
    "of each key": (2, HEADS, 2048),
    "of each feature, learned": (HEADS, WIDTH),
    "of each key and feature": (2, HEADS, 2048, WIDTH),
}


def cells(*beginning):
    """Returns the cells of the page's table row that begins with these cells."""
    found = re.findall(r"^\| " + r" \| ".join(map(re.escape, beginning)) + r" \|(.+)\|$", PAGE, re.MULTILINE)
    assert len(found) == 1, beginning
    return [cell.strip() for cell in found[0].split("|")]


def both(counted):
    return f"{counted.kernels:,} / {counted.calls:,}"


@pytest.mark.parametrize("length, batch", [(512, 8), (2048, 2), (32768, 1)])
def test_operation(length, batch):
    row = launches.count_attention(length)
    assert cells(f"operation, {length:,} × {batch}")[-1] == f"{row['kernels']} / {row['calls']}"


@pytest.mark.parametrize("decay", DECAYS)
def test_decays(decay):
    with meta_device():
        for _ in range(2):  # constants are computed once
            inputs = [
                torch.ones(2, HEADS, 2048, WIDTH, dtype=torch.float16, requires_grad=True) for _ in range(3)
            ]
            log_decay = DECAYS[decay] and torch.ones(DECAYS[decay], requires_grad=True)
            gradient = torch.ones(2, HEADS, 2048, WIDTH)
            with Launches() as counted:
                linear_attention(*inputs, causal=True, normalize=True, log_decay=log_decay).backward(gradient)
    assert cells("decay", decay) == [both(counted)]


@pytest.mark.parametrize("name", MODELS)
def test_module(name):
    """fairseq's interface, training in fp16, a forward and a backward pass."""
    args = Namespace(batch_size=1, length=512, layers=2, vocab_size=100, cpu=True, flags=[])
    cfg, task = train.setup(MODELS[name], args)
    with meta_device():
        module = task.build_model(cfg.model).decoder.layers[1].self_attn.to("meta").half().train()
        mask = torch.ones(512, 512, dtype=torch.float16)
        for _ in range(2):
            x = torch.ones(512, 1, 512, dtype=torch.float16, requires_grad=True)
            module.zero_grad()
            with Launches() as counted:
                out = module(x, x, x, attn_mask=mask, need_weights=False)[0]
            gradient = torch.ones_like(out)
            with counted:
                out.backward(gradient)
    assert cells("module", name)[-1] == both(counted)


@pytest.mark.parametrize("name", MODELS)
def test_training_step(name):
    flags = ["--fp16", "--dropout", "0", "--attention-dropout", "0"]
    args = Namespace(batch_size=1, length=512, layers=6, vocab_size=1000, cpu=True, flags=flags)
    row = launches.count_training_step(MODELS[name], args)
    *_, counted, time = cells("step", name)
    assert counted == f"{row['kernels']:,} / {row['calls']:,}" and time == f"{row['model, ms']:.0f} ms"


def test_plain_chunks_in_bfloat16():
    """The page's errors of the gradient of q: of all positive inputs and of usual ones."""
    torch.manual_seed(0)

    def error(compute, *qkv):
        gradients = {}
        for dtype in (torch.float64, torch.bfloat16):
            inputs = [x.bfloat16().to(dtype).requires_grad_() for x in qkv]
            out = (plain_chunks if dtype == torch.float64 else compute)(*inputs)
            out.backward(gradient.bfloat16().to(out.dtype))
            gradients[dtype] = inputs[0].grad.double()
        exact = gradients[torch.float64]
        return ((gradients[torch.bfloat16] - exact).norm() / exact.norm()).item()

    def chunk(q, k, v):
        return linear_attention(q, k, v, causal=True, normalize=True, backend="chunk")

    found = re.search(r"gradient of q is\s+(\d+)% off at 2,048\s+tokens", PAGE)
    gradient, *uniform = (torch.rand(2, 2, 2048, 64) for _ in range(4))
    assert error(plain_chunks, *uniform) == pytest.approx(int(found[1]) / 100, rel=0.1)
    assert error(chunk, *uniform) < 0.003
    found = re.search(r"(\d\.\d)% with normally distributed", PAGE)
    q, k, v, gradient = (torch.randn(2, 2, 2048, 64) for _ in range(4))
    usual = F.elu(q) + 1, F.elu(k) + 1, v
    assert error(plain_chunks, *usual) == pytest.approx(float(found[1]) / 100, rel=0.15)
    assert error(chunk, *usual) < 0.003
