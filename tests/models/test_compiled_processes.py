"""``--compile`` in two processes."""

import os
import re
import subprocess

import pytest
from support.commands import assert_same_weights
from support.tiny import BIN, REPOSITORY, succeeded, train_flags

MEMORY = "--task memory_lm --streams 8 --tokens-per-sample 16 --token-positions none --memory".split()
HALF = "--fp16 --fp16-no-flatten-grads --fp16-init-scale 4".split()
BFLOAT16 = "--bf16 --fp16-no-flatten-grads".split()
CASES = {
    "float32": ("linear_lm_per", "pytorch_ddp", []),
    "bfloat16": ("linear_lm_tmlr_type1", "legacy_ddp", BFLOAT16),
    "float16": ("softmax_lm_rope", "pytorch_ddp", HALF),
    "recomputed": ("linear_lm_rope", "legacy_ddp", ["--checkpoint-activations"]),
    "recomputed in part": ("softmax_lm_fire", "pytorch_ddp", ["--checkpoint-activations"]),
    "memory": ("softmax_lm_xl", "legacy_ddp", [*MEMORY, "hidden", "--memory-length", 16]),
    "state": ("linear_lm_rope", "pytorch_ddp", [*MEMORY, "state"]),
}


def train(data, arch, folder, ddp, *flags):
    """Returns the losses of each process and its numbers of graphs and breaks, as it prints them."""
    words = [BIN / "torchrun", "--standalone", "--nproc_per_node", 2, "tests/support/compiled_training.py"]
    words += [*train_flags(data, arch, folder, *flags), "--max-update", 3, "--disable-validation"]
    words += "--dropout 0 --attention-dropout 0 --distributed-world-size 2 --distributed-rank -1".split()
    words += "--distributed-init-method env:// --distributed-no-spawn --distributed-backend gloo".split()
    paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [*map(str, words), "--ddp-backend", ddp]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    output = succeeded(done).stdout
    losses = {rank: re.findall(rf"loss of {rank}: (\S+)", output) for rank in (0, 1)}
    graphs = re.findall(r"graphs of \d: (\d+), breaks: (\d+)", output)
    return {rank: [*map(float, x)] for rank, x in losses.items()}, graphs


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_processes(case, data_bin, tmp_path):
    """Losses and checkpoints are those of layers that are not compiled.

    In half precision, weights after an update can differ by their rounding.
    """
    arch, ddp, flags = CASES[case]
    expected, none = train(data_bin, arch, tmp_path / "eager", ddp, *flags)
    losses, graphs = train(data_bin, arch, tmp_path / "compiled", ddp, *flags, "--compile")
    assert none == [("0", "0")] * 2
    assert len(graphs) == 2 and all(int(count) > 0 and breaks == "0" for count, breaks in graphs)
    is_half = "--fp16" in flags or "--bf16" in flags
    for rank in (0, 1):
        (first, *later), (ours, *ours_later) = expected[rank], losses[rank]
        assert len(later) == 2 and ours == pytest.approx(first, rel=1e-5)
        assert ours_later == pytest.approx(later, rel=1e-4 if is_half else 1e-5)
    assert_same_weights(tmp_path / "compiled", tmp_path / "eager", atol=1e-2 if is_half else 1e-4)
