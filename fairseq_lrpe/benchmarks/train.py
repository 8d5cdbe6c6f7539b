"""Compare training steps of models, on random inputs.

A step is one of fairseq's trainer: forward pass, backward pass and update. The models take turns, so that
other work on the machine affects all of them. Flags after -- apply to all models; an ARCH in quotes can have
flags of its own. For example:

  lrpe bench train linear_lm_base linear_lm_rope softmax_lm_rope --length 1024
  lrpe bench train linear_vit_base 'linear_vit_base --bf16' --length 224 -- --encoder-layers 6
"""

import json
import shlex
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from fairseq import models, options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import roberta
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.trainer import Trainer

from fairseq_lrpe.benchmarks import measurement
from fairseq_lrpe.data import layout
from fairseq_lrpe.models.classifier import ClassifierModel
from fairseq_lrpe.models.vit import ViTModel
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import PLUGIN
from fairseq_lrpe.utils.subprocesses import as_flags
from fairseq_lrpe.utils.suggest import choices

LISTING = "`fairseq-train --user-dir fairseq_lrpe --help` lists the architectures"


class Family(NamedTuple):
    task: str
    criterion: str
    length_flags: Sequence[str]  # flags of the input length
    layer_flags: Sequence[str] = ("encoder_layers",)  # flags of the number of layers
    has_target: bool = False  # whether the target is a second sequence
    mask_probability: float = 0.0  # masking probability, or 0 if the model is not a masked language model
    num_labels: int = 0  # number of classes, or 0 if the task is not classification
    length: int = 512  # default input length in tokens, or side of images in pixels
    vocab_size: int = 50265  # default vocabulary size, which is that of the papers' Books


FAMILIES = {
    TransformerLanguageModel: Family("dummy_lm", "cross_entropy", ["tokens_per_sample"], ["decoder_layers"]),
    roberta.RobertaModel: Family(
        "dummy_masked_lm", "masked_lm", ["tokens_per_sample", "max_positions"], mask_probability=0.15
    ),
    TransformerModelBase: Family(
        "dummy_mt",
        "label_smoothed_cross_entropy",
        ["src_len", "tgt_len", "max_source_positions", "max_target_positions"],
        ["encoder_layers", "decoder_layers"],
        has_target=True,
    ),
    ClassifierModel: Family(
        "classification", "label_smoothed_cross_entropy", ["max_positions"], num_labels=2, vocab_size=260
    ),
    ViTModel: Family(
        "image_classification", "soft_target_cross_entropy", ["image_size"], num_labels=1000, length=224
    ),
}
"""{class of models: its family}"""


def family_of(arch: str) -> Family:
    if arch not in models.ARCH_MODEL_REGISTRY:
        raise UserError(f"unknown architecture {arch!r}{choices(arch, models.ARCH_MODEL_REGISTRY, LISTING)}")
    for model, family in FAMILIES.items():
        if issubclass(models.ARCH_MODEL_REGISTRY[arch], model):
            return family
    known = "lm, roberta, transformer, classifier or vit"
    raise UserError(f"{arch} cannot be measured: choose an architecture of the family {known}")


def sizes(family: Family, args: Namespace) -> Namespace:
    """Returns the options, with the family's length and vocabulary size in place of missing ones."""
    completed = Namespace(**vars(args))
    completed.length = args.length or family.length
    completed.vocab_size = args.vocab_size or family.vocab_size
    return completed


def random_batch(family: Family, args: Namespace, pad: int | None) -> dict:
    size = args.batch_size
    if family.task == "image_classification":
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


def setup(model: str, args: Namespace):
    arch, *own_flags = shlex.split(model)
    family = family_of(arch)
    flags = {
        "user_dir": PLUGIN,
        "save_dir": "/nonexistent",
        "distributed_world_size": 1,
        "cpu": measurement.device(args.cpu) == "cpu",
        "task": family.task,
        "criterion": family.criterion,
        "arch": arch,
        "optimizer": "adam",
        "lr": 5e-4,
        "batch_size": args.batch_size,
        **dict.fromkeys(family.length_flags, args.length),
        **dict.fromkeys(family.layer_flags, args.layers),
    }
    if family.has_target:
        flags["label_smoothing"] = 0.1
    if not family.num_labels:
        special = 5 if family.mask_probability else 4  # symbols that fairseq adds
        flags["dict_size"] = args.vocab_size - special
    with TemporaryDirectory() as folder:
        if family.num_labels:
            write_classification_data(Path(folder), args.vocab_size, family.num_labels)
        data = [folder] if family.num_labels else []
        cfg = parse_flags([*data, *as_flags(flags), *args.flags, *own_flags])
        return cfg, tasks.setup_task(cfg.task)


def parse_flags(words: list[str]):
    parser = options.get_training_parser(default_task="dummy_lm")
    namespace = options.parse_args_and_arch(parser, words)
    namespace.tpu = False  # --bf16 sets it, and the trainer would use a TPU
    return convert_namespace_to_omegaconf(namespace)


def write_classification_data(folder: Path, vocab_size: int, labels: int) -> None:
    (folder / "dict.txt").write_text("".join(f"type{number} 1\n" for number in range(vocab_size - 4)))
    metadata = {"inputs": 1, "labels": list(map(str, range(labels))), "rows": {}}
    (folder / layout.METADATA).write_text(json.dumps(metadata))


def training_step(model: str, args: Namespace) -> Callable[[], None]:
    family = family_of(shlex.split(model)[0])
    args = sizes(family, args)
    cfg, task = setup(model, args)
    trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    trainer.consolidate_optimizer = trainer.save_checkpoint = lambda *_: None  # after an error, crash.pt
    if not family.num_labels:
        task.load_dataset("train")
    trainer.begin_epoch(1)
    dictionary = task.source_dictionary
    batch = random_batch(family, args, dictionary and dictionary.pad())

    # By default, fairseq skips batches that exceed the memory.
    return lambda: trainer.train_step([batch], raise_oom=True)


def main(arguments: list[str] | None = None) -> None:
    parser = measurement.model_parser("train", __doc__)
    args = measurement.parse(parser, arguments)
    with measurement.measuring(parser.prog):
        rows = measurement.compare(partial(training_step, args=args), args.archs, args)
        measurement.report(rows, f"training steps, batches of {args.batch_size}", args)
