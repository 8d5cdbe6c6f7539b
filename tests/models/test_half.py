"""Training in half precision."""

import pytest
import torch
from commands import load_last_checkpoint
from fairseq_cli import eval_lm
from tiny import PLUGIN, run_here

from fairseq_lrpe.ops.rotation import rotary_frequencies

METHODS = {f"linear_lm_{m}": 0.01 for m in ("base", "rope", "per", "tmlr_type1", "tmlr_type2", "tmlr_type3")}
METHODS["softmax_lm_xl"] = 0.01
# Some of its noisy denominators are near zero: in float32, changing the learning rate by 0.1% changed the
# perplexity by up to 2.6%.
METHODS["linear_lm_spe"] = 0.03
HALF = ("--fp16", "--fp16-no-flatten-grads")  # fairseq supports flat parameters on GPUs only


@pytest.mark.parametrize(("arch", "bound"), METHODS.items())
def test_float16_training_matches_float32(arch, bound, train, tmp_path, monkeypatch):
    """With fairseq's loss scaling, the perplexities differ by at most ``bound``."""
    # If a gradient overflows, fairseq creates a tensor on the GPU.
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    perplexities = {}
    for name, flags in (("single", ()), ("half", HALF)):
        save = tmp_path / name
        updates = ("--lr", 0.002, "--max-update", 30, "--validate-interval-updates", 30)
        done = train(arch, save, *updates, "--no-epoch-checkpoints", *flags)
        assert done.returncode == 0, done.stderr
        state = torch.load(save / "checkpoint_last.pt", weights_only=True)
        assert ("loss_scale" in state["last_optimizer_state"]) == bool(flags)
        perplexities[name] = 2 ** state["extra_state"]["val_loss"]
    assert perplexities["single"] < 40
    assert perplexities["half"] == pytest.approx(perplexities["single"], rel=bound)


FORMS = {
    "fp16": HALF,
    "flat": ("--fp16",),
    "memory-efficient": ("--memory-efficient-fp16",),
    "bf16": ("--bf16", "--fp16-no-flatten-grads"),
    "ema": (*HALF, "--store-ema", "--ema-fp32"),
}


@pytest.mark.parametrize("form", FORMS)
def test_angles_are_trained_in_float32(form, train, data_bin, tmp_path, monkeypatch):
    """Learned angles are float32 in checkpoints, change, and are those of evaluations and resumed trainings."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # the device index of flat parameters
    dtype = torch.bfloat16 if form == "bf16" else torch.float16
    scale = () if form == "bf16" else ("--fp16-init-scale", 4)
    thetas = [rotary_frequencies("a", 8, 8, 32).float()]
    for updates in (3, 6):
        done = train("linear_lm_tmlr_type1", tmp_path, "--max-update", updates, *FORMS[form], *scale)
        assert done.returncode == 0, done.stderr
        model = load_last_checkpoint(tmp_path)["model"]
        assert {x.dtype for name, x in model.items() if "theta" not in name and x.is_floating_point()} == {
            dtype
        }
        thetas.append(model["decoder.layers.1.self_attn.encoding.theta"])
        assert thetas[-1].dtype == torch.float32 and not thetas[-1].equal(thetas[-1].to(dtype).float())
        assert (1e-5 < (thetas[-1] - thetas[-2]).abs()).all() and (thetas[-1] - thetas[-2]).abs().max() < 0.1
    path = tmp_path / "checkpoint_last.pt"
    common = ("--user-dir", PLUGIN, "--path", path, "--cpu", "--batch-size", 4, "--tokens-per-sample", 32)
    done = run_here(eval_lm.cli_main, data_bin, *common, *(("--fp16",) if form == "fp16" else ()))
    assert done.returncode == 0, done.stderr


def test_bfloat16_training(train, tmp_path):
    """fairseq's --bf16 selects a TPU."""
    flags = ("--max-update", 2, "--disable-validation", "--bf16", "--fp16-no-flatten-grads")
    done = train("linear_lm_tmlr_type1", tmp_path, *flags)
    assert done.returncode == 0, done.stderr
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert state["cfg"]["common"]["bf16"] and state["optimizer_history"][-1]["num_updates"] == 2
