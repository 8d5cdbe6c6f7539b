"""The decoding benchmark, on random tokens and on a data folder."""

from argparse import Namespace
from unittest.mock import patch

import pytest
from tiny import preprocess, run_here

from fairseq_lrpe.benchmarks import decoding

SMALL = "--layers 1 --batch-size 3 --beam 2 --rounds 2".split()


def decode(*words):
    return run_here(decoding.main, *words)


def test_command():
    done = decode(*SMALL, "--length", 9, "--vocab-size", 60, "--methods", "base", "t5")
    assert done.returncode == 0, done.stderr
    assert "9 random tokens: 1 + 1 layers, beam 2, batch 3, 2 interleaved batches" in done.stdout
    rows = [line.split("│")[1].strip() for line in done.stdout.splitlines() if "│" in line]
    assert rows == ["linear_transformer_base", "softmax_transformer_base", "softmax_transformer_t5"]


def test_on_a_data_folder(tmp_path):
    for split, count in (("train", 20), ("test", 7)):
        for language in ("en", "de"):
            lines = (" ".join(f"{language}{(i * j) % 5}" for j in range(2 + i)) + "\n" for i in range(count))
            (tmp_path / f"{split}.{language}").write_text("".join(lines))
    words = ["-s", "en", "-t", "de", "--trainpref", tmp_path / "train", "--testpref", tmp_path / "test"]
    preprocess(*words, "--destdir", tmp_path / "bin", "--workers", 1)
    done = decode(*SMALL, "--rounds", 9, "--data", tmp_path / "bin", "--attention", "linear")
    assert done.returncode == 0, done.stderr
    assert "bin, test: 1 + 1 layers" in " ".join(done.stdout.split())
    assert "3 interleaved batches" in " ".join(done.stdout.split())  # 7 sentences make no more


@pytest.mark.parametrize("arch", ["linear_transformer_base", "softmax_transformer_t5"])
def test_every_search_has_the_same_number_of_steps(arch):
    args = Namespace(data=None, length=7, layers=1, vocab_size=60, batch_size=3, beam=2, rounds=2)
    steps, own = [], decoding.SequenceGenerator.generate

    def generate(self, models, batch):
        hypotheses = own(self, models, batch)
        steps.append([len(beam[0]["tokens"]) for beam in hypotheses])
        return hypotheses

    with (
        patch.object(decoding.SequenceGenerator, "generate", generate),
        patch.object(decoding, "WARM_UP_STEPS", 2),
    ):
        times = decoding.compare(arch, args)
    assert steps == [[3] * 3] * 2 + [[8] * 3] * 4
    assert len(times) == 2 and all(ours > 0 and theirs > 0 and n == 3 for ours, theirs, n in times)
