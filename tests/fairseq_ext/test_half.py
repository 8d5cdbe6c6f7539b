"""Training in half precision."""

import pytest
import torch
from fairseq import utils
from support.commands import load_last_checkpoint
from support.tiny import succeeded

from fairseq_lrpe.fairseq_ext.foreach_optimizer import total_norm
from fairseq_lrpe.fairseq_ext.patches import _norm_of_each_dtype
from fairseq_lrpe.ops.rotation import rotary_angles

HALF = ("--fp16", "--fp16-no-flatten-grads")  # fairseq supports flat parameters on GPUs only


@pytest.mark.parametrize("arch", ["linear_lm_per", "linear_lm_tmlr_type1", "softmax_lm_xl"])
def test_float16_training_matches_float32(arch, train, tmp_path, monkeypatch):
    """With fairseq's loss scaling, the perplexities differ by at most 1%."""
    # If a gradient overflows, fairseq creates a tensor on the GPU.
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    perplexities = {}
    for name, flags in (("single", ()), ("half", HALF)):
        save = tmp_path / name
        updates = ("--lr", 0.002, "--max-update", 30, "--validate-interval-updates", 30)
        succeeded(train(arch, save, *updates, "--no-epoch-checkpoints", *flags))
        state = torch.load(save / "checkpoint_last.pt", weights_only=True)
        assert ("loss_scale" in state["last_optimizer_state"]) == bool(flags)
        perplexities[name] = 2 ** state["extra_state"]["val_loss"]
    assert perplexities["single"] < 40
    assert perplexities["half"] == pytest.approx(perplexities["single"], rel=0.01)


THETAS = [f"decoder.layers.{i}.self_attn.encoding.theta" for i in range(2)]
FORMS = {
    "flat": ("--fp16",),
    "bf16": ("--bf16", "--fp16-no-flatten-grads"),  # fairseq itself would select a TPU
}


@pytest.mark.parametrize("form", FORMS)
def test_angles_are_trained_in_float32(form, train, tmp_path, monkeypatch):
    """Learned angles are float32 in checkpoints, change, and are trained further after resuming."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # the device index of flat parameters
    dtype = torch.bfloat16 if form == "bf16" else torch.float16
    flags = (*FORMS[form], "--disable-validation", *(() if form == "bf16" else ("--fp16-init-scale", 4)))
    thetas = [rotary_angles("a", 8, 8, 32).float()]
    for updates in (3, 6):
        succeeded(train("linear_lm_tmlr_type1", tmp_path, "--max-update", updates, *flags))
        model = load_last_checkpoint(tmp_path)["model"]
        # fairseq converts checkpoints to float32.
        rounded = {name for name, x in model.items() if x.equal(x.to(dtype).to(x.dtype))}
        assert {name for name in model.keys() - rounded if "version" not in name} == set(THETAS)
        thetas.append(model[THETAS[1]])
        change = (thetas[-1] - thetas[-2]).abs()
        assert (change > 1e-5).all() and change.max() < 0.1


def test_gradient_norm_of_two_dtypes():
    """Apex's kernel must not get gradients of both at once."""
    calls, gradients = [], [torch.randn(5).to(dtype) for dtype in (torch.half, torch.float) * 2]

    def norm(grads):
        calls.append({g.dtype for g in grads})
        return torch.cat(grads).norm()

    found = _norm_of_each_dtype(norm, gradients)
    assert sorted(map(len, calls)) == [1, 1] and set.union(*calls) == {torch.half, torch.float}
    torch.testing.assert_close(found, torch.cat([g.float() for g in gradients]).norm(), rtol=1e-3, atol=0)
    installed = utils.multi_tensor_total_norm
    assert installed is total_norm or installed.__wrapped__  # without and with Apex
