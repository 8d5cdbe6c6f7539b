"""Compares the training speed of each method with the base method of the same attention.

Measures training steps of fairseq's trainer (forward, backward, update) with models of the papers' sizes. The
models are causal (``lm``), bidirectional (``roberta``) or both (``transformer``, whose decoder has softmax
attention). The steps of a method and of the base method alternate. The table also shows the published ratios.
``--methods base`` measures the base method of the other attention, ``--methods fairseq`` fairseq's own model.

``--family classifier`` repeats the comparison of Long-Range Arena (Tay et al. 2021, Table 2): text
classification of 1,024, 2,048 and 4,096 bytes relative to softmax attention. It also measures the memory of
training, in a new process. ``--family vit`` does the same with DeiT-small and images of 224, 384 and 1,024
pixels per side, which are 196, 576 and 4,096 patches; its ``--length`` is in pixels.
"""

import json
import logging
import statistics
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from omegaconf import OmegaConf
from rich.progress import track

import fairseq_lrpe.models  # noqa: F401  (fairseq imports a plugin's models only if it is the first to import it)
from fairseq_lrpe.benchmarks import shared
from fairseq_lrpe.data import layout
from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.methods import ATTENTIONS, METHODS, architecture
from fairseq_lrpe.utils.files import CONFIGS, PLUGIN
from fairseq_lrpe.utils.subprocesses import as_flags

PUBLISHED = {"TMLR Table 6": ("lrpe_tmlr", "table6"), "ICLR Table 9": ("lrpe_iclr", "table9")}
"""{title of a column of published ratios: (file in configs/paper, name of the table)}"""


def published_speeds() -> dict[str, dict[tuple[str, str], float]]:
    """Returns {title of a column: {(attention, method): speed relative to base in the same attention}}."""
    return {
        column: {
            (row.attention, row.method): row["values"].speed
            for row in OmegaConf.load(CONFIGS / f"paper/{paper}.yaml").tables[table].rows
        }
        for column, (paper, table) in PUBLISHED.items()
    }


class Family(NamedTuple):
    """The settings with which models of a family are trained on random inputs."""

    task: str
    criterion: str
    layers: int  # default number of layers, as in the papers
    length_flags: Sequence[str]  # flags of the input length
    layer_flags: Sequence[str] = ("encoder_layers",)  # flags of the number of layers
    has_target: bool = False  # whether the target is a second sequence
    mask_probability: float = 0.0  # masking probability, or 0 if the model is not a masked language model
    num_labels: int = 0  # number of classes, or 0 if the task is not classification
    lengths: tuple[int, ...] = (512,)  # default input lengths in tokens, or sides of images in pixels
    vocab_size: int = 50265  # default vocabulary size, which is that of the papers' Books
    baseline: str | None = None  # attention of the base method, or None for that of the compared method
    images: bool = False  # whether the inputs are images

    @property
    def num_special(self) -> int:
        """The number of special symbols that fairseq adds to the dictionary."""
        return 5 if self.mask_probability else 4

    @property
    def reads_dictionary(self) -> bool:
        """Whether the task reads its dictionary from a folder, unlike fairseq's dummy tasks."""
        return not self.task.startswith("dummy_")

    def flags(self, args: Namespace) -> dict[str, object]:
        """Returns {flag: value} of the task, the criterion and the sizes in ``args``."""
        flags = {"task": self.task, "criterion": self.criterion}
        flags |= dict.fromkeys(self.length_flags, args.length) | dict.fromkeys(self.layer_flags, args.layers)
        if self.has_target:
            flags["label_smoothing"] = 0.1
        if not self.reads_dictionary:
            flags["dict_size"] = args.vocab_size - self.num_special
        return flags


FAMILIES = {
    "lm": Family("dummy_lm", "cross_entropy", 6, ["tokens_per_sample"], ["decoder_layers"]),
    "roberta": Family(
        "dummy_masked_lm", "masked_lm", 12, ["tokens_per_sample", "max_positions"], mask_probability=0.15
    ),
    "transformer": Family(
        "dummy_mt",
        "label_smoothed_cross_entropy",
        6,
        ["src_len", "tgt_len"],
        ["encoder_layers", "decoder_layers"],
        has_target=True,
    ),
    "classifier": Family(
        "classification",
        "label_smoothed_cross_entropy",
        4,
        ["max_positions"],
        num_labels=2,
        lengths=(1024, 2048, 4096),
        vocab_size=260,
        baseline="softmax",
    ),
    "vit": Family(
        "image_classification",
        "soft_target_cross_entropy",
        12,
        ["image_size"],
        num_labels=1000,
        lengths=(224, 384, 1024),
        baseline="softmax",
        images=True,
    ),
}


def random_batch(family: Family, args: Namespace, pad: int) -> dict:
    """Returns a batch of random inputs and targets in the format of fairseq's datasets.

    ``args`` has the sizes ``batch_size``, ``length`` and ``vocab_size``; ``pad`` is the index of padding.
    """
    size = args.batch_size
    if family.images:
        inputs = {"images": torch.randint(256, (size, args.length, args.length, 3), dtype=torch.uint8)}
        target = torch.randn(size, family.num_labels).softmax(1)
    else:
        source, target = torch.randint(4, args.vocab_size, (2, size, args.length + 1))
        sequence = target if family.has_target else source
        source = source[:, :-1].contiguous()
        inputs = {"src_tokens": source, "src_lengths": torch.full((size,), args.length)}
        if family.has_target:
            inputs["prev_output_tokens"] = target[:, :-1]
        target = sequence[:, 1:].contiguous()
        if family.mask_probability:
            target = source.masked_fill(torch.rand(source.shape) >= family.mask_probability, pad)
        elif family.num_labels:
            target = torch.randint(family.num_labels, (size,))
    tokens = size if family.num_labels else target.numel()
    counts = {"id": torch.arange(size), "nsentences": size, "ntokens": tokens}
    return {"net_input": inputs, "target": target, **counts}


def write_classification_data(folder: Path, vocab_size: int, family: Family) -> None:
    """Writes a dictionary and metadata, which the classification tasks read, to ``folder``."""
    symbols = range(vocab_size - family.num_special)
    (folder / "dict.txt").write_text("".join(f"type{number} 1\n" for number in symbols))
    metadata = {"inputs": 1, "labels": list(map(str, range(family.num_labels))), "rows": {}}
    (folder / layout.METADATA).write_text(json.dumps(metadata))


def training_config(flags: dict, data: list = ()):
    """Returns fairseq's configuration for training with ``flags`` {flag: value} in this process."""
    machine = {"cpu": shared.DEVICE == "cpu", "distributed_world_size": 1}
    flags = {"user_dir": PLUGIN, "save_dir": "/nonexistent", **machine, **flags}
    parser = options.get_training_parser(default_task=flags["task"])
    args = options.parse_args_and_arch(parser, list(map(str, [*data, *as_flags(flags)])))
    args.tpu = False  # --bf16 sets it
    return convert_namespace_to_omegaconf(args)


def build_trainer(family: Family, arch: str, args: Namespace, **flags) -> tuple[Trainer, dict]:
    """Returns fairseq's trainer of a model, and a random batch.

    Args:
        family: Task of the model.
        arch: Architecture of the model.
        args: Sizes of the model and of the batch.
        **flags: Further flags of fairseq-train, such as ``fp16=True``; ``args`` takes precedence.
    """
    training = {"arch": arch, "batch_size": args.batch_size, "optimizer": "adam", "lr": 5e-4, **flags}
    with TemporaryDirectory() as folder:
        if family.reads_dictionary:
            write_classification_data(Path(folder), args.vocab_size, family)
        cfg = training_config(training | family.flags(args), [folder] if family.reads_dictionary else [])
        task = tasks.setup_task(cfg.task)
    trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    if not family.reads_dictionary:
        task.load_dataset("train")
    trainer.begin_epoch(1)
    dictionary = task.source_dictionary
    return trainer, random_batch(family, args, dictionary and dictionary.pad())


def training_step(arch: str, args: Namespace, **flags) -> Callable[[], int]:
    """Returns a function that runs a training step, always on the same random batch.

    The function returns the number of updates so far; a step that overflows in fp16 makes no update.
    ``args`` has the family and the sizes; ``args`` and ``flags`` are those of :func:`build_trainer`.
    """
    trainer, batch = build_trainer(FAMILIES[args.family], arch, args, **flags)

    def step():
        trainer.train_step([batch], raise_oom=True)  # by default, batches that exceed the memory are skipped
        return trainer.get_num_updates()

    return step


def compare(arch: str, base: str, args: Namespace, **flags) -> list[tuple[float, float]]:
    """Returns [(seconds of a step of ``arch``, seconds of one of ``base``)] for each round after warm-up.

    ``args`` and ``flags`` are those of ``training_step``; ``args`` also has the number of ``rounds``.
    """
    steps = {"arch": training_step(arch, args, **flags), "base": training_step(base, args, **flags)}
    rounds = track(range(args.rounds + 1), f"{arch}, {args.length:,} tokens", transient=True)
    return list(zip(*shared.interleave(steps, rounds).values(), strict=True))


def peak_memory(training_step: Callable[..., Callable], *arguments: object) -> int:
    """Returns the peak memory in bytes of two steps of ``training_step(*arguments)``.

    This is all GPU memory, or on a CPU the memory in addition to that of the process before.
    """
    logging.disable(logging.INFO)
    before = shared.resident_memory("VmRSS")
    step = training_step(*arguments)
    for _ in range(2):  # from the second step on the optimizer's state exists
        step()
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return shared.resident_memory("VmHWM") - before


def measure(attention: str, methods: list[str], args: Namespace) -> None:
    """Measures methods in linear or softmax attention at ``args.length``, and prints a table."""
    family, archs = FAMILIES[args.family], {}
    baseline = family.baseline
    base = architecture(baseline or attention, args.family, "base")
    for method in methods:
        if method == "base" and not baseline:
            [other] = set(ATTENTIONS) - {attention}
            archs[f"base, {other}"] = architecture(other, args.family, method)
        else:
            archs[method] = architecture(attention, args.family, method)
    inputs = f"{args.length:,} tokens, vocabulary {args.vocab_size}"
    if family.images:
        inputs = f"{args.length:,} × {args.length:,} pixels"
    reference = f"the base of {baseline} attention" if baseline else "base"
    table = shared.Table(
        f"{args.family}, {attention} attention: {args.layers} layers, {args.batch_size} × {inputs}, "
        f"{args.rounds} interleaved rounds",
        f"relative: median of {reference} / median of method; spread: range of the rounds' ratios"
        + ("; memory is relative to the same base" if baseline else ""),
    )
    base_memory = shared.in_new_process(peak_memory, training_step, base, args) if baseline else 0
    for name, arch in archs.items():
        times = compare(arch, base, args)
        own, others = (statistics.median(x) for x in zip(*times, strict=True))
        row = {"method": name, "ms a step": 1000 * own, "relative": others / own}
        row["spread"] = shared.ratios(times)[1]
        if baseline:
            memory = shared.in_new_process(peak_memory, training_step, arch, args)
            row |= {"MiB": memory / 2**20, "relative memory": memory / base_memory}
        else:
            row |= {paper: speeds.get((attention, name)) for paper, speeds in published_speeds().items()}
        table.rows.append(row)
    if archs:
        table.print()


def main(arguments: list[str] | None = None) -> None:
    parser = shared.BenchmarkParser("speed", __doc__)
    help = "family of the models (default: %(default)s)"
    parser.add_argument("--family", choices=FAMILIES, default="lm", help=help)
    parser.add_methods("all but fairseq and ablations", [*METHODS, "fairseq"])
    parser.add_int("--batch-size", 2, "number of sequences or images per step")
    lengths = "512; classifier: 1,024, 2,048 and 4,096; vit, in pixels: 224, 384 and 1,024"
    parser.add_int("--length", None, f"number of tokens per sequence (default: {lengths})", minimum=2)
    parser.add_sizes(rounds=7)
    args = parser.parse_args(arguments)
    # An ablation has the same speed as the method with the same encoding.
    default = [name for name in METHODS if not name.startswith("ablation_")]
    if args.family != "lm":
        default = [name for name in default if ENCODINGS[METHODS[name].encoding].bidirectional]
    selected = parser.methods_by_attention(args, default)
    family = FAMILIES[args.family]
    args.layers, args.vocab_size = args.layers or family.layers, args.vocab_size or family.vocab_size
    with shared.measuring(parser.prog):
        for length in [args.length] if args.length else family.lengths:
            for attention, methods in selected.items():
                measure(attention, methods, Namespace(**{**vars(args), "length": length}))
