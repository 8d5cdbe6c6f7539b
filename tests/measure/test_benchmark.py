"""The benchmark of linear attention: its command, and what it says about memory."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from tiny import run_here

from fairseq_lrpe.measure import attention, benchmark
from fairseq_lrpe.measure.attention import exponent, peak


@pytest.fixture(scope="module")
def starts():
    """How a fresh process is made: forked from one that has imported torch."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["fairseq_lrpe.measure.attention"])
    return context


def test_the_command(tmp_path, monkeypatch, starts):
    picture = tmp_path / "new" / "b.png"
    small = ["--heads", 1, "--width", 8, "--rounds", 1, "--layers", 1, "--vocab-size", 100]
    monkeypatch.setattr(benchmark, "get_context", lambda name: starts)
    for module in (attention, benchmark):
        monkeypatch.setattr(module, "TOKENS", 512)
    done = run_here(
        benchmark.main,
        *("--lengths", 128, 512, "--positions", 4, 8, "--model-lengths", 128, "--plot", picture),
        *small,
    )
    assert done.returncode == 0, done.stderr
    for shown in (
        "128 × 4",
        "512 × 1",
        "masked n × n",
        "exponent of time",
        "tokens before",
        "linear tokens/s",
    ):
        assert shown in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("flag", ["--lengths", "--rounds", "--positions"])
def test_nothing_is_measured_at_zero(flag):
    done = run_here(benchmark.main, flag, 0)
    assert done.returncode == 2
    assert f"argument {flag}: must be a whole number from 1 on, not '0'" in done.stderr


def test_the_exponent_of_a_power():
    lengths = [512, 1024, 4096]
    assert exponent(lengths, [3e-9 * n**1.5 for n in lengths]) == pytest.approx(1.5)


def test_memory_beyond_inputs_and_gradients(starts):
    """At most 2.5 times q, k and v, at a short and at a long length; of a matrix the benchmark says more."""
    with ProcessPoolExecutor(1, mp_context=starts, max_tasks_per_child=1) as process:
        for length in (2048, 16384):
            extra, _ = process.submit(peak, "chunk", length, 8, 64).result()
            qkv = 3 * 4 * max(length, 4096) * 8 * 64
            assert qkv / 3 < extra < 2.5 * qkv  # the output is one third
        extra, _ = process.submit(peak, "masked n × n", 2048, 8, 64).result()
        assert extra > 2 * (4 * 2 * 8 * 2048**2)  # the scores, and more of their size
