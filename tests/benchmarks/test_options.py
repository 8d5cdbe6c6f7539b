"""The benchmark of torch.compile, activation checkpointing and half precision."""

import pytest
import torch
from tiny import run_here
from torch._dynamo.testing import CompileCounter

from fairseq_lrpe.benchmarks import options
from fairseq_lrpe.ops.rotation import phases, rotate_pairs

TINY = "--layers 1 --length 32 --batch-size 1 --vocab-size 40 --rounds 1".split()


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Compilation without C++, and measurements of memory in this process."""
    original = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: original(self, backend="eager"))
    monkeypatch.setattr(options.shared, "in_new_process", lambda function, *arguments: 1 << 20)
    widths = {"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 16, "encoder_attention_heads": 2}
    widths |= {name.replace("encoder", "decoder"): size for name, size in widths.items()}
    for name, model in options.MODELS.items():
        known = vars(options.MODEL_DATACLASS_REGISTRY[model.arch]())
        flags = {flag: size for flag, size in widths.items() if flag in known}
        monkeypatch.setitem(options.MODELS, name, model._replace(flags=model.flags | flags))


def test_every_family(monkeypatch):
    done = run_here(options.main, *TINY)
    assert done.returncode == 0, done.stderr
    head, _, *lines = [line[2:-2].split(" | ") for line in done.stdout.splitlines() if line.startswith("|")]
    rows = [dict(zip(head, line, strict=True)) for line in lines]
    assert [row["family"] for row in rows] == [*options.MODELS]
    for row in rows:
        assert float(row["compile: error"]) < 1e-5 and float(row["compile: speed"]) > 0
        assert float(row["fp16: loss"]) == pytest.approx(1, abs=0.01)
        assert float(row["bf16: loss"]) == pytest.approx(1, abs=0.05)
    unsupported = {row["family"] for row in rows if row["checkpointing: error"] == "-"}
    assert unsupported == {"Transformer-XL", "classification", "Long-Range Arena", "images"}
    assert all(float(row["checkpointing: error"]) < 1e-5 for row in rows if row["family"] not in unsupported)
    assert done.stdout.count(", checkpointing: ") == len(unsupported)
    message = (
        "Transformer-XL, checkpointing: --checkpoint-activations is not supported with a memory: omit it."
    )
    assert message in done.stdout


def test_wrong_gradients_are_measured(monkeypatch):
    """A model whose checkpointed gradients are wrong has a large error."""
    gradients = options.Training.gradients
    monkeypatch.setattr(options.Training, "gradients", lambda self: gradients(self) * next(factors))
    factors = iter([1.0, 1.0, 2.0, 1.0, 1.0])
    done = run_here(options.main, *TINY, "--families", "language model")
    assert done.returncode == 0, done.stderr
    head, _, line = [line[2:-2].split(" | ") for line in done.stdout.splitlines() if line.startswith("|")]
    row = dict(zip(head, line, strict=True))
    assert float(row["compile: error"]) < 1e-5 and float(row["checkpointing: error"]) == pytest.approx(1)


def test_rotations_are_compiled_as_one_graph():
    x, table = torch.randn(2, 5, 8), phases(torch.rand(4), 0, 5).to(torch.complex64)
    counter = CompileCounter()
    torch.compiler.reset()
    compiled = torch.compile(rotate_pairs, backend=counter, fullgraph=True)(x, table)
    assert counter.frame_count == 1 and compiled.equal(rotate_pairs(x, table))
