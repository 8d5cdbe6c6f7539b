"""Trainings in half precision; float16, that of V100s, comes out as float32 does."""

import pytest
import torch

METHODS = {f"linear_lm_{m}": 0.01 for m in ("base", "rope", "per", "tmlr_type1", "tmlr_type2", "tmlr_type3")}
METHODS["softmax_lm_xl"] = 0.01
# Of its noisy denominators some come near zero: in float32, a learning rate that is a thousandth larger or
# smaller moved its perplexity by up to 2.6% here.
METHODS["linear_lm_spe"] = 0.03
HALF = ("--fp16", "--fp16-no-flatten-grads")  # fairseq has flat parameters on GPUs alone


@pytest.mark.parametrize(("arch", "bound"), METHODS.items())
def test_fairseq_trains_in_float16_as_in_float32(arch, bound, train, tmp_path, monkeypatch):
    """The perplexities are the same within the bound, with fairseq's loss scaling."""
    # Where a gradient overflows, fairseq makes a number on the GPU; so --fp16 is refused without one.
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    monkeypatch.setattr("fairseq_lrpe.models.register.check_machine", lambda *_: None)
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


def test_fairseq_trains_in_bfloat16(train, tmp_path):
    """fairseq takes --bf16 for a TPU, of which there is none."""
    flags = ("--max-update", 2, "--disable-validation", "--bf16", "--fp16-no-flatten-grads")
    done = train("linear_lm_tmlr_type1", tmp_path, *flags)
    assert done.returncode == 0, done.stderr
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert state["cfg"]["common"]["bf16"] and state["optimizer_history"][-1]["num_updates"] == 2
