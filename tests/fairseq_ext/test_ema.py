"""--store-ema: averages equal those computed from the state dicts after all updates."""

import pytest
import torch
from fairseq.checkpoint_utils import save_ema_as_checkpoint
from fairseq.dataclass.configs import EMAConfig
from fairseq.models.ema import build_ema
from support.commands import assert_same_weights, evaluated_loss, load_last_checkpoint
from support.tiny import succeeded
from support.tiny_models import build_small

ARCHITECTURES = {
    "linear_lm_per": {"share_decoder_input_output_embed": True},  # integer buffers and tied weights
    "softmax_lm_tupe_r": {},  # shared by all layers
    "linear_roberta_tmlr_type3": {},
    "linear_transformer_iclr_type4": {"share_all_embeddings": True, "token_positions": "rnn"},
    "softmax_question_generator_fire": {},
    "linear_classifier_spe": {},  # statistics of BatchNorm
    "linear_vit_tmlr_type3": {},
}


def average(states, decay, start=0, frequency=1):
    """Returns the average of the states after updates 1, 2, ..."""
    result = states[0]
    for update, state in enumerate(states, 1):
        if update % frequency == 0:
            d = decay if update >= start else 0.0
            result = {name: d * result[name].double() + (1 - d) * x.double() for name, x in state.items()}
    return result


def assert_equal(found, expected, atol):
    assert found.keys() == expected.keys()
    for name, x in found.items():
        torch.testing.assert_close(x.double(), expected[name].double(), rtol=0, atol=atol, msg=name)


@pytest.mark.parametrize("arch, half", [*((arch, False) for arch in ARCHITECTURES), ("linear_lm_per", True)])
@torch.no_grad()
def test_average_of_every_family(arch, half):
    model = build_small(arch, **ARCHITECTURES[arch])
    model = model.half() if half else model
    ema = build_ema(model, EMAConfig(ema_decay=0.7, ema_fp32=half), None)
    states = [{name: x.clone() for name, x in model.state_dict().items()}]
    for update in range(1, 5):
        for x in [*model.parameters(), *(b for name, b in model.named_buffers() if "running" in name)]:
            x += torch.rand(x.shape).to(x.dtype)
        ema.step(model, update)
        states.append({name: x.clone() for name, x in model.state_dict().items()})
    assert_equal(ema.get_model().state_dict(), average(states, 0.7), 5e-3 if half else 2e-6)
    assert {x.dtype for x in ema.get_model().parameters()} == {x.dtype for x in model.parameters()}


def average_in(folder):
    return load_last_checkpoint(folder)["extra_state"]["ema"]


FLAGS = ["--share-decoder-input-output-embed", "--no-epoch-checkpoints", "--disable-validation"]
EMA = ["--store-ema", "--ema-decay", 0.6, "--ema-start-update", 3, "--ema-update-freq", 2]


def test_training_with_an_average(train, data_bin, tmp_path, caplog):
    """Training, resuming, evaluation, and training from an average or without one."""
    arch, whole, resumed = "linear_lm_per", tmp_path / "whole", tmp_path / "resumed"
    flags = [*FLAGS, *EMA]
    succeeded(train(arch, whole, *flags, "--save-interval-updates", 1, "--max-update", 7))
    states = [torch.load(whole / f"checkpoint_1_{n}.pt", weights_only=True)["model"] for n in range(1, 8)]
    expected = average_in(whole)
    assert_equal(expected, average(states, 0.6, start=3, frequency=2), 1e-6)

    for updates in (3, 7):
        succeeded(train(arch, resumed, *flags, "--max-update", updates))
    assert_same_weights(whole, resumed)
    assert_equal(average_in(resumed), expected, 0)

    save_ema_as_checkpoint(str(whole / "checkpoint_last.pt"), str(tmp_path / "average.pt"))
    evaluated_loss(caplog, data_bin, tmp_path / "average.pt", "--batch-size", 4, "--tokens-per-sample", 32)

    seed = ["--ema-seed-model", whole / "checkpoint_last.pt", "--store-ema", "--ema-decay", 1]
    succeeded(train(arch, tmp_path / "seeded", *FLAGS, *seed, "--max-update", 1))
    assert_equal(average_in(tmp_path / "seeded"), expected, 0)

    plain = tmp_path / "plain"
    succeeded(train(arch, plain, *FLAGS, "--max-update", 2))
    before = load_last_checkpoint(plain)["model"]
    succeeded(train(arch, plain, *FLAGS, "--store-ema", "--ema-decay", 0.25, "--max-update", 3))
    after = load_last_checkpoint(plain)["model"]
    assert_equal(average_in(plain), average([before, after], 0.25), 1e-6)
