"""FLOPs, parameters and memory, compared with real training steps of fairseq's trainer on the CPU."""

from argparse import Namespace
from importlib import import_module
from inspect import getclosurevars
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fairseq_lrpe.benchmarks import measurement, train
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.estimation import cost
from fairseq_lrpe.experiments.estimation.cost import Corpus
from fairseq_lrpe.experiments.execution.runner import Job
from fairseq_lrpe.tasks import FAMILIES
from fairseq_lrpe.utils.subprocesses import as_flags

CHUNK_MODULE = import_module("fairseq_lrpe.ops.linear_attention.chunk")
TYPES, BATCH = 1000, 4


def flops_of_baddbmm(total, a, b, **_):
    return 2 * a[0] * a[1] * a[2] * b[2]


@pytest.mark.parametrize(
    ("family", "arch", "length"),
    [
        ("lm", "linear_lm_tmlr_type1", 128),  # wider queries and keys
        ("lm", "softmax_lm_xl", 128),  # products with distances
        ("lm", "softmax_lm_path", 128),
        ("roberta", "linear_roberta_spe", 128),
        ("roberta", "softmax_roberta_deberta --mask-decoder --token-positions none", 128),
        ("transformer", "linear_transformer_base", 32),
        ("classifier", "linear_classifier_rope", 1100),  # recomputes the encoding
        ("vit", "linear_vit_rope_mixed", 128),
    ],
)
def test_a_training_step(family, arch, length):
    parts = {"lm": ["decoder"], "transformer": ["encoder", "decoder"]}.get(family, ["encoder"])
    small = {"embed_dim": 64, "ffn_embed_dim": 256, "attention_heads": 4, "layers": 2}
    flags = {f"{part}_{name}": size for part in parts for name, size in small.items()}
    flags = as_flags({**flags, "dropout": 0.0, "attention_dropout": 0.0})
    sizes = {"batch_size": BATCH, "length": length, "layers": 2, "vocab_size": TYPES}
    args = Namespace(**sizes, cpu=True, flags=flags)
    steps = []

    def two_steps():
        steps.append(train.training_step(arch, args))
        steps[0]()
        steps[0]()

    measured = measurement.peak_memory(two_steps, cpu=True)
    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.baddbmm_: flops_of_baddbmm})
    all_chunks = patch.object(CHUNK_MODULE, "_uses_all_chunks", lambda q: True)  # estimates are for GPUs
    with sdpa_kernel(SDPBackend.MATH), all_chunks, counter:
        steps[0]()

    lengths = {"lm": ["tokens_per_sample"], "roberta": ["tokens_per_sample", "max_positions"]}
    lengths |= {"transformer": ["max_source_positions", "max_target_positions"], "vit": ["image_size"]}
    flags += as_flags(dict.fromkeys(lengths.get(family, ["max_positions"]), length))
    task = next(task for task, required in FAMILIES.items() if required == family)
    words = ["fairseq-train", "data", "--task", task, "--arch", *arch.split(), *flags]
    labels = {"classifier": 2, "vit": 1000}.get(family, 0)
    types = () if family == "vit" else (TYPES - (family == "roberta"),) * len(parts)
    built = cost.build(tuple(map(str, words)), Corpus(types, labels))
    flops, saved = cost.measure(built, BATCH, built.longest(), torch.float32)
    # GPUs compute the scores of softmax attention again in the backward pass. Masked tokens are random.
    is_exact = "softmax" not in arch and family != "roberta"
    assert flops == pytest.approx(counter.get_total_flops(), rel=0.01 if is_exact else 0.07)
    parameters = sum(parameter.numel() for parameter in built.model.parameters())
    trained = getclosurevars(steps[0]).nonlocals["trainer"].model
    assert parameters == sum(parameter.numel() for parameter in trained.parameters())
    assert 0.7 < (16 * parameters + saved) / measured < 1.4


def estimated(experiment, attention="linear", method="base", precision="fp16", **changes):
    loaded = Experiment.load(experiment)
    run, *_ = loaded.runs(attention, method, [1], changes)
    return cost.estimate_training(Job(loaded, run, Path("nowhere"), 1, cpu=False, precision=precision))


@pytest.mark.parametrize(
    ("experiment", "attention", "method", "part"),  # the part with two layers instead of the experiment's
    [
        ("lm/transformer_xl", "softmax", "xl", "decoder"),
        ("transformer/wmt14_en_de", "softmax", "fairseq", "encoder"),
        ("question_generator/squad", "softmax", "gcdf", "encoder"),
        ("vit/deit_small", "linear", "tmlr_type1", "encoder"),
        ("lra/retrieval", "linear", "per", "encoder"),
        ("synthetic_lm/addition", "softmax", "roper", "decoder"),
        ("lm/extrapolation", "softmax", "fire", "decoder"),
    ],
)
def test_every_kind_is_estimated_without_data(experiment, attention, method, part):
    one = estimated(experiment, attention, method, **{f"train.{part}_layers": 2})
    # At least the products of all parameters but the embeddings.
    assert one.flops > one.tokens * one.parameters and one.memory > 20 * one.parameters


def test_published_numbers_of_parameters():
    # TMLR's models with the vocabularies of docs/tasks.md.
    assert estimated("lra/text").parameters == 547_714 + 125 * 128
    assert estimated("lra/listops").parameters == 533_770 + 128


def test_fine_tuning_has_a_head_and_short_inputs():
    trained, tuned = estimated("roberta/wikibook"), estimated("glue/wikibook", task="RTE")
    assert tuned.parameters == trained.parameters + 768 * 768 + 768 + 2 * 768 + 2
    rows, length = 2490, 70
    epochs = Experiment.load("glue/wikibook").cfg.epochs
    assert tuned.tokens == pytest.approx(epochs * rows * length, rel=0.02)
