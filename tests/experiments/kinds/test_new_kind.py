"""A kind of experiment is one file and a YAML: a throw-away one, classification of lines."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from tiny import REPOSITORY, preprocess

KIND = '''
"""Which of two languages a line is in."""

from fairseq_lrpe.experiments.kinds.base import Curve, Kind, validated
from fairseq_lrpe.files import REPOSITORY


class Lines(Kind):
    task = "sentence_prediction"
    family = "roberta"
    metrics = {"accuracy": "higher"}
    curve = Curve("valid_accuracy", "validation accuracy", "higher")

    def data(self, cfg):
        folders = [REPOSITORY / cfg.data / part for part in ("input0", "label")]
        return [folder / f"{split}.bin" for split in self.splits(cfg) for folder in folders]

    def flags(self, job):
        return {**super().flags(job), "num_classes": 2}

    def evaluate(self, job, name):
        flags = {"task": self.task, "criterion": self.task}
        log = self.evaluated(job, name, "fairseq-validate", "valid_subset", **flags)
        return {"accuracy": float(validated(log, self.evaluations(job.cfg)[name]["split"])["accuracy"])}


KIND = Lines()
'''
YAML = """
kind: lines
data: data/lines
batch: {total: 8, per_gpu: 8}
updates: 12
train:
  criterion: sentence_prediction
  encoder_layers: 1
  encoder_embed_dim: 16
  encoder_ffn_embed_dim: 16
  encoder_attention_heads: 2
  max_positions: 32
  optimizer: adam
  lr: 1e-2
  best_checkpoint_metric: accuracy
  maximize_best_checkpoint_metric: true
  validate_interval_updates: 4
  no_epoch_checkpoints: true
  num_workers: 0
  data_buffer_size: 0
  log_interval: 4
evaluations: {valid: {split: valid}}
evaluate: {flags: {batch_size: 8}}
choose: {train.lr: [1e-2, 1e-8]}
"""
TABLE = """
title: Which language a line is in
columns: {accuracy: {experiment: lines/own, evaluation: valid}}
rows:
  - {row: k = 2, attention: softmax, method: shaw, changes: {train.shaw_k: 2}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("place")
    for name in ("fairseq_lrpe", "configs"):
        shutil.copytree(REPOSITORY / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    (place / "fairseq_lrpe/experiments/kinds/lines.py").write_text(KIND)
    (place / "configs/lines").mkdir()
    (place / "configs/lines/own.yaml").write_text(YAML)
    (place / "configs/tables/lines.yaml").write_text(TABLE)
    for split, count in (("train", 64), ("valid", 16)):
        lines = [" ".join(f"{'ab'[i % 2]}{(i * j) % 7}" for j in range(1, 5)) for i in range(count)]
        (place / f"{split}.input0").write_text("\n".join(lines) + "\n")
        (place / f"{split}.label").write_text("".join(f"{'ab'[i % 2]}\n" for i in range(count)))
    for part in ("input0", "label"):
        words = ["--trainpref", place / f"train.{part}", "--validpref", place / f"valid.{part}"]
        words += ["--only-source", "--destdir", place / "data/lines" / part]
        preprocess(*words)
    return place


def test_its_table_is_trained_chosen_shown_and_drawn(place):
    module = ["-m", "fairseq_lrpe.experiments.schedule", "lines", "--gpus", "0", "--plot", "lines.png"]
    done = subprocess.run(
        [sys.executable, *module],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = place / "results/lines/own/softmax_shaw/train.shaw_k=2/seed-1/evaluation.json"
    record = json.loads(record.read_text())
    scores = {name: found["valid"]["accuracy"] for name, found in record["tried"].items()}
    assert set(scores) == {"train.lr=0.01", "train.lr=1e-08"} and scores[record["chosen"]] == 100
    assert "| softmax | k = 2 | 100.00 (1) |" in done.stdout
    assert (place / "lines.png").read_bytes().startswith(b"\x89PNG")
