"""The speed command, for each family that it knows."""

import pytest
from tiny import run_command

SMALL = "--layers 1 --length 600 --batch-size 1 --vocab-size 100 --rounds 1 --attention linear".split()


@pytest.mark.parametrize("family", ["lm", "roberta", "transformer"])
def test_the_command(family):
    words = [*SMALL, "--family", family, "--methods", "rope", "base", "fairseq"]
    done = run_command("python", "-m", "fairseq_lrpe.experiments.speed", *words)
    assert done.returncode == 0, done.stderr
    assert f"{family}, linear attention: 1 layers, 1 × 600 tokens" in done.stdout
    for row in ("rope", "base, softmax", "fairseq"):
        assert any(row in line and "│" in line for line in done.stdout.splitlines())
