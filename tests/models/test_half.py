"""Training in half precision."""

import pytest
import torch

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


def test_bfloat16_training(train, tmp_path):
    """fairseq's --bf16 selects a TPU."""
    flags = ("--max-update", 2, "--disable-validation", "--bf16", "--fp16-no-flatten-grads")
    done = train("linear_lm_tmlr_type1", tmp_path, *flags)
    assert done.returncode == 0, done.stderr
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert state["cfg"]["common"]["bf16"] and state["optimizer_history"][-1]["num_updates"] == 2
