"""Pictures as an experiment: trained, measured, and the settings of the paper."""

import json
import math

import pytest
from pictures import write_classes

from fairseq_lrpe.experiments import train
from fairseq_lrpe.experiments.experiment import Experiment

SMALL = ["train.encoder_layers=1", "train.encoder_embed_dim=16", "train.encoder_ffn_embed_dim=16"]
SMALL += ["train.encoder_attention_heads=2", "train.image_size=8", "batch.total=8", "batch.per_gpu=8"]
SMALL += ["updates=4", "train.warmup_updates=1", "evaluate.flags.batch_size=7"]


def test_a_run_is_measured(tmp_path, capsys):
    data = write_classes(tmp_path / "data")
    words = [
        "imagenet/cifar10_mini",
        "tmlr_type2",
        "--attention",
        "linear",
        "--cpu",
        "--results",
        str(tmp_path),
    ]
    train.main([*words, f"data={data}", *SMALL, "train.recipe=full", "train.repeats=3"])
    [path] = tmp_path.rglob("evaluation.json")
    measured = json.loads(path.read_text())["evaluations"]
    for name in ("valid", "test"):
        assert 0 <= measured[name]["accuracy"] <= measured[name]["accuracy5"] <= 100
    width, patches, labels = 16, 4, 3
    layer = 4 * width**2 + width + 2 * width**2 + 2 * width + 4 * width + 2 * width + 4
    expected = 3 * 4**2 * width + width + (patches + 1) * width + layer + 2 * width + labels * width + labels
    assert measured["test"]["parameters"] == pytest.approx(expected / 1e6)
    assert f"test: accuracy {measured['test']['accuracy']:.2f}" in capsys.readouterr().out


def test_every_setting_of_the_paper():
    """TMLR's Table 8; epochs of ImageNet's 1,281,167 pictures."""
    cfg = Experiment.load("imagenet/deit_small").cfg
    given, epoch = cfg.train, math.ceil(1_281_167 / 1600)
    assert [cfg.updates, given.warmup_updates] == [300 * epoch, 20 * epoch] and cfg.batch.total == 1600
    assert given.lr == pytest.approx(5e-4 * 1600 / 512)
    assert [given.weight_decay, given.adam_betas, given.adam_eps] == [0.05, "(0.9, 0.98)", 1e-8]
    assert cfg.by_method.rope.linear_norm == cfg.by_method.per.linear_norm == "content"
