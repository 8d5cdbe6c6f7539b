"""FLOPs, parameters, memory and calls, compared with real training steps of fairseq's trainer on the CPU."""

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
from fairseq_lrpe.encodings import table
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.estimation import cost
from fairseq_lrpe.experiments.estimation.corpora import Corpus
from fairseq_lrpe.experiments.estimation.launches import Launches, update_seconds
from fairseq_lrpe.experiments.execution.job import Job
from fairseq_lrpe.ops import constants, rotation
from fairseq_lrpe.tasks import FAMILIES
from fairseq_lrpe.utils.subprocesses import as_flags

CHUNK_MODULE = import_module("fairseq_lrpe.ops.linear.chunk")
TYPES, BATCH = 1000, 4


@pytest.fixture
def gpu_path(monkeypatch):
    """Linear attention on the CPU takes the form for GPUs, and constants are cached beside a counter."""
    monkeypatch.setattr(CHUNK_MODULE, "_uses_all_chunks", lambda q: True)
    monkeypatch.setattr(table, "_starts_kernels", lambda x: True)
    monkeypatch.setattr(constants, "is_tracing", lambda: False)  # counters are dispatch modes
    monkeypatch.setattr(rotation, "is_tracing", lambda: False)


def flops_of_baddbmm(total, a, b, **_):
    return 2 * a[0] * a[1] * a[2] * b[2]


def small_training(family, arch, length, **more):
    """Returns the arguments of a benchmark of training steps, and the same model on the meta device."""
    parts = {"lm": ["decoder"], "transformer": ["encoder", "decoder"]}.get(family, ["encoder"])
    small = {"embed_dim": 64, "ffn_embed_dim": 256, "attention_heads": 4, "layers": 2}
    flags = {f"{part}_{name}": size for part in parts for name, size in small.items()}
    flags = as_flags({**flags, "dropout": 0.0, "attention_dropout": 0.0, **more})
    sizes = {"batch_size": BATCH, "length": length, "layers": 2, "vocab_size": TYPES}
    args = Namespace(**sizes, cpu=True, flags=flags)
    lengths = {"lm": ["tokens_per_sample"], "roberta": ["tokens_per_sample", "max_positions"]}
    lengths |= {"transformer": ["max_source_positions", "max_target_positions"], "vit": ["image_size"]}
    lengths = as_flags(dict.fromkeys(lengths.get(family, ["max_positions"]), length))
    task = next(task for task, required in FAMILIES.items() if required == family)
    words = ["fairseq-train", "data", "--task", task, "--optimizer", "adam", "--arch", *arch.split()]
    labels = {"classifier": 2, "vit": 1000}.get(family, 0)
    types = () if family == "vit" else (TYPES - (family == "roberta"),) * len(parts)
    return args, cost.build(tuple(map(str, [*words, *flags, *lengths])), Corpus(types, labels))


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
def test_a_training_step(family, arch, length, gpu_path):
    args, built = small_training(family, arch, length)
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

    one = cost.measure(built, BATCH, built.longest(), torch.float32)
    # GPUs compute the scores of softmax attention again in the backward pass. Masked tokens are random.
    is_exact = "softmax" not in arch and family != "roberta"
    assert one.flops == pytest.approx(counter.get_total_flops(), rel=0.01 if is_exact else 0.07)
    parameters = sum(parameter.numel() for parameter in built.model.parameters())
    trained = getclosurevars(steps[0]).nonlocals["trainer"].model
    assert parameters == sum(parameter.numel() for parameter in trained.parameters())
    assert 0.7 < (16 * parameters + one.saved) / measured < 1.4


@pytest.mark.parametrize("precision", ["fp16", pytest.param("fp32", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("family", "arch", "length"),
    [
        ("lm", "linear_lm_base", 600),  # more than one chunk
        ("lm", "linear_lm_tmlr_type1", 128),
        ("lm", "softmax_lm_base", 128),
        ("lm", "transformer_lm", 128),
        ("roberta", "linear_roberta_spe", 128),
        ("transformer", "linear_transformer_base", 32),
        ("classifier", "linear_classifier_rope", 1100),
        ("vit", "linear_vit_rope_mixed", 128),
    ],
)
def test_calls_of_an_update(family, arch, length, precision, gpu_path, monkeypatch):
    """They are those of fairseq's trainer, but for a few percent of its criteria."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # of --fp16
    is_half = precision == "fp16"
    half = {"fp16": True, "fp16_init_scale": 4} if is_half else {}
    args, built = small_training(family, arch, length, **half)
    step = train.training_step(arch, args)
    step()
    step()
    trainer, passes, update = getclosurevars(step).nonlocals["trainer"], Launches(), Launches()
    count_calls_of(trainer.criterion, "forward", passes, monkeypatch)
    count_calls_of(trainer.optimizer, "backward", passes, monkeypatch)
    for name in ("zero_grad", "multiply_grads", "clip_grad_norm", "step"):
        count_calls_of(trainer.optimizer, name, update, monkeypatch)
    step()
    one = cost.measure(built, BATCH, built.longest(), torch.float16 if is_half else torch.float32)
    assert one.passes.calls == pytest.approx(passes.calls, rel=0.04)
    assert one.update.calls == pytest.approx(update.calls, rel=0.15)  # a CPU updates parameters in parts


def count_calls_of(owner, name, counter, monkeypatch):
    function = getattr(owner, name)

    def counted(*args, **kwargs):
        with counter:
            return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, counted)


def test_calls_do_not_depend_on_sizes_and_count_each_batch():
    """Each batch of an update is started, and a flat tensor of all parameters is updated once."""
    few = estimated("lra/text", overrides=["batch.per_gpu=128"])
    many = estimated("lra/text")
    update = (8 * few.calls - 2 * many.calls) / 6
    assert update == int(update) < 30
    assert many.calls - update == 4 * (few.calls - update)
    updates = Experiment.load("lra/text").cfg.updates
    assert many.host == pytest.approx(updates * update_seconds((many.calls - update) / 8, update, 8))
    eight = estimated("lra/text", gpus=8)
    assert eight.calls - update == (many.calls - update) / 8 and eight.flops == many.flops


def test_long_range_arena_is_bound_by_calls():
    """Its Text takes four minutes by FLOPs, and longer by calls."""
    one = estimated("lra/text")
    assert one.host > 2 * one.flops / (0.35 * 125e12)


def estimated(
    experiment, attention="linear", method="base", precision="fp16", gpus=1, overrides=(), **changes
):
    loaded = Experiment.load(experiment, overrides)
    run, *_ = loaded.runs(attention, method, [1], changes)
    return cost.estimate_training(Job(loaded, run, Path("nowhere"), gpus, cpu=False, precision=precision))


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
