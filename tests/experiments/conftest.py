"""A small translation corpus and a model trained on it."""

import random
from pathlib import Path

import pytest
from support.tiny import output_of, read, run_command

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
def train_translation(corpus):
    """train_translation(results, method, *words): (folder, output) of a model that has its ``overrides``."""

    def train(results, method, *words):
        words = [method, "--cpu", "--results", results, f"data={corpus}/bin", *SMALL, *words]
        output = output_of(main, "transformer/multi30k", *words)
        return Path(output.splitlines()[-1].removeprefix("finished: ")), output

    train.overrides = SMALL
    return train


@pytest.fixture
def evaluated(tmp_path):
    """evaluated(experiment, method, *words) trains a model; returns (its folder, the evaluations)."""

    def evaluated(experiment, method, *words):
        output_of(main, experiment, method, "--cpu", "--results", tmp_path / "results", *words)
        [path] = (tmp_path / "results").rglob("evaluation.json")
        return path.parent, read(path.parent)["evaluations"]

    return evaluated


@pytest.fixture(scope="session")
def translating(train_translation, tmp_path_factory):
    """Returns (folder, output) of a trained and evaluated model."""
    return train_translation(tmp_path_factory.mktemp("results"), "iclr_type4")
