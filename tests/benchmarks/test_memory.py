"""The memory benchmark, and the equality of its direct implementation of Transformer-XL."""

from argparse import Namespace

import torch
from tensors import assert_same
from tiny import run_here

from fairseq_lrpe.benchmarks import memory
from fairseq_lrpe.tasks.memory_lm import Segment

SMALL = "--layers 2 --width 32 --heads 4 --ffn 48 --length 6 --streams 2 --vocab-size 40".split()


def test_command():
    words = [*SMALL, "--rounds", 2, "--segments", 3, "--methods", "xl", "rope", "spe"]
    done = run_here(memory.main, *words)
    assert done.returncode == 0, done.stderr
    tables = done.stdout.split("┏")
    rows = [[line.split("│")[1].strip() for line in t.splitlines() if "│" in line] for t in tables]
    both = ["linear_lm_rope", "linear_lm_spe", "softmax_lm_xl", "softmax_lm_rope", "softmax_lm_spe"]
    assert rows[1:3] == [both, ["linear_lm_rope"]] and len(rows[3]) == 1
    assert "of 3 segments" in done.stdout and "2 interleaved rounds" in done.stdout


def test_the_plain_formula_is_equal():
    """With its gradients, over segments that fill and shift the memory."""
    args = Namespace(length=6, layers=2, width=32, heads=4, ffn=48, vocab_size=40, streams=2)
    ours = memory.build("softmax_lm_xl", args).double()
    plain, tokens, found = memory.with_plain_attention(ours), torch.randint(4, 40, (2, 18)), []
    for decoder in (ours, plain):
        parts = enumerate(tokens.split(6, dim=1))
        outputs = [decoder(part, segment=Segment("train", 0, number))[0] for number, part in parts]
        torch.cat(outputs).square().sum().backward()
        found.append(
            (outputs, {name: p.grad for name, p in decoder.named_parameters() if p.grad is not None})
        )
    assert found[0][1].keys() == found[1][1].keys()
    assert_same(found[0], found[1])
