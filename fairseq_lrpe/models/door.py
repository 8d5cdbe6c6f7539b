"""Answers wrong requests with one sentence and a non-zero exit, before anything is built or written."""

import argparse
import os
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.utils import import_user_module

from fairseq_lrpe import layouts
from fairseq_lrpe.gpus import check_architectures, check_bf16
from fairseq_lrpe.methods import ATTENTIONS, METHODS
from fairseq_lrpe.ops.linear_attention.fla import fla_lacks
from fairseq_lrpe.programs import one_sentence

FAMILIES: list[str] = []
"""The families of architectures that are registered."""


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


def check_machine(args, linear_backend: str) -> None:
    """Refuses, by ValueError, a precision or a backend of linear attention that this machine has not got.

    With --bf16 it lets fairseq train on what there is.
    """
    gpu = torch.cuda.is_available() and not args.cpu
    if gpu and args.bf16:
        check_bf16()
    if args.bf16 and find_spec("torch_xla") is None:
        args.tpu = False  # fairseq takes --bf16 for a TPU
    if linear_backend == "fla" and (reason := fla_lacks(torch.device("cuda" if gpu else "cpu"))):
        raise ValueError(f"--linear-backend fla needs {reason}: give auto or chunk")


def check_data(args) -> None:
    """Refuses, by ValueError, a data folder that is missing, or not binarised for training and validation."""
    if args.task in ("language_modeling", "masked_lm"):
        files = layouts.text
        remedy = "run fairseq-preprocess --only-source --trainpref ... --validpref ... on the text first"
    elif args.task == "sentence_prediction":
        files = layouts.sentences
        remedy = "bash data_prep/prepare.sh glue makes such folders of GLUE's tasks"
    elif args.task == "translation" and args.source_lang and args.target_lang:
        source, target = args.source_lang, args.target_lang
        files = partial(layouts.translation, source=source, target=target)
        remedy = f"run fairseq-preprocess -s {source} -t {target} on the text first, or give its languages"
    else:
        return
    splits, ends = [args.train_subset], (*layouts.ENDS, ".txt")
    if not args.disable_validation:
        splits += args.valid_subset.split(",")
    for folder in args.data.split(os.pathsep):
        asked = f"the data folder {folder!r}"
        if not Path(folder).is_dir():
            raise ValueError(f"{asked} does not exist: give one that fairseq-preprocess wrote")
        wanted = [name for name in files(splits) if name.endswith(ends)]
        missing = [name for name in wanted if not (Path(folder) / name).is_file()]
        if missing:
            raise ValueError(f"{asked} is not binarised, {', '.join(missing)} missing: {remedy}")
        splits, ends = [args.train_subset], layouts.ENDS  # further folders are shards of the training set
