"""Validation of the arguments of fairseq's commands.

Invalid flags of this plugin, and arguments that would silently give wrong results, fail early with a one-line
error that suggests a fix. All other flags are validated by fairseq itself.
"""

import sys
from argparse import ArgumentParser
from pathlib import Path

import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY

from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.fairseq_ext.architecture import split_architecture
from fairseq_lrpe.fairseq_ext.checkpoint import newest_readable, read_checkpoint
from fairseq_lrpe.methods import ATTENTIONS, METHODS, UNKNOWN
from fairseq_lrpe.models.data_validation import check_data
from fairseq_lrpe.ops.linear.fla import missing_requirement
from fairseq_lrpe.tasks import FAMILIES
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.gpus import check_architectures, check_bf16
from fairseq_lrpe.utils.suggest import choices


def check_command_line(words: list[str]) -> None:
    """Raises a UserError if --arch has a method that is unknown, or that its attention does not support."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--arch", "-a", default="")
    arch = parser.parse_known_args(list(map(str, words)))[0].arch
    parts = split_architecture(arch)
    if parts and arch not in ARCH_MODEL_REGISTRY:
        attention, family, name = parts
        if name in METHODS:
            raise UserError(
                f"the method {name!r} does not exist in {attention} attention: pass --arch "
                f"{METHODS[name].attentions()[0]}_{family}_{name}"
            )
        methods = [name for name, method in METHODS.items() if attention in method.attentions()]
        raise UserError(f"{attention}_{family} has no method {name!r}{choices(name, methods, UNKNOWN)}")


def check_arguments(args) -> None:
    """Validates the parsed arguments of one of fairseq's commands.

    If ``checkpoint_last.pt`` is unreadable, ``args`` is changed to continue from the newest readable
    checkpoint.

    Raises:
        UserError: for invalid arguments, damaged data, an unreadable checkpoint, or a GPU that torch does
            not support.
    """
    if not args.cpu:
        check_architectures()
    training = not hasattr(args, "path")
    task = getattr(args, "task", None)
    if hasattr(args, "buffer_size"):  # fairseq-interactive
        splits = []
    elif hasattr(args, "beam") or hasattr(args, "context_window"):  # fairseq-generate, fairseq-eval-lm
        splits = [args.gen_subset]
    else:
        splits = [args.train_subset] if training else []
        splits += [] if args.disable_validation else args.valid_subset.split(",")
    if hasattr(args, "data"):
        check_data(args, splits)
    if task == "memory_lm" and training and args.arch.partition("_")[0] not in ATTENTIONS:
        raise UserError(f"--task memory_lm requires --arch linear_lm_... or softmax_lm_..., not {args.arch}")
    if hasattr(TASK_REGISTRY.get(task), "check_arguments"):
        TASK_REGISTRY[task].check_arguments(args)
    if training:
        check_block_length(args)
        check_restored_checkpoint(args)


def check_block_length(args) -> None:
    """Raises a UserError for blocks longer than the model's maximum length, which fairseq would skip."""
    flag = {"language_modeling": "max_target_positions", "masked_lm": "max_positions"}.get(args.task)
    longest = flag and getattr(args, flag, None)
    if longest and str(args.sample_break_mode) in ("None", "none") and args.tokens_per_sample > longest:
        raise UserError(
            f"--tokens-per-sample {args.tokens_per_sample} exceeds --{flag.replace('_', '-')} {longest}: "
            f"pass equal values, or omit --{flag.replace('_', '-')}"
        )


def check_restored_checkpoint(args) -> None:
    """Raises a UserError if the checkpoint from which training would start cannot be read.

    If this checkpoint is ``checkpoint_last.pt``, the newest readable checkpoint in its folder, if any,
    replaces it in ``args``, and a warning is printed.
    """
    remedy = "pass one that fairseq-train wrote"
    last = Path(args.save_dir, "checkpoint_last.pt")
    if args.restore_file != last.name:
        read_checkpoint(Path(args.restore_file), remedy)
    elif last.exists():
        try:
            read_checkpoint(last, remedy)
        except UserError as error:
            newest = newest_readable(last.parent)
            if newest is None:
                raise UserError(
                    f"{error}, and its folder has no readable one: remove {last.name} to train from scratch"
                ) from None
            print(f"fairseq_lrpe: {error}: continuing from {newest}", file=sys.stderr)
            args.restore_file = str(newest)
            args.finetune_from_model = None
    elif args.finetune_from_model:
        read_checkpoint(Path(args.finetune_from_model), remedy)


def check_task(task: str, family: str) -> None:
    """Raises a UserError if the task requires another family of architectures."""
    if FAMILIES.get(task, family) != family:
        tasks = [name for name in FAMILIES if FAMILIES[name] == family]
        raise UserError(
            f"--task {task} requires an architecture of the family {FAMILIES[task]}, not {family}: "
            f"pass --task {' or '.join(tasks)}, or another --arch"
        )


def check_shared_encoding(args, cfg) -> None:
    """Raises a UserError if --ddp-backend does not support an encoding that all layers share."""
    if args.ddp_backend == "fully_sharded" and ENCODINGS[cfg.encoding].shared_across_layers:
        raise UserError(
            f"--ddp-backend fully_sharded does not support the encoding {cfg.encoding}, which all layers "
            "share: pass --ddp-backend legacy_ddp"
        )


def check_machine(args, linear_backend: str) -> None:
    """Raises a UserError if this machine does not support --bf16 or the backend of attention."""
    gpu = torch.cuda.is_available() and not args.cpu
    if gpu and args.bf16:
        check_bf16()
    if linear_backend not in ("fla", "triton"):
        return
    if reason := missing_requirement(torch.device("cuda" if gpu else "cpu"), linear_backend):
        raise UserError(
            f"--linear-backend {linear_backend} needs {reason}: pass --linear-backend auto or chunk"
        )
