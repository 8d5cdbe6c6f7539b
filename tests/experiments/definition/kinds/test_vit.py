"""Image classification: training, evaluation, `lrpe classify`, and the settings of the paper."""

import math

import pytest
from support.image_files import write_image_dataset
from support.tiny import SMALL_ENCODER, output_of

import fairseq_lrpe
from fairseq_lrpe.cli import classify
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.inference import classify as inference

SMALL = [*SMALL_ENCODER, "train.image_size=8", "batch.total=8", "batch.per_gpu=8"]
SMALL += ["updates=4", "train.warmup_updates=1", "evaluate.flags.batch_size=7"]


@pytest.fixture
def words(tmp_path):
    return ["--attention", "linear", f"data={write_image_dataset(tmp_path / 'data')}", *SMALL]


def test_evaluation(words, evaluated):
    changes = "train.recipe=full", "train.repeats=3"
    run, measured = evaluated("vit/cifar10_mini", "tmlr_type2", *words, *changes)
    for name in ("valid", "test"):
        assert 0 <= measured[name]["accuracy"] <= measured[name]["accuracy5"] <= 100
    model = fairseq_lrpe.load_model(run, cpu=True).model
    assert measured["test"]["parameters"] == pytest.approx(sum(x.numel() for x in model.parameters()) / 1e6)


def test_classify_matches_the_evaluation(words, evaluated, tmp_path, monkeypatch):
    """The command and load_model give the same predictions. The folder has the test set's files."""
    run, measured = evaluated("vit/cifar10_mini", "rope", *words)
    folder = tmp_path / "data.images"
    for file in folder.iterdir():
        if not file.name.startswith("test"):
            file.unlink()
    monkeypatch.setattr(inference, "BATCH_SIZE", 7)
    output = output_of(classify.main, run, folder, "--cpu")
    head, *rows = [line.split("\t") for line in output.splitlines()]
    assert head == ["file", "label", "probability"] and len(rows) == 24
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    right = sum(label == f"class{int(name[4:-4]) % 3}" for name, label, _ in rows)
    assert measured["test"]["accuracy"] == pytest.approx(100 * right / 24, abs=1e-3)
    assert all(1 / 3 <= float(probability) <= 1 for *_, probability in rows)
    found = fairseq_lrpe.load_model(run, cpu=True).classify(sorted(folder.iterdir()))
    assert [[x.label, f"{x.probability:.4f}"] for x in found] == [row[1:] for row in rows]


def test_settings_match_the_paper():
    """TMLR's Table 8; epochs of ImageNet's 1,281,167 images."""
    cfg = Experiment.load("vit/deit_small").cfg
    given, epoch = cfg.train, math.ceil(1_281_167 / 1600)
    assert [cfg.updates, given.warmup_updates] == [300 * epoch, 20 * epoch] and cfg.batch.total == 1600
    assert given.lr == pytest.approx(5e-4 * 1600 / 512)
    assert [given.warmup_init_lr, given.min_lr, given.lr_scheduler] == [1e-6, 1e-5, "cosine"]
    assert [given.weight_decay, given.adam_betas, given.adam_eps] == [0.05, "(0.9, 0.98)", 1e-8]
    assert cfg.by_method.rope.linear_norm == cfg.by_method.per.linear_norm == "content"
