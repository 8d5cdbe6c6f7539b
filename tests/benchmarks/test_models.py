"""The benchmarks of training and of generation."""

import json
from argparse import Namespace

import pytest
import torch
from support.tiny import run_here

from fairseq_lrpe.benchmarks import generate, measurement, train
from fairseq_lrpe.benchmarks.train import parse_flags

SMALL = "--layers 1 --batch-size 1 --rounds 1 --vocab-size 100".split()


@pytest.mark.parametrize(
    "archs",
    [
        ["transformer_lm", "linear_lm_rope", "linear_lm_rope --checkpoint-activations"],
        ["roberta", "softmax_roberta_deberta"],
        ["linear_transformer_base", "softmax_question_generator_gcdf"],
        ["softmax_classifier_base", "linear_classifier_per"],
        ["linear_vit_tmlr_type1"],
    ],
)
def test_training(archs, tmp_path):
    length = 32
    done = run_here(train.main, *archs, *SMALL, "--length", length, "--json", tmp_path / "x.json")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "x.json").read_text())
    assert [row["model"] for row in rows] == archs and rows[0]["relative"] == 1
    # Adam's state is two copies of the parameters, beside weights and gradients.
    args = Namespace(length=length, vocab_size=100, layers=1, batch_size=1, cpu=True, flags=[])
    cfg, task = train.setup(archs[0], args)
    size = sum(parameter.nbytes for parameter in task.build_model(cfg.model).parameters())
    assert all(row["ms"] > 0 for row in rows) and rows[0]["MiB"] > 4 * size / 2**20


def test_flags_after_two_dashes_apply_to_all(tmp_path):
    archs = ["linear_lm_base", "linear_lm_base --decoder-embed-dim 64"]
    words = [*archs, *SMALL, "--length", 16, "--json", tmp_path / "x.json", "--", "--decoder-embed-dim", 128]
    done = run_here(train.main, *words)
    assert done.returncode == 0, done.stderr
    large, small = json.loads((tmp_path / "x.json").read_text())
    assert large["MiB"] > 1.4 * small["MiB"]


def test_generation(tmp_path):
    words = [*SMALL, "--length", 6, "--beam", 2, "--json", tmp_path / "new/x.json"]
    decoder = "--decoder-attention linear --encoding-in both"
    archs = ["linear_lm_rope", "transformer_lm", "transformer", f"linear_transformer_rope {decoder}"]
    archs += ["softmax_lm_tupe_a", "linear_lm_base --token-positions learned"]  # with tables of positions
    done = run_here(generate.main, *archs, *words)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "new/x.json").read_text())
    assert [row["model"] for row in rows] == archs
    assert all(row["tokens/s"] == pytest.approx(1000 / row["ms a token"]) for row in rows)


def test_relative_speed_is_that_of_medians_in_interleaved_rounds(monkeypatch):
    """With a clock that counts 1 second for a step of the first model, and 4 for one of the second."""
    clock, order = [0], []

    def build(arch):
        def step():
            order.append(arch)
            clock.append(clock[-1] + (4 if arch == "slow" else 1))

        return step

    monkeypatch.setattr(measurement, "timer", lambda: clock[-1])
    first, second = measurement.compare(build, ["fast", "slow"], Namespace(rounds=2, cpu=True))
    assert (first["ms"], second["ms"]) == (1000, 4000)
    assert (second["relative"], second["spread"]) == (0.25, "0.25-0.25")
    assert order[4:] == ["fast", "slow", "slow", "fast", "fast", "slow"]  # after those for the memory


def test_peak_memory():
    def allocate():
        first = torch.empty(1000, dtype=torch.float64)
        second = first + 1
        del first
        return second.view(10, 100) + second.mean()

    assert measurement.peak_memory(allocate, cpu=True) == 2 * 8000 + 8


def test_bf16_does_not_select_a_tpu():
    """fairseq's --bf16 sets --tpu, and its trainer would use a TPU."""
    common = parse_flags(["--arch", "linear_lm_base", "--task", "dummy_lm", "--bf16"]).common
    assert common.bf16 and not common.tpu
