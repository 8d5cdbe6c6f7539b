"""The example of docs/hydra trains with fairseq-hydra-train."""

import json

import torch
from omegaconf import OmegaConf
from support.tiny import REPOSITORY, run_command, succeeded

SMALL = "common.cpu=true task.tokens_per_sample=32 model.decoder_layers=1 model.decoder_embed_dim=32 "
SMALL += "model.decoder_ffn_embed_dim=64 model.decoder_attention_heads=4 optimization.max_update=2"


def test_documented_example_trains(data_bin, tmp_path):
    words = [f"task.data={data_bin}", *SMALL.split(), "model.dropout=0.3", "dataset.num_workers=0"]
    words += [f"checkpoint.save_dir={tmp_path}/checkpoints"]
    succeeded(run_command("fairseq-hydra-train", "--config-dir", "docs/hydra", "--config-name", "lm", *words))
    state = torch.load(tmp_path / "checkpoints/checkpoint_last.pt", weights_only=True)
    example = OmegaConf.load(REPOSITORY / "docs/hydra/lm.yaml")
    fingerprint = json.loads(bytes(state["model"]["decoder.method.version"].tolist()))
    assert fingerprint["encoding"] == "lrpe" and fingerprint["lrpe_core"] == "unitary"
    cfg = state["cfg"]
    assert cfg["model"]["dropout"] == 0.3 and cfg["model"]["decoder_layers"] == 1
    assert cfg["optimizer"]["adam_betas"] == example.optimizer.adam_betas
    assert cfg["lr_scheduler"]["warmup_updates"] == example.lr_scheduler.warmup_updates
