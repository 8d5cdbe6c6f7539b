"""FLOPs, memory and parameters, compared with real training steps of fairseq's trainer on the CPU."""

from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from fairseq import tasks
from fairseq.trainer import Trainer
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from fairseq_lrpe.benchmarks import speed
from fairseq_lrpe.experiments.estimation import costs, models
from fairseq_lrpe.experiments.estimation.corpora import Corpus
from fairseq_lrpe.ops.linear_attention.causal import default_chunk_size

TYPES, LAYERS, WIDTH, FFN, HEADS = 1000, 2, 64, 256, 4
PARTS = {"lm": ("decoder",), "transformer": ("encoder", "decoder")}
TASKS = {
    "lm": "language_modeling",
    "roberta": "masked_lm",
    "transformer": "translation",
    "classifier": "classification",
    "vit": "image_classification",
}
ARCHITECTURES = [
    ("lm", "linear", "base", 128),
    ("lm", "linear", "tmlr_type1", 128),  # wider queries and keys
    ("lm", "softmax", "base", 128),
    ("lm", "softmax", "xl", 128),  # products with distances
    ("lm", "softmax", "path", 128),
    ("lm", "linear", "conv_spe", 128),
    ("roberta", "linear", "base", 128),
    ("roberta", "linear", "spe", 128),
    ("roberta", "softmax", "base", 128),
    ("transformer", "linear", "base", 32),
    ("transformer", "softmax", "base", 32),
    ("classifier", "linear", "rope", 1100),  # recomputes the encoding
    ("vit", "linear", "base", 128),
    ("vit", "softmax", "base", 128),
    ("vit", "linear", "rope_mixed", 128),
]


class Step:
    """A real training step of a family of the speed benchmark, and the model and batch of its estimate."""

    def __init__(self, family, attention, method, length, batch=4, **flags):
        about = speed.FAMILIES[family]
        sizes = {"embed_dim": WIDTH, "ffn_embed_dim": FFN, "attention_heads": HEADS}
        flags |= {
            f"{x}_{name}": size for x in PARTS.get(family, ("encoder",)) for name, size in sizes.items()
        }
        flags |= {"arch": f"{attention}_{family}_{method}", "dropout": 0.0, "attention_dropout": 0.0}
        flags |= {"optimizer": "adam", "lr": 1e-4, "batch_size": batch}
        args = Namespace(family=family, batch_size=batch, length=length, layers=LAYERS, vocab_size=TYPES)
        flags |= about.flags(args)
        with TemporaryDirectory() as folder:
            if about.num_labels:
                speed.write_classification_data(Path(folder), TYPES, about)
            cfg = speed.training_config(flags, [folder] if about.num_labels else [])
            task = tasks.setup_task(cfg.task)
        self.trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
        if not about.num_labels:
            task.load_dataset("train")
        self.trainer.begin_epoch(1)
        dictionary = task.source_dictionary
        self.batch = speed.random_batch(about, args, dictionary and dictionary.pad())

        flags |= {"task": TASKS[family], "dict_size": None, "src_len": None, "tgt_len": None}
        types = (TYPES - (family == "roberta"),)
        if family == "transformer":
            types *= 2
            flags |= {"max_source_positions": length, "max_target_positions": length}
        words = map(str, speed.as_flags(flags))
        corpus = Corpus(types, labels=about.num_labels)
        self.built = models.build(models.parse_command(("fairseq-train", "data", *words)), corpus)
        size = Namespace(unit="sequences", per_gpu=batch)
        self.shape, _ = costs.batches(self.built, corpus, size)
        self.cost = costs.training_cost(self.built, self.shape, torch.float32)

    def run(self, batches=1):
        self.trainer.train_step([self.batch] * batches, raise_oom=True)

    def flops(self):
        """Counts FLOPs with attention as products, and those that the chunk form computes in place."""

        def flops_of_baddbmm(total, a, b, **_):
            return 2 * a[0] * a[1] * a[2] * b[2]

        counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.baddbmm_: flops_of_baddbmm})
        with sdpa_kernel(SDPBackend.MATH), counter:
            self.run()
        return counter.get_total_flops()

    def memory(self):
        """Returns the largest number of allocated bytes in an update of two batches."""
        self.run()  # creates Adam's state
        self.trainer.zero_grad()
        states = self.trainer.optimizer.optimizer.state.values()
        tensors = [x for state in states for x in state.values() if torch.is_tensor(x)]
        tensors += self.trainer.model.parameters()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            self.run(batches=2)
        events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
        current = peak = 0
        for event in sorted(events, key=lambda e: e.start_ns()):
            current += event.nbytes()
            peak = max(peak, current)
        return peak + sum(x.numel() * x.element_size() for x in tensors)


@pytest.mark.parametrize(("family", "attention", "method", "length"), ARCHITECTURES)
def test_parameters_flops_and_memory_of_a_training_step(family, attention, method, length):
    step = Step(family, attention, method, length)
    parameters = sum(parameter.numel() for parameter in step.trainer.model.parameters())
    assert step.built.parameters(labels=0) == parameters
    # The masked tokens are random, and the head of a classifier is not counted.
    tolerance = {"roberta": 0.05, "vit": 0.03}.get(family, 1e-3)
    assert step.cost.flops == pytest.approx(step.flops(), rel=tolerance)
    memory = costs.training_memory(parameters, step.cost, torch.float32, processes=1)
    assert memory == pytest.approx(step.memory(), rel=0.1)


def test_mask_decoder():
    step = Step("roberta", "softmax", "base", 128, token_positions="none", mask_decoder=True)
    assert step.cost.flops == pytest.approx(step.flops(), rel=0.05)
    memory = costs.training_memory(step.built.parameters(labels=0), step.cost, torch.float32, processes=1)
    assert memory == pytest.approx(step.memory(), rel=0.1)


@pytest.mark.parametrize(
    ("attention", "family", "method"),
    [
        ("softmax", "lm", "base"),
        ("softmax", "roberta", "tmlr_type1"),
        ("linear", "roberta", "base"),
        ("linear", "roberta", "tmlr_type1"),
        ("linear", "lm", "base"),
        ("linear", "lm", "tmlr_type1"),
    ],
)
def test_formulas_of_attention(attention, family, method):
    length = 128
    step = Step(family, attention, method, length, batch=1)
    layer = costs.layer_cost(
        next(x for x in step.built.model.modules() if hasattr(x, "self_attn")),
        step.built.model,
        step.shape,
        torch.float32,
    )
    values = WIDTH // HEADS
    keys = 2 * values if method == "tmlr_type1" else values
    if attention == "softmax":
        expected = 6 * HEADS * length**2 * (keys + values)
    elif family == "lm":
        chunk = default_chunk_size(keys, values)
        expected = 2 * length * HEADS * (chunk * (4 * keys + 3 * values) + 6 * keys * values)
    else:  # Type1 does not divide
        expected = 12 * HEADS * length * keys * values
        expected += 6 * HEADS * length * keys if method == "base" else 0
    products = 6 * length * (4 * WIDTH**2 + 2 * WIDTH * FFN)
    assert layer.flops == pytest.approx(products + expected, rel=0.01)


def test_flops_of_shorter_sequences():
    for attention in ("linear", "softmax"):
        step = Step("classifier", attention, "base", 512)
        for length in (64, 200, 300):
            shorter = costs.replace(step.shape, source=length)
            scaled = costs.scaled_flops(step.built, shorter, step.shape, torch.float32)
            assert scaled == costs.training_cost(step.built, shorter, torch.float32).flops


def test_half_precision_and_several_gpus():
    step, number = Step("lm", "linear", "base", 64), 1000
    half = costs.training_cost(step.built, step.shape, torch.float16)
    assert 0.4 * step.cost.peak < half.peak < 0.9 * step.cost.peak  # logits and sums stay in float32
    assert half.flops == step.cost.flops
    memory = costs.training_memory
    assert memory(number, costs.Cost(0, 0, 10**6), torch.float16, 1) == 20 * number + 10**6
    assert memory(number, costs.Cost(0, 0, 10**6), torch.float16, 2) == 22 * number + 10**6
    assert memory(number, costs.Cost(0, 0, 10), torch.bfloat16, 1) == 24 * number
    assert memory(number, costs.Cost(0, 0, 10), torch.float32, 2) == 20 * number + 10


def test_number_of_checkpoints():
    flags = {"no_save": False, "no_last_checkpoints": False, "disable_validation": False}
    for changes, expected in (
        ({"save_interval_updates": 0, "keep_interval_updates": -1}, 2),
        ({"save_interval_updates": 10, "keep_interval_updates": 1}, 3),
        ({"save_interval_updates": 10, "keep_interval_updates": -1}, 12),
        ({"save_interval_updates": 10, "keep_interval_updates": 1, "disable_validation": True}, 2),
        ({"save_interval_updates": 10, "keep_interval_updates": 1, "no_save": True}, 0),
    ):
        assert costs.checkpoints(Namespace(**{**flags, **changes}), updates=100) == expected
