"""The sampling benchmark."""

from tiny import run_here

from fairseq_lrpe.benchmarks import sampling


def test_command():
    words = "--layers 1 --length 5 --rounds 2 --memory-length 20 --vocab-size 60 --methods rope".split()
    done = run_here(sampling.main, *words)
    assert done.returncode == 0, done.stderr
    assert "5 tokens: 1 layers, vocabulary 60" in done.stdout and "after 20" in done.stdout
    rows = [line.split("│")[1].strip() for line in done.stdout.splitlines() if "│" in line]
    assert rows == ["linear_lm_rope", "softmax_lm_rope"]
