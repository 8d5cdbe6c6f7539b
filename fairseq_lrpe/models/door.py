"""Answers wrong requests with one sentence and a non-zero exit, before anything is built or written."""

import argparse
import os
import shutil
import sys
from functools import wraps
from importlib.util import find_spec
from pathlib import Path

import torch
from fairseq import checkpoint_utils, file_io, options
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.utils import import_user_module

from fairseq_lrpe import decay
from fairseq_lrpe.checkpoint import newest_whole, read_checkpoint
from fairseq_lrpe.config import check_between
from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.files import whole_file
from fairseq_lrpe.gpus import check_architectures, check_bf16
from fairseq_lrpe.literals import literal
from fairseq_lrpe.methods import ATTENTIONS, METHODS
from fairseq_lrpe.models.data_door import check_data
from fairseq_lrpe.ops.linear_attention.fla import fla_lacks
from fairseq_lrpe.programs import one_sentence
from fairseq_lrpe.tasks import classification, image_classification, memory_lm

FAMILIES: list[str] = []
"""The families of architectures that are registered."""
FAMILY_OF = {
    **dict.fromkeys(("language_modeling", "memory_lm", "synthetic_lm"), "lm"),
    **dict.fromkeys(("masked_lm", "sentence_prediction"), "roberta"),
    "translation": "transformer",
    "classification": "classifier",
    "question_generation": "question_generator",
    "image_classification": "vit",
}
"""The family that each of these tasks is for; of others, such as a plugin's, nothing is known."""
DEFAULT_TASKS = ("translation", "language_modeling")
"""What fairseq's commands take for a --task that is not given; an evaluation then takes the checkpoint's."""
AT_LEAST = {
    1: (
        *("batch_size", "batch_size_valid", "max_tokens", "max_tokens_valid", "tokens_per_sample"),
        *("max_positions", "max_source_positions", "max_target_positions", "update_freq", "log_interval"),
        *("required_batch_size_multiple", "beam", "streams", "image_size", "repeats"),
    ),
    0: (
        *("num_workers", "warmup_updates", "max_update", "max_epoch", "context_window"),
        *("memory_length", "clamp_length", "init_std"),
    ),
}
"""{the least number: the flags of fairseq's commands whose number it is}"""


def guard_commands() -> None:
    """Lets fairseq's commands check their arguments, and answer a folder that cannot be written.

    A checkpoint that they copy takes its name once it is whole.
    """
    options.parse_args_and_arch = _checking(options.parse_args_and_arch)
    checkpoint_utils.verify_checkpoint_directory = _answering(checkpoint_utils.verify_checkpoint_directory)
    if file_io.IOPathManager is None:  # it may copy to other machines
        file_io.PathManager.copy = staticmethod(_copy)


def _checking(parse):
    @wraps(parse)
    def checked(*given, **how):
        found = parse(*given, **how)
        # With the defaults suppressed it is the second time; another program's arguments are its own.
        if not how.get("suppress_defaults") and is_fairseqs(sys.argv[0]):
            with one_sentence("fairseq_lrpe"):
                check_arguments(found[0] if isinstance(found, tuple) else found)
        return found

    return checked


def is_fairseqs(program: str) -> bool:
    """Whether a program is one of fairseq's commands: fairseq-train, or python -m fairseq_cli.train."""
    return any(part.startswith(("fairseq-", "fairseq_cli")) for part in Path(program).parts[-2:])


def _answering(function):
    @wraps(function)
    def answered(*given):
        with one_sentence("fairseq_lrpe"):
            return function(*given)

    return answered


def _copy(source, target, overwrite=False):
    with whole_file(Path(target)) as part:
        shutil.copyfile(source, part)
    return True


def check_arguments(args) -> None:
    """Refuses, by ValueError, arguments of a command of fairseq that it would answer with a traceback.

    A training whose last checkpoint is cut off is let go on from the newest whole one.
    """
    training, searching = not hasattr(args, "path"), hasattr(args, "beam")
    check_numbers(args)
    for name in ("model_overrides", "optimizer_overrides"):
        text = getattr(args, name, "{}")
        if not isinstance(literal(text), dict):
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} must be a dict like \"{{'lr': 0.1}}\", not {text!r}")
    if searching or hasattr(args, "context_window"):  # fairseq-generate, -interactive, -eval-lm
        splits = [] if hasattr(args, "buffer_size") else [args.gen_subset]
    elif args.batch_size is None and args.max_tokens is None:
        raise ValueError("how large is a batch: give --batch-size or --max-tokens")
    else:
        splits = [args.train_subset] if training else []
        splits += [] if args.disable_validation else args.valid_subset.split(",")
    if hasattr(args, "data"):
        check_data(args, splits)
    if getattr(args, "task", None) == "memory_lm":
        if training and args.arch.partition("_")[0] not in ATTENTIONS:
            raise ValueError(f"memory_lm is for --arch linear_lm_... and softmax_lm_..., not for {args.arch}")
        memory_lm.check_request(args, splits)
    if getattr(args, "task", None) == "classification":
        classification.check_request(args, training)
    if getattr(args, "task", None) == "image_classification":
        image_classification.check_request(args)
    if training:
        check_blocks(args)
        decay.check_request(args)
        check_restored(args)
    else:
        check_path(args)


def check_numbers(args) -> None:
    """Refuses, by ValueError, numbers that are too small to mean anything."""
    for least, names in AT_LEAST.items():
        for name in names:
            value = getattr(args, name, None)
            for number in value if isinstance(value, list) else [value]:
                check_between(name, number, least)


def check_blocks(args) -> None:
    """Refuses, by ValueError, blocks of a text that are longer than what the model reads.

    fairseq would leave them out of the training, which is all of it, and end at the first validation.
    """
    flag = {"language_modeling": "max_target_positions", "masked_lm": "max_positions"}.get(args.task)
    most = flag and getattr(args, flag, None)
    if most and str(args.sample_break_mode) in ("None", "none") and args.tokens_per_sample > most:
        raise ValueError(
            f"blocks of --tokens-per-sample {args.tokens_per_sample} are longer than "
            f"--{flag.replace('_', '-')} {most}: give the same number, or leave the latter out"
        )


def check_path(args) -> None:
    """Refuses, by ValueError, an evaluation's checkpoints that are missing or cannot be read."""
    if not args.path:
        raise ValueError("give --path CHECKPOINT, a file that fairseq-train wrote")
    if getattr(args, "checkpoint_suffix", "") or getattr(args, "checkpoint_shard_count", 1) > 1:
        return  # the names are made of these
    ours = None if args.task in DEFAULT_TASKS else FAMILY_OF.get(args.task)
    for path in args.path.split(os.pathsep):
        state = read_checkpoint(Path(path), "give one that fairseq-train wrote")
        theirs = state["cfg"]["task"].get("_name")
        if ours and FAMILY_OF.get(theirs, ours) != ours:
            remedy = f"give --task {theirs} and data of its kind"
            raise ValueError(f"the checkpoint {path} is of the task {theirs}, not of {args.task}: {remedy}")


def check_restored(args) -> None:
    """Refuses, by ValueError, a checkpoint to go on from that cannot be read.

    In place of a ``checkpoint_last.pt`` in the folder of the training that cannot, ``args`` get the newest
    one there that can: a training that is killed while fairseq copies it leaves the start of it.
    """
    remedy, last = "give one that fairseq-train wrote", Path(args.save_dir, "checkpoint_last.pt")
    if args.restore_file != last.name:
        read_checkpoint(Path(args.restore_file), remedy)
    elif last.exists():
        try:
            read_checkpoint(last, remedy)
        except ValueError as error:
            newest = newest_whole(last.parent)
            if newest is None:
                raise ValueError(f"{error}, and no other is beside it: remove it to start afresh") from None
            print(f"fairseq_lrpe: {error}: going on from {newest}", file=sys.stderr)
            args.restore_file, args.finetune_from_model = str(newest), None
    elif args.finetune_from_model:
        read_checkpoint(Path(args.finetune_from_model), remedy)


def check_task(task: str, family: str) -> None:
    """Refuses, by ValueError, a task that is for another family of architectures."""
    if FAMILY_OF.get(task, family) != family:
        tasks = [name for name in FAMILY_OF if FAMILY_OF[name] == family]
        raise ValueError(
            f"the task {task} is for the {FAMILY_OF[task]} architectures, and the architecture is of the "
            f"family {family}: give --task {' or '.join(tasks)}, or another --arch"
        )


def check_command_line() -> None:
    """Refuses, in fairseq's own commands, what fairseq would answer badly.

    fairseq's parser answers an unknown architecture with every one it has, fairseq-generate an unknown
    language with a traceback before any model is asked, and a GPU that torch has no code for ends a command
    at its first kernel; so, like --user-dir, these flags are read ahead of the real parser. Another
    program's command line is its own: it is not read unless fairseq imports a --user-dir, this package or a
    plugin that imports this package.
    """
    if not getattr(import_user_module, "memo", None):  # fairseq's note of what it has imported
        return
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for names in (("--user-dir",), ("--arch", "-a"), ("--source-lang", "-s"), ("--target-lang", "-t")):
        parser.add_argument(*names)
    parser.add_argument("--cpu", action="store_true")
    args, others = parser.parse_known_args(sys.argv[1:])
    hydra = any(word.startswith("common.user_dir=") for word in others)
    with one_sentence("fairseq_lrpe"):
        if (args.user_dir or hydra) and not (args.cpu or "common.cpu=true" in others):
            check_architectures()
        if args.user_dir:
            check_arch(args.arch or "")
            check_languages(sys.argv[1:], [args.source_lang, args.target_lang])


def check_arch(arch: str) -> None:
    """Refuses, by ValueError, ``<linear|softmax>_<family>_...`` when there is no such method."""
    attention, _, rest = arch.partition("_")
    family = max((name for name in FAMILIES if rest.startswith(f"{name}_")), key=len, default=None)
    if attention in ATTENTIONS and family and arch not in ARCH_MODEL_REGISTRY:
        asked = rest.removeprefix(f"{family}_")
        methods = [name for name, method in METHODS.items() if attention in method.attentions()]
        raise ValueError(f"{attention}_{family} has no method {asked!r}: choose from {', '.join(methods)}")


def check_languages(words: list[str], languages: list[str | None]) -> None:
    """Refuses, by ValueError, languages that a translation's folder among ``words`` has no dictionary of."""
    for word in words:
        folder = word.split(os.pathsep)[0]
        known = sorted(path.name.split(".")[1] for path in Path(folder).glob("dict.?*.txt"))
        for language in filter(None, languages):
            if known and language not in known:
                raise ValueError(
                    f"the data folder {folder!r} has no dict.{language}.txt: its languages are "
                    f"{', '.join(known)}, give its languages as --source-lang and --target-lang"
                )


def check_sharing(args, cfg) -> None:
    """Refuses, by ValueError, several processes that cannot train an encoding that all layers share."""
    if not ENCODINGS[cfg.encoding].shared_by_layers:
        return
    shared = f"all layers share one {cfg.encoding}, which"
    if args.ddp_backend == "fully_sharded":
        raise ValueError(
            f"{shared} --ddp-backend fully_sharded would shard in each of them: give another backend"
        )
    twice = getattr(cfg, "checkpoint_activations", False) and args.distributed_world_size > 1
    if twice and args.ddp_backend not in ("legacy_ddp", "no_c10d"):
        raise ValueError(
            f"{shared} --ddp-backend {args.ddp_backend} does not take beside --checkpoint-activations: "
            "give --ddp-backend legacy_ddp"
        )


def check_machine(args, linear_backend: str) -> None:
    """Refuses, by ValueError, a precision or a backend of linear attention that this machine has not got.

    With --bf16 it lets fairseq train on what there is.
    """
    gpu = torch.cuda.is_available() and not args.cpu
    if args.fp16 and not (gpu or args.fp16_no_flatten_grads):  # flat ones are made on a GPU alone
        raise ValueError("--fp16 needs a GPU: leave it out")
    if gpu and args.bf16:
        check_bf16()
    if args.bf16 and find_spec("torch_xla") is None:
        args.tpu = False  # fairseq takes --bf16 for a TPU
    if linear_backend == "fla" and (reason := fla_lacks(torch.device("cuda" if gpu else "cpu"))):
        raise ValueError(f"--linear-backend fla needs {reason}: give auto or chunk")
