"""The number of operations that a GPU has to start for a module and a training step, counted on a CPU."""

from argparse import Namespace
from importlib import import_module

import pytest
import torch
from support.launches import Launches

from fairseq_lrpe.benchmarks import train
from fairseq_lrpe.encodings import table
from fairseq_lrpe.ops import constants, permutation, rotation

CHUNK_MODULE = import_module("fairseq_lrpe.ops.linear.chunk")
ONE_HEAD = (
    "--decoder-embed-dim 64 --decoder-ffn-embed-dim 64 --decoder-attention-heads 1 --decoder-input-dim 64"
)
ONE_HEAD = f"{ONE_HEAD} --decoder-output-dim 64".split()
FP16 = "--fp16 --fp16-init-scale 4".split()
LENGTH = 512


@pytest.fixture(autouse=True)
def operations_of_gpus(monkeypatch):
    monkeypatch.setattr(CHUNK_MODULE, "_uses_all_chunks", lambda q: True)
    monkeypatch.setattr(table, "_starts_kernels", lambda x: True)
    for module in (constants, permutation, rotation):  # the counter is a dispatch mode
        monkeypatch.setattr(module, "is_tracing", lambda: False)


def arguments(layers, flags):
    sizes = {"batch_size": 1, "length": LENGTH, "layers": layers, "vocab_size": 100, "rounds": 1}
    return Namespace(**sizes, cpu=True, flags=flags, json=None)


@pytest.mark.parametrize(
    "arch, limit",
    [
        ("linear_lm_base", 80),
        ("linear_lm_rope", 95),
        ("linear_lm_per", 100),
        ("linear_lm_tmlr_type1", 115),
        ("softmax_lm_base", 30),
    ],
)
def test_attention_module(arch, limit):
    cfg, task = train.setup(arch, arguments(2, ONE_HEAD))
    attention = task.build_model(cfg.model).decoder.layers[1].self_attn.half().train()

    def run():
        x = torch.randn(LENGTH, 1, 64).half().requires_grad_()
        gradient = torch.ones(LENGTH, 1, 64).half()
        for parameter in attention.parameters():
            parameter.grad = torch.zeros_like(parameter)
        with Launches() as counted:
            attention(x, x, x)[0].backward(gradient)
        return counted.kernels

    run()  # constants are computed once
    assert run() <= limit


@pytest.mark.parametrize("arch, limit", [("linear_lm_base", 720), ("linear_lm_tmlr_type1", 920)])
def test_training_step_in_half_precision(arch, limit, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # fairseq's fp16 optimizer asks for it
    step = train.training_step(arch, arguments(6, [*FP16, *ONE_HEAD]))
    step()
    step()
    with Launches() as counted:
        step()
    assert counted.kernels <= limit
