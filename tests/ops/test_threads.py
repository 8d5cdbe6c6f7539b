"""Tests the threads of linear attention: parts, errors, forks, settings."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fairseq_lrpe.ops import linear_attention, threads
from fairseq_lrpe.ops.threads import run, split


@pytest.mark.parametrize("batch, heads, num_threads, parts", [
    (1, 8, 3, 3),
    (4, 8, 2, 2),
    (3, 2, 4, 3),
    (5, 1, 2, 2),
    (1, 1, 4, 1),
    (2, 3, 64, 6),
])  # fmt: skip
def test_parts_cover_all_heads_once(set_threads, batch, heads, num_threads, parts):
    set_threads(num_threads)
    counts = torch.zeros(batch, heads, threads._MIN_ELEMENTS)
    found = split(counts)
    for part in found:
        counts[part] += 1
    assert len(found) == parts
    assert counts.eq(1).all()


def test_small_empty_and_meta_tensors_are_not_split(set_threads):
    set_threads(4)
    large = 2, 2, threads._MIN_ELEMENTS
    for x in (
        torch.zeros(2, 2, 5),
        torch.zeros(0, 2, 5),
        torch.zeros(2, 0, 5),
        torch.zeros(large, device="meta"),
    ):
        assert split(x) == [(slice(0, x.size(0)), slice(0, x.size(1)))]


def test_errors_are_raised_after_all_parts_have_ended(set_threads):
    set_threads(2)
    ended = []

    def fail_at_zero(part):
        if part == 0:
            raise ValueError("part 0")
        ended.append(part)

    with pytest.raises(ValueError, match="part 0"):
        run(fail_at_zero, [0, 1, 2, 3])
    assert sorted(ended) == [1, 2, 3]
    assert run(lambda part: part, [0, 1]) == [0, 1]


def test_parts_have_the_settings_of_the_caller(set_threads):
    set_threads(2)

    def settings(_):
        tiny = torch.full((), torch.finfo(torch.float32).tiny)
        return torch.get_num_threads(), torch.is_grad_enabled(), float(tiny / 2), tiny.is_inference()

    torch.set_flush_denormal(False)  # another test may have called a command of fairseq, which sets it
    denormal = torch.finfo(torch.float32).tiny / 2
    assert run(settings, [0, 1]) == [(1, False, denormal, False)] * 2
    try:
        torch.set_flush_denormal(True)
        with torch.inference_mode():
            assert run(settings, [0, 1]) == [(1, False, 0.0, True)] * 2
    finally:
        torch.set_flush_denormal(False)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("causal", [True, False])
def test_modes_see_the_operations_of_all_threads(set_threads, causal):
    q = torch.rand(2, 4, 256, 64, requires_grad=True)

    def flops(num_threads):
        set_threads(num_threads)
        with FlopCounterMode(display=False) as counter:
            linear_attention(q, q, q, causal=causal, normalize=True, backend="chunk").sum().backward()
        return counter.get_total_flops()

    assert flops(2) == flops(1) > 0


def test_forked_processes_start_their_own_threads(set_threads):
    set_threads(2)
    double = torch.ones(())
    assert run(lambda part: part, [0, 1]) == [0, 1]
    if (child := os.fork()) == 0:
        os._exit(0 if run(lambda part: float(double + part), [0, 1]) == [1.0, 2.0] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_an_interrupt_ends_the_program():
    program = (
        "import torch; from fairseq_lrpe.ops import linear_attention; torch.set_num_threads(2)\n"
        "x = torch.rand(2, 4, 512, 64)\n"
        "while True:\n"
        "    linear_attention(x, x, x, causal=True, normalize=True, backend='chunk')\n"
        "    print('computed', flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == -signal.SIGINT
    assert errors.endswith(b"KeyboardInterrupt\n")
