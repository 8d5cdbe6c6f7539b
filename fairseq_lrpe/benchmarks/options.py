"""Compares training with torch.compile, activation checkpointing, fp16 and bf16 with plain float32 training.

Each row trains a model of one family with fairseq's trainer, on the same random batch and from the same
weights with every option. torch.compile compiles the ``forward`` of fairseq's model in place. Activation
checkpointing is fairseq's --checkpoint-activations. The timed steps of all options alternate; fp16, which is
slow on CPUs, is only timed on a GPU. Peak memory is measured in new processes. The table is in Markdown.
"""

import statistics
from argparse import Namespace
from dataclasses import fields
from itertools import count
from typing import NamedTuple

import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch._dynamo.utils import counters

from fairseq_lrpe.benchmarks import shared
from fairseq_lrpe.benchmarks.speed import FAMILIES, Family, build_trainer, peak_memory
from fairseq_lrpe.tasks.memory_lm import Segment

HALF = {"fp16_no_flatten_grads": True, "fp16_init_scale": 4}  # without these, fairseq's fp16 needs a GPU
OPTIONS = {
    "float32": {},
    "compile": {},
    "checkpointing": {"checkpoint_activations": True},
    "fp16": {"fp16": True, **HALF},
    "bf16": {"bf16": True, **HALF},
}
"""{option: flags of fairseq-train}"""
EXACT = ("compile", "checkpointing")
"""Options whose gradients are those of float32, except for rounding."""
UPDATES = 3
"""Number of updates before the timed ones, after which the losses are compared."""
MEMORY_BATCH = 8
"""Number of sequences per step when memory is measured, so that activations are most of it."""


class Model(NamedTuple):
    """An architecture that represents a family."""

    arch: str
    family: Family
    length: int = 256  # default input length in tokens, or side of an image in pixels
    flags: dict = {}


MEMORY = Family("memory_lm", "cross_entropy", 4, ["tokens_per_sample", "memory_length"], ["decoder_layers"])
TRANSLATION, CLASSIFIER = FAMILIES["transformer"], FAMILIES["classifier"]
LFHC = {"encoder_norm": "layer", "pooling": "max", "token_positions": "none"}
MODELS = {
    "language model": Model("linear_lm_tmlr_type1", FAMILIES["lm"]),
    "Transformer-XL": Model("softmax_lm_xl", MEMORY, flags={"token_positions": "none"}),
    "RoPER's tasks": Model("softmax_lm_roper", FAMILIES["lm"]),
    "RoBERTa": Model("linear_roberta_tmlr_type1", FAMILIES["roberta"]),
    "translation": Model("linear_transformer_tmlr_type1", TRANSLATION),
    "classification": Model("softmax_classifier_lfhc", CLASSIFIER, flags=LFHC),
    "Long-Range Arena": Model("linear_classifier_tmlr_type1", CLASSIFIER, 1024),
    "question generation": Model("softmax_question_generator_gcdf", TRANSLATION),
    "images": Model("linear_vit_tmlr_type1", FAMILIES["vit"], 224, {"drop_path": 0.0}),
}
"""{name of a row: model}"""


class Training:
    """Training of a model with an option; each call makes an update with the same random batch.

    There is no dropout, because compiled models draw other random numbers.

    Attributes:
        losses: Loss of each update.
    """

    def __init__(self, name: str, option: str, args: Namespace):
        model, flags = MODELS[name], OPTIONS[option]
        supported = [field.name for field in fields(MODEL_DATACLASS_REGISTRY[model.arch])]
        if option == "checkpointing" and "checkpoint_activations" not in supported:
            raise ValueError("the architecture has no flag --checkpoint-activations")
        torch.manual_seed(1)
        sizes = Namespace(**{**vars(args), "length": args.length or model.length})
        flags = {"dropout": 0.0, "attention_dropout": 0.0, **model.flags, **flags}
        self.trainer, self.batch = build_trainer(model.family, model.arch, sizes, **flags)
        self.segments = count() if model.family is MEMORY else None
        self.losses = []
        self.trainer.criterion.register_forward_hook(self._record_loss)
        if option == "compile":
            self.trainer.model.compile()

    def _record_loss(self, criterion, inputs, output):
        loss, sample_size, _ = output
        self.losses.append(loss.item() / sample_size)

    def __call__(self) -> None:
        if self.segments:
            self.batch["net_input"]["segment"] = Segment("train", 0, next(self.segments))
        self.trainer.train_step([self.batch], raise_oom=True)

    def gradients(self) -> Tensor:
        """Returns the gradients of the last update as one vector."""
        parameters = self.trainer.model.parameters()
        return torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])


def start(name: str, option: str, args: Namespace) -> tuple[Training, Tensor]:
    """Makes the first updates with an option; returns the training and the gradients of its first update."""
    training = Training(name, option, args)
    training()
    gradients = training.gradients()
    for _ in range(UPDATES - 1):
        training()
    return training, gradients


def measure(name: str, args: Namespace) -> tuple[dict, list[str]]:
    """Returns the table row of a model, and a message for each option that it does not support."""
    torch.compiler.reset()
    counters.clear()
    trainings, gradients, messages = {}, {}, []
    for option in OPTIONS:
        try:
            trainings[option], gradients[option] = start(name, option, args)
        except (Exception, SystemExit) as error:
            if option == "float32":
                raise
            reason = str(error).strip().splitlines()[0].removeprefix("fairseq_lrpe: ")
            messages.append(f"{name}, {option}: {reason}.")
    losses = {option: training.losses[-1] for option, training in trainings.items()}
    timed = {x: training for x, training in trainings.items() if x != "fp16" or shared.DEVICE == "cuda"}
    steps = track(range(args.rounds), name, console=Console(stderr=True), transient=True)
    times = {x: statistics.median(taken) for x, taken in shared.interleave(timed, steps, 0).items()}
    exact = gradients["float32"]
    row = {"family": name, "architecture": MODELS[name].arch, "float32, ms": 1000 * times["float32"]}
    for option in [*OPTIONS][1:]:
        known = option in trainings
        row[f"{option}: speed"] = times["float32"] / times[option] if option in times else None
        if option == "compile":
            row["graphs"] = counters["stats"]["unique_graphs"] if known else None
        if option == "checkpointing":
            row["memory"] = memory(name, option, args) / memory(name, "float32", args) if known else None
        if option in EXACT:
            error = float((gradients[option] - exact).abs().max() / exact.abs().max()) if known else None
            row[f"{option}: error"] = error
        else:
            row[f"{option}: loss"] = f"{losses[option] / losses['float32']:.4f}" if known else None
    return row, messages


def memory(name: str, option: str, args: Namespace) -> int:
    """Returns the peak memory in bytes of training, measured in a new process."""
    args = Namespace(**{**vars(args), "batch_size": MEMORY_BATCH})
    return shared.in_new_process(peak_memory, Training, name, option, args)


def main(arguments: list[str] | None = None) -> None:
    parser = shared.BenchmarkParser("options", __doc__)
    help = "families to measure (default: all)"
    parser.add_argument(
        "--families", nargs="+", choices=MODELS, metavar="FAMILY", default=[*MODELS], help=help
    )
    parser.add_int("--batch-size", 1, "number of sequences or images per step")
    lengths = "256; Long-Range Arena: 1,024; images, in pixels: 224"
    parser.add_int("--length", None, f"number of tokens per sequence (default: {lengths})", minimum=2)
    parser.add_sizes(rounds=5, layers=2, vocab_size=1000)
    args = parser.parse_args(arguments)
    table = shared.Table(
        f"{args.layers} layers, batches of {args.batch_size}, vocabulary {args.vocab_size:,}, "
        f"{args.rounds} interleaved rounds",
        "speed: median of float32 / median of the option; graphs: number that torch.compile created; memory: "
        f"peak relative to float32, batches of {MEMORY_BATCH}; error: of the first gradients, divided by "
        f"the largest; loss: relative to float32 in update {UPDATES}.",
    )
    with shared.measuring(parser.prog):
        rows = [measure(name, args) for name in args.families]
    table.rows = [row for row, _ in rows]
    print(table.markdown(), *(message for _, messages in rows for message in messages), sep="\n\n")
