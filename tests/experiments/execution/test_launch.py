"""The machine that the options of ``lrpe train`` select, on machines with and without GPUs."""

import pytest
from support.tiny import pretend_gpus

from fairseq_lrpe.cli.train import make_parser, parse
from fairseq_lrpe.experiments.execution.launch import choose_machine
from fairseq_lrpe.utils.errors import UserError


def machine(available, words, monkeypatch):
    """Returns the machine that options select where so many GPUs are available."""
    if available:
        pretend_gpus(monkeypatch, {f"card {i}": (8, 0) for i in range(available)}, ["sm_80"])
    args, _ = parse(make_parser(), ["lm/mini", "rope", *words.split()])
    return choose_machine(args)


@pytest.mark.parametrize(("available", "words", "gpus", "cpu", "precision"), [
    (0, "", 0, True, "fp32"),
    (1, "", 1, False, "fp16"),
    (4, "", 4, False, "fp16"),
    (4, "--gpus 1", 1, False, "fp16"),
    (4, "--gpus 4", 4, False, "fp16"),
    (4, "--gpus 2 --precision bf16", 2, False, "bf16"),
    (4, "--precision fp32", 4, False, "fp32"),
    (4, "--cpu", 0, True, "fp32"),
    (4, "--cpu --gpus 8", 8, True, "fp32"),
    (0, "--gpus 2", 2, True, "fp32"),
    (0, "--dry-run", 0, True, "fp32"),
    (0, "--gpus 2 --dry-run", 2, False, "fp16"),
    (4, "--gpus 8 --dry-run", 8, False, "fp16"),
    (0, "--gpus 2 --cpu --dry-run", 2, True, "fp32"),
])  # fmt: skip
def test_machine(available, words, gpus, cpu, precision, monkeypatch):
    found = machine(available, words, monkeypatch)
    assert (found["gpus"], found["cpu"], found["precision"]) == (gpus, cpu, precision)
    assert (found["nodes"], found["rendezvous"], found["compile"]) == (1, None, None)


@pytest.mark.parametrize(("words", "rendezvous"), [
    ("--nodes 2 --rendezvous a:1", "a:1"),
    ("--nodes 2 --gpus 2 --rendezvous a:1", "a:1"),
    ("--nodes 2 --rendezvous a:1 --dry-run", "a:1"),
    ("--nodes 2 --dry-run", "HOST:PORT"),
    ("--nodes 1 --dry-run", None),
])  # fmt: skip
def test_nodes(words, rendezvous, monkeypatch):
    found = machine(4, words, monkeypatch)
    assert found["rendezvous"] == rendezvous and f"--nodes {found['nodes']}" in words


@pytest.mark.parametrize(("available", "words", "message"), [
    (4, "--gpus 5", "--gpus 5 exceeds this machine's 4 GPUs: reduce --gpus"),
    (0, "--precision fp16", "--precision fp16 needs a GPU; on the CPU use fp32"),
    (4, "--cpu --precision bf16", "--precision bf16 needs a GPU; on the CPU use fp32"),
    (4, "--nodes 2", r"--nodes 2 requires --gpus \(per node\) and either "),
    (4, "--nodes 2 --cpu --rendezvous a:1", r"--nodes 2 requires --gpus \(per node\) and either "),
])  # fmt: skip
def test_options_that_contradict_the_machine_are_errors(available, words, message, monkeypatch):
    with pytest.raises(UserError, match=message):
        machine(available, words, monkeypatch)
