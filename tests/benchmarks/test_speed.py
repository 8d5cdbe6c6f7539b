"""The speed benchmark, for each family."""

import pytest
from tiny import run_here

from fairseq_lrpe.benchmarks.speed import main, published_speeds, training_config

SMALL = "--layers 1 --length 600 --batch-size 1 --vocab-size 100 --rounds 1 --attention linear".split()


@pytest.mark.parametrize("family", ["lm", "roberta", "transformer"])
def test_command(family):
    words = [*SMALL, "--family", family, "--methods", "rope", "base", "fairseq"]
    done = run_here(main, *words)
    assert done.returncode == 0, done.stderr
    assert f"{family}, linear attention: 1 layers, 1 × 600 tokens" in done.stdout
    assert "0.86" in done.stdout and "0.97" in done.stdout  # the published ratios of rope
    for row in ("rope", "base, softmax", "fairseq"):
        assert any(row in line and "│" in line for line in done.stdout.splitlines())


def test_classifiers_are_compared_with_softmax_attention():
    """In time and in memory, which is at least that of q, k, v and x."""
    words = "--family classifier --layers 1 --batch-size 1 --rounds 1 --length 8192".split()
    done = run_here(main, *words, "--attention", "linear", "--methods", "base")
    assert done.returncode == 0, done.stderr
    title = "classifier, linear attention: 1 layers, 1 × 8,192 tokens, vocabulary 260"
    assert title in " ".join(done.stdout.split())
    [row] = [line.split("│") for line in done.stdout.splitlines() if "│ base" in line]
    assert float(row[5].replace(",", "")) > 4 * 8192 * 128 * 4 / 2**20


def test_vision_transformers_are_compared_with_softmax_attention():
    words = "--family vit --layers 1 --batch-size 2 --rounds 1 --length 64 --attention linear".split()
    done = run_here(main, *words, "--methods", "tmlr_type1")
    assert done.returncode == 0, done.stderr
    title = "vit, linear attention: 1 layers, 2 × 64 × 64 pixels, 1 interleaved rounds"
    assert title in " ".join(done.stdout.split())
    [row] = [line.split("│") for line in done.stdout.splitlines() if "│ tmlr_type1" in line]
    assert float(row[2].replace(",", "")) > 0 and float(row[5].replace(",", "")) > 0


def test_published_speeds_are_those_of_the_papers_tables():
    """TMLR Table 6, of linear attention alone, and what can be read of ICLR Table 9."""
    speeds = published_speeds()
    assert speeds["TMLR Table 6"]["linear", "spe"] == 0.61
    assert speeds["ICLR Table 9"]["linear", "iclr_type2"] == 0.91
    assert speeds["ICLR Table 9"]["softmax", "rope"] == 0.95
    assert {attention for attention, _ in speeds["TMLR Table 6"]} == {"linear"}


def test_bf16_does_not_select_a_tpu():
    """fairseq's --bf16 sets --tpu, and its trainer would use a TPU."""
    common = training_config({"arch": "linear_lm_base", "task": "dummy_lm", "bf16": True}).common
    assert common.bf16 and not common.tpu
