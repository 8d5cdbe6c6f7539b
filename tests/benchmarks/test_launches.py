"""The benchmark that compares counted calls with those of torch.profiler, on a CPU."""

import json
from importlib import import_module

import pytest
import torch
from support.tiny import run_here
from torch.profiler import ProfilerActivity, profile

from fairseq_lrpe.benchmarks import launches
from fairseq_lrpe.experiments.estimation.launches import Launches, operation_seconds
from fairseq_lrpe.ops import constants

CHUNK_MODULE = import_module("fairseq_lrpe.ops.linear.chunk")


def test_command(tmp_path):
    """Without dropout, which is several operations on a CPU, softmax attention has the calls of a GPU.

    The profiler also records those of fairseq's logs.
    """
    small = "--lengths 64 600 --layers 2 --length 32 --vocab-size 100 --cpu"
    flags = "--dropout 0 --attention-dropout 0 --decoder-embed-dim 64 --decoder-ffn-embed-dim 64"
    models = [f"softmax_lm_base {flags}", "linear_vit_base"]
    file = tmp_path / "new" / "calls.json"
    done = run_here(launches.main, *models, *small.split(), "--json", file)
    assert done.returncode == 0, done.stderr
    assert "calls of operations and kernels on the device cpu" in done.stdout
    short, long, softmax, vit = json.loads(file.read_text())
    assert short["name"] == "linear attention, 64 × 64" and vit["name"] == "linear_vit_base"
    assert short["kernels"] < long["kernels"] < long["calls"]
    assert long["model, ms"] == pytest.approx(1000 * operation_seconds(long["calls"]))
    logs = 50
    assert softmax["calls"] - softmax["detach"] <= softmax["profiler: calls"] <= softmax["calls"] + logs


@pytest.mark.parametrize("length", [64, 600])
def test_the_profiler_counts_the_same_calls(length, monkeypatch):
    monkeypatch.setattr(CHUNK_MODULE, "_uses_all_chunks", lambda q: True)
    monkeypatch.setattr(constants, "is_tracing", lambda: False)  # the counter is a dispatch mode
    step = launches.attention_pass(length, "cpu")
    step()
    with Launches() as counted:
        step()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        step()
    assert counted.calls - counted.detached <= launches.count_calls(recorded.events()) <= counted.calls
    assert launches.count_attention(length)["calls"] == counted.calls


def test_composite_operations():
    assert {"aten::linear", "aten::matmul", "aten::reshape", "aten::to"} <= launches.composite()
    assert not {"aten::mm", "aten::add", "aten::sum", "aten::view", "aten::max"} & launches.composite()


def test_kernels_are_events_of_the_gpu():
    def event(device, is_annotation):
        return type("Event", (), {"device_type": device, "is_user_annotation": is_annotation})

    cuda, cpu = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU
    events = [event(cuda, False), event(cuda, True), event(cpu, False)]
    assert [launches.is_kernel(x) for x in events] == [True, False, False]
