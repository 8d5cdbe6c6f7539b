"""The benchmark of linear attention: its command and its measurement of memory."""

from argparse import Namespace

import pytest
import torch
from support.tiny import run_here

from fairseq_lrpe.benchmarks import linear_attention


def test_command(tmp_path, monkeypatch):
    plot = tmp_path / "new" / "b.png"
    monkeypatch.setattr(linear_attention, "TOKENS", 512)
    sizes = "--lengths 128 512 --positions 4 8 --heads 1 --width 8 --rounds 1 --dtype bfloat16 --busy 1"
    done = run_here(linear_attention.main, *sizes.split(), "--plot", plot)
    assert done.returncode == 0, done.stderr
    for text in (
        "masked n × n",
        "bfloat16",
        "plain chunks",
        "exponent of time",
        "beside 1 busy",
        "softmax, 8",
    ):
        assert text in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_one_length_is_not_plotted(tmp_path):
    plot = tmp_path / "b.png"
    sizes = "--lengths 64 --positions 4 --heads 1 --width 8 --rounds 1 --cpu"
    done = run_here(linear_attention.main, *sizes.split(), "--plot", plot)
    assert done.returncode == 0, done.stderr
    assert "no plot, which needs more than one of --lengths" in done.stdout
    assert not plot.exists()


def test_other_implementations_are_measured_if_one_lacks_memory(monkeypatch):
    def masked(q, k, v):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(linear_attention, "masked", masked)
    args = Namespace(lengths=[64, 128], heads=2, width=8, dtype="float32", rounds=1, cpu=True)
    rows = linear_attention.measure(args)
    assert {row["model"] for row in rows} == {"chunk", "plain chunks", "softmax"}
    assert [row["length"] for row in rows] == [64] * 3 + [128] * 3


def test_exponent_of_a_power():
    rows = [{"length": n, "batch": 2, "ms": 6e-6 * n**1.5} for n in (512, 1024, 4096)]
    assert linear_attention.exponent(rows) == pytest.approx(1.5)


def test_memory_is_linear_in_the_length():
    """Besides q, k, v and all gradients, it is at most 3.5 times q, k and v; n × n scores exceed that."""
    args = Namespace(lengths=[1024, 4096], heads=2, width=64, dtype="float32", rounds=1, cpu=True)
    for row in linear_attention.measure(args):
        qkv = 3 * 4 * row["length"] * row["batch"] * 2 * 64 / 2**20
        if row["model"] == "chunk":
            assert (7 + 1) / 3 * qkv <= row["MiB"] < (7 / 3 + 3.5) * qkv  # the output is one third
        elif row["model"] == "masked n × n":
            assert row["MiB"] > 2 * 4 * row["batch"] * 2 * row["length"] ** 2 / 2**20
