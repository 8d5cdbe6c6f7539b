"""The benchmark of linear attention: its command and its measurement of memory."""

from argparse import Namespace

import pytest
from tiny import run_here

from fairseq_lrpe.benchmarks import linear_attention


def test_command(tmp_path, monkeypatch):
    plot = tmp_path / "new" / "b.png"
    monkeypatch.setattr(linear_attention, "TOKENS", 512)
    sizes = "--lengths 128 512 --positions 4 8 --heads 1 --width 8 --rounds 1 --dtype bfloat16"
    done = run_here(linear_attention.main, *sizes.split(), "--plot", plot)
    assert done.returncode == 0, done.stderr
    for text in ("128 × 4", "512 × 1", "masked n × n", "bfloat16", "exponent of time", "tokens before"):
        assert text in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--lengths 0", "--lengths: must be an integer of at least 1, not '0'"),
        ("--plot x.doc", "must be a file that ends in .png, .pdf or .svg"),
        (f"--lengths {10**15}", "out of memory"),
    ],
)
def test_errors(words, message):
    done = run_here(linear_attention.main, *words.split())
    assert done.returncode and message in done.stderr.strip().splitlines()[-1]


def test_exponent_of_a_power():
    lengths = [512, 1024, 4096]
    times = [3e-9 * n**1.5 for n in lengths]
    assert linear_attention.scaling_exponent(lengths, times) == pytest.approx(1.5)


def test_memory_beyond_inputs_and_gradients():
    """At most 3.5 times q, k and v at a short and a long length; n × n scores exceed that."""
    args = Namespace(lengths=[2048, 8192], heads=2, width=64, dtype="float32", rounds=1, cpu=True)
    measured = linear_attention.measure(args)
    for length, row in measured["chunk"].items():
        qkv = 3 * 4 * max(length, 4096) * 2 * 64
        assert qkv / 3 <= row["extra"] < 3.5 * qkv  # the output is one third
    extra = measured["masked n × n"][2048]["extra"]
    assert extra > 2 * (4 * 2 * 2 * 2048**2)  # the scores and another tensor of their size
