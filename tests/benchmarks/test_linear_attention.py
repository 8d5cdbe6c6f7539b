"""The benchmark of linear attention: its command and its measurement of memory."""

from multiprocessing import get_context

import pytest
from tiny import run_here

from fairseq_lrpe.benchmarks import attention, linear_attention, shared
from fairseq_lrpe.benchmarks.attention import peak_memory, scaling_exponent


@pytest.fixture
def fork_server(monkeypatch):
    """New processes are forked from one that has imported torch."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["fairseq_lrpe.benchmarks.attention"])
    monkeypatch.setattr(shared, "get_context", lambda name: context)


def test_command(tmp_path, monkeypatch, fork_server):
    plot = tmp_path / "new" / "b.png"
    monkeypatch.setattr(attention, "TOKENS", 512)
    sizes = "--lengths 128 512 --positions 4 8 --model-lengths 128 --heads 1 --width 8 --rounds 1 --layers 1"
    done = run_here(linear_attention.main, *sizes.split(), "--vocab-size", 100, "--plot", plot)
    assert done.returncode == 0, done.stderr
    for text in (
        "128 × 4",
        "512 × 1",
        "masked n × n",
        "exponent of time",
        "tokens before",
        "linear tokens/s",
    ):
        assert text in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_exponent_of_a_power():
    lengths = [512, 1024, 4096]
    assert scaling_exponent(lengths, [3e-9 * n**1.5 for n in lengths]) == pytest.approx(1.5)


def test_memory_beyond_inputs_and_gradients(fork_server):
    """At most 2.5 times q, k and v at a short and a long length; n × n scores exceed that."""
    for length in (2048, 16384):
        extra, _ = shared.in_new_process(peak_memory, "chunk", length, 8, 64)
        qkv = 3 * 4 * max(length, 4096) * 8 * 64
        assert qkv / 3 < extra < 2.5 * qkv  # the output is one third
    extra, _ = shared.in_new_process(peak_memory, "masked n × n", 2048, 8, 64)
    assert extra > 2 * (4 * 2 * 8 * 2048**2)  # the scores and another tensor of their size
