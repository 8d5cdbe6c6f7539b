"""A small translation corpus and a model trained on it."""

import json
import random
from pathlib import Path

import pytest
from support.tiny import run_command, run_here

from fairseq_lrpe.cli.train import main

SMALL = (
    "batch.total=300 batch.per_gpu=300 updates=30 train.encoder_layers=1 train.decoder_layers=1 "
    "train.warmup_updates=10 train.validate_interval_updates=15 train.save_interval_updates=15 "
    "evaluate.flags.beam=2 evaluations.valid=null"
).split()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder prepared like multi30k, in which German is English word by word."""
    folder, draw = tmp_path_factory.mktemp("corpus"), random.Random(0)
    words = {"dog": "Hund", "cat": "Katze", "sees": "sieht", "a": "ein", "the": "der", "big": "große"}
    for split, count in (("train", 300), ("val", 20), ("test", 20)):
        english = [[draw.choice(list(words)) for _ in range(draw.randrange(3, 9))] for _ in range(count)]
        for language, translate in (("en", str), ("de", words.get)):
            lines = (" ".join(map(translate, line)).capitalize() + " .\n" for line in english)
            (folder / f"{split}.{language}").write_text("".join(lines))
    words = ["multi30k", "--from", folder, "--workers", 1, "--out", folder / "out", "--bpe-types", 30]
    done = run_command("python", "-m", "fairseq_lrpe", "prepare", *words)
    assert done.returncode == 0, done.stderr
    return folder / "out"


@pytest.fixture(scope="session")
def small_translation():
    """Overrides of the tiny model."""
    return SMALL


@pytest.fixture(scope="session")
def train_translation(corpus):
    """train_translation(results, method, *words) trains a tiny model and returns (folder, output)."""

    def train(results, method, *words):
        words = [method, "--cpu", "--results", results, f"data={corpus}/bin", *SMALL, *words]
        done = run_here(main, "transformer/multi30k", *words)
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.splitlines()[-1].removeprefix("finished: ")), done.stdout

    return train


@pytest.fixture
def evaluated(tmp_path):
    """evaluated(experiment, method, *words) trains a model; returns (its folder, the evaluations)."""

    def evaluated(experiment, method, *words):
        done = run_here(main, experiment, method, "--cpu", "--results", tmp_path / "results", *words)
        assert done.returncode == 0, done.stderr
        [path] = (tmp_path / "results").rglob("evaluation.json")
        return path.parent, json.loads(path.read_text())["evaluations"]

    return evaluated


@pytest.fixture(scope="session")
def translating(train_translation, tmp_path_factory):
    """Returns (folder, output) of a trained and evaluated model."""
    return train_translation(tmp_path_factory.mktemp("results"), "iclr_type4")
