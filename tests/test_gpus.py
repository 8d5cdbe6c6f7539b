"""GPUs that the installed torch, or linear attention's kernels, cannot use are refused in one sentence."""

import sys
from argparse import Namespace

import pytest
import tiny
import torch
from fairseq.utils import import_user_module

from fairseq_lrpe.attention import LinearAttention
from fairseq_lrpe.encodings import build_encoding
from fairseq_lrpe.gpus import check_architectures, gpus_here
from fairseq_lrpe.measure import benchmark, decoding, gpu_check, speed
from fairseq_lrpe.models import door
from fairseq_lrpe.ops.linear_attention import fla

DEFAULT = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]  # torch 2.13's wheels
CU126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
V100, T4, A10, L4, H100 = (7, 0), (7, 5), (8, 6), (8, 9), (9, 0)


@pytest.mark.parametrize("built_for, capabilities, refused", [
    (DEFAULT, [T4, A10, L4, H100, (12, 1)], None),
    (DEFAULT, [V100], "0 (cuda:0), of compute capability 7.0: run `bash scripts/setup_env.sh --torch cu126`"),
    (DEFAULT, [H100, V100], "card 1 (cuda:1), of compute capability 7.0: run"),
    (CU126, [V100, T4, A10, L4, H100], None),
    (CU126, [(12, 0)], "capability 12.0: run `bash scripts/setup_env.sh --torch default`, give --cpu"),
    (["sm_90a"], [A10], "of compute capability 8.6"),
    (["sm_86"], [(8, 0)], "of compute capability 8.0"),
])  # fmt: skip
def test_a_gpu_that_torch_has_no_code_for(built_for, capabilities, refused, monkeypatch):
    cards = {f"card {i}": capability for i, capability in enumerate(capabilities)}
    tiny.pretend_gpus(monkeypatch, cards, built_for)
    assert list(gpus_here().values()) == capabilities
    if refused is None:
        check_architectures()
    else:
        with pytest.raises(ValueError, match=r"^torch .* has no code for ") as error:
            check_architectures()
        assert refused in str(error.value)


def test_no_gpu_is_no_reason_to_refuse():
    check_architectures()


@pytest.mark.parametrize("words, refused", [
    (["fairseq-train", "data", "--user-dir", "fairseq_lrpe"], True),
    (["fairseq-eval-lm", "data", "--user-dir", "fairseq_lrpe", "--path", "checkpoint.pt"], True),
    (["fairseq-train", "data", "--user-dir", "fairseq_lrpe", "--cpu"], False),
    (["fairseq-hydra-train", "common.user_dir=fairseq_lrpe"], True),
    (["fairseq-hydra-train", "common.user_dir=fairseq_lrpe", "common.cpu=true"], False),
    (["a_program_of_its_own"], False),
])  # fmt: skip
def test_fairseqs_commands_look_when_they_load_the_plugin(words, refused, monkeypatch):
    tiny.pretend_gpus(monkeypatch, {"Tesla V100": V100}, DEFAULT)
    monkeypatch.setattr(import_user_module, "memo", {"here"}, raising=False)
    monkeypatch.setattr(sys, "argv", words)
    if refused:
        with pytest.raises(SystemExit, match=r"^fairseq_lrpe: torch .* has no code for Tesla V100"):
            door.check_command_line()
    else:
        door.check_command_line()


def test_bfloat16_is_for_gpus_that_have_it(monkeypatch):
    def request(cpu=False):
        return Namespace(cpu=cpu, bf16=True, fp16=False, tpu=True)  # as fairseq makes of --bf16

    for capability in ((8, 0), H100):
        tiny.pretend_gpus(monkeypatch, {"card": capability}, DEFAULT)
        asked = request()
        door.check_machine(asked, "auto")
        assert not asked.tpu
    tiny.pretend_gpus(monkeypatch, {"H100": H100, "Tesla V100": V100}, CU126)
    door.check_machine(request(cpu=True), "auto")
    with pytest.raises(
        ValueError, match=r"^bf16 needs .* 8\.0, and Tesla V100 \(cuda:1\) has 7\.0: use fp16$"
    ):
        door.check_machine(request(), "auto")


@pytest.mark.parametrize("program", [benchmark, decoding, gpu_check, speed])
def test_measurements_look_before_they_start(program, monkeypatch, tmp_path):
    tiny.pretend_gpus(monkeypatch, {"Tesla V100": V100}, DEFAULT)
    monkeypatch.chdir(tmp_path)
    done = tiny.run_here(program.main)
    assert done.returncode == 1 and "torch" in done.stderr
    assert "has no code for Tesla V100" in done.stderr and not list(tmp_path.iterdir())


@pytest.fixture
def looks_anew():
    fla.fla_lacks.cache_clear()
    yield
    fla.fla_lacks.cache_clear()


@pytest.mark.parametrize("capability, installed, lacks", [
    (V100, True, "compute capability 8.0, and card has 7.0"),
    (T4, True, "compute capability 8.0, and card has 7.5"),
    ((8, 0), False, "the package fla-core (pip install 'fairseq-lrpe[gpu]')"),
    ((8, 0), True, None),
    (H100, True, None),
])  # fmt: skip
def test_which_gpus_take_the_kernels(capability, installed, lacks, monkeypatch, looks_anew):
    tiny.pretend_gpus(monkeypatch, {"card": capability}, DEFAULT)
    monkeypatch.setattr(fla, "find_spec", lambda name: installed or None)
    assert fla.fla_lacks(torch.device("cuda", 0)) == lacks
    assert fla.fla_lacks(torch.device("cpu")) == "a GPU and not the cpu"


def test_a_model_that_kernels_trained_is_used_without_them():
    encoding = build_encoding("rope", num_heads=2, head_dim=8, causal=True)
    asked = LinearAttention(encoding, backend="fla")
    x = torch.randn(5, 3, 16)
    with pytest.raises(ValueError, match=r"^backend 'fla' needs a GPU and not the cpu: use backend 'chunk'$"):
        asked(x)
    plain = LinearAttention(encoding, backend="chunk").eval()
    plain.load_state_dict(asked.state_dict())
    assert torch.equal(asked.eval()(x)[0], plain(x)[0])


@pytest.mark.parametrize("backend, message", [
    ("fla", "fairseq_lrpe: --linear-backend fla needs a GPU and not the cpu: give auto or chunk"),
    ("magic", "fairseq_lrpe: unknown linear backend 'magic': choose from auto, chunk, fla"),
])  # fmt: skip
def test_a_backend_that_is_not_here_is_refused_before_training(backend, message, train, tmp_path):
    done = train("linear_lm_rope", tmp_path / "save", "--linear-backend", backend)
    assert done.returncode and done.stderr.strip() == message
    assert not (tmp_path / "save").exists()


def test_the_backend_is_no_part_of_a_models_method(train, tmp_path):
    """A checkpoint goes on with another one, to the same numbers."""
    short = ["--max-update", "2", "--disable-validation"]
    assert train("linear_lm_rope", tmp_path, *short, "--linear-backend", "chunk").returncode == 0
    done = train("linear_lm_rope", tmp_path, "--max-update", "3", "--disable-validation")
    assert done.returncode == 0, done.stderr
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert state["optimizer_history"][-1]["num_updates"] == 3
