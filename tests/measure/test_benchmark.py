"""The benchmark of linear attention: its command, and what it says about memory."""

import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from fairseq_lrpe.measure.attention import exponent, peak


def benchmark(*arguments):
    command = [sys.executable, "-m", "fairseq_lrpe.measure.benchmark", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_command(tmp_path):
    picture = tmp_path / "new" / "b.png"
    small = ["--heads", 1, "--width", 8, "--rounds", 1, "--layers", 1, "--vocab-size", 100]
    done = benchmark(
        *("--lengths", 128, 512, "--positions", 4, 8, "--model-lengths", 128, "--plot", picture), *small
    )
    assert done.returncode == 0, done.stderr
    for shown in (
        "128 × 32",
        "512 × 8",
        "masked n × n",
        "exponent of time",
        "tokens before",
        "linear tokens/s",
    ):
        assert shown in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("flag", ["--lengths", "--rounds", "--positions"])
def test_nothing_is_measured_at_zero(flag):
    done = benchmark(flag, 0)
    assert done.returncode == 2
    assert f"argument {flag}: must be a whole number from 1 on, not '0'" in done.stderr


def test_the_exponent_of_a_power():
    lengths = [512, 1024, 4096]
    assert exponent(lengths, [3e-9 * n**1.5 for n in lengths]) == pytest.approx(1.5)


def test_memory_beyond_inputs_and_gradients():
    """At most 2.5 times q, k and v, at a short and at a long length; of a matrix the benchmark says more."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as process:
        for length in (2048, 16384):
            extra, _ = process.submit(peak, "chunk", length, 8, 64).result()
            qkv = 3 * 4 * max(length, 4096) * 8 * 64
            assert qkv / 3 < extra < 2.5 * qkv  # the output is one third
        extra, _ = process.submit(peak, "masked n × n", 2048, 8, 64).result()
        assert extra > 2 * (4 * 2 * 8 * 2048**2)  # the scores, and more of their size
