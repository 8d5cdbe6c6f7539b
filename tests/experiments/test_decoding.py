"""The decoding command, on random tokens and on a data folder, and what it compares."""

from argparse import Namespace
from unittest.mock import patch

import pytest
from tiny import run_command

from fairseq_lrpe.experiments import decoding

SMALL = "--layers 1 --batch-size 3 --beam 2 --rounds 2".split()


def decode(*words):
    return run_command("python", "-m", "fairseq_lrpe.experiments.decoding", *words)


def test_the_command():
    done = decode(*SMALL, "--length", 9, "--vocab-size", 60, "--methods", "base", "t5")
    assert done.returncode == 0, done.stderr
    assert "9 random tokens: 1 + 1 layers, beam 2, batch 3, 2 interleaved batches" in done.stdout
    rows = [line.split("│")[1].strip() for line in done.stdout.splitlines() if "│" in line]
    assert rows == ["linear_transformer_base", "softmax_transformer_base", "softmax_transformer_t5"]


def test_the_data_is_not_there(tmp_path):
    done = decode("--data", tmp_path / "none")
    assert done.returncode == 1 and "none does not exist" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("arch", ["linear_transformer_base", "softmax_transformer_t5"])
def test_every_search_has_the_same_steps(arch):
    args = Namespace(data=None, length=7, layers=1, vocab_size=60, batch_size=3, beam=2, rounds=2)
    steps, own = [], decoding.SequenceGenerator.generate

    def generate(self, models, batch):
        found = own(self, models, batch)
        steps.append([len(beam[0]["tokens"]) for beam in found])
        return found

    with patch.object(decoding.SequenceGenerator, "generate", generate), patch.object(decoding, "WARM_UP", 2):
        times = decoding.compare(arch, args, lambda: None)
    assert steps == [[3] * 3] * 2 + [[8] * 3] * 4
    assert len(times) == 2 and all(ours > 0 and theirs > 0 and n == 3 for ours, theirs, n in times)
