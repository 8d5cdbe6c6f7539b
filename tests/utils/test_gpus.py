"""GPUs that the installed torch or the kernels of linear attention do not support are rejected."""

import sys
from argparse import Namespace
from importlib import import_module

import pytest
import torch
from fairseq import options
from support import tiny

from fairseq_lrpe.attention.fairseq_adapter import FairseqLinearAttention
from fairseq_lrpe.encodings import build_encoding
from fairseq_lrpe.models import argument_validation
from fairseq_lrpe.utils.gpus import check_architectures, gpus_here

FLA = import_module("fairseq_lrpe.ops.linear.fla")

DEFAULT = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]  # torch 2.13's wheels
CU126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
V100, T4, A10, L4, H100 = (7, 0), (7, 5), (8, 6), (8, 9), (9, 0)


@pytest.mark.parametrize("built_for, capabilities, message", [
    (DEFAULT, [T4, A10, L4, H100, (12, 1)], None),
    (DEFAULT, [V100], "(cuda:0) with compute capability 7.0: run `bash scripts/setup_env.sh --torch cu126`"),
    (DEFAULT, [H100, V100], "card 1 (cuda:1) with compute capability 7.0: run"),
    (CU126, [V100, T4, A10, L4, H100], None),
    (CU126, [(12, 0)], "capability 12.0: run `bash scripts/setup_env.sh --torch default`, use --cpu"),
])  # fmt: skip
def test_check_architectures(built_for, capabilities, message, monkeypatch):
    cards = {f"card {i}": capability for i, capability in enumerate(capabilities)}
    tiny.pretend_gpus(monkeypatch, cards, built_for)
    assert list(gpus_here().values()) == capabilities
    if message is None:
        check_architectures()
    else:
        with pytest.raises(ValueError, match=r"^torch .* has no code for ") as error:
            check_architectures()
        assert message in str(error.value)


def test_commands_reject_unsupported_gpus(data_bin, monkeypatch):
    tiny.pretend_gpus(monkeypatch, {"Tesla V100": V100}, DEFAULT)
    words = ["fairseq-train", str(data_bin), "--user-dir", str(tiny.PLUGIN)]
    words += ["--task", "language_modeling", "--arch", "linear_lm_base"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match=r"^fairseq_lrpe: torch .* has no code for Tesla V100"):
        options.parse_args_and_arch(options.get_training_parser())
    sys.argv.append("--cpu")
    options.parse_args_and_arch(options.get_training_parser())


def test_bf16_needs_gpus_that_support_it(monkeypatch):
    def request(cpu=False):
        return Namespace(cpu=cpu, bf16=True)

    for capability in ((8, 0), H100):
        tiny.pretend_gpus(monkeypatch, {"card": capability}, DEFAULT)
        argument_validation.check_machine(request(), "auto")
    tiny.pretend_gpus(monkeypatch, {"H100": H100, "Tesla V100": V100}, CU126)
    argument_validation.check_machine(request(cpu=True), "auto")
    message = r"^Tesla V100 \(cuda:1\) has compute capability 7\.0, but bf16 needs 8\.0: use fp16$"
    with pytest.raises(ValueError, match=message):
        argument_validation.check_machine(request(), "auto")


@pytest.fixture
def no_cache():
    FLA._missing_requirement.cache_clear()
    yield
    FLA._missing_requirement.cache_clear()


@pytest.mark.parametrize("capability, installed, missing", [
    (V100, True, "compute capability 8.0, and card has 7.0"),
    ((8, 0), False, "the package fla-core (pip install '.[gpu]' in the checkout)"),
    ((8, 0), True, None),
    (H100, True, None),
])  # fmt: skip
def test_gpus_with_kernels(capability, installed, missing, monkeypatch, no_cache):
    tiny.pretend_gpus(monkeypatch, {"card": capability}, DEFAULT)
    monkeypatch.setattr(FLA, "find_spec", lambda name: installed or None)
    assert FLA.missing_requirement(torch.device("cuda", 0)) == missing
    ours = missing and missing.replace("fla-core", "triton")
    assert FLA.missing_requirement(torch.device("cuda", 0), "triton") == ours
    assert FLA.missing_requirement(torch.device("cpu")) == "a CUDA GPU (the device is cpu)"


@pytest.mark.parametrize("backend", ["fla", "triton"])
def test_a_model_trained_with_kernels_runs_without_them(backend):
    encoding = build_encoding("rope", num_heads=2, head_dim=8, causal=True)
    trained = FairseqLinearAttention(encoding, backend=backend)
    x = torch.randn(5, 3, 16)
    message = rf"^backend '{backend}' needs a CUDA GPU \(the device is cpu\): use backend 'chunk'$"
    with pytest.raises(ValueError, match=message):
        trained(x)
    plain = FairseqLinearAttention(encoding, backend="chunk").eval()
    plain.load_state_dict(trained.state_dict())
    assert torch.equal(trained.eval()(x)[0], plain(x)[0])


@pytest.mark.parametrize("backend", ["fla", "triton"])
def test_an_unavailable_backend_is_rejected_before_training(backend, train, tmp_path):
    done = train("linear_lm_rope", tmp_path / "save", "--linear-backend", backend)
    message = f"--linear-backend {backend} needs a CUDA GPU (the device is cpu): "
    message += "pass --linear-backend auto or chunk"
    assert done.returncode and done.stderr.strip() == f"fairseq_lrpe: {message}"
    assert not (tmp_path / "save").exists()
