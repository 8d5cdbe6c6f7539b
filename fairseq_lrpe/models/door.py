"""Answers wrong requests with one sentence and a non-zero exit, before anything is built or written."""

import argparse
import os
import sys
from functools import partial
from pathlib import Path

from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.utils import import_user_module

from fairseq_lrpe import layouts
from fairseq_lrpe.methods import ATTENTIONS, METHODS
from fairseq_lrpe.programs import one_sentence

FAMILIES: list[str] = []
"""The families of architectures that are registered."""


def check_command_line() -> None:
    """Refuses, in fairseq's own commands, an architecture or a language that fairseq would answer badly.

    fairseq's parser answers an unknown architecture with every one it has, and fairseq-generate an unknown
    language with a traceback before any model is asked; so, like --user-dir, their flags are read ahead of
    the real parser. Another program's command line is its own: it is not read unless fairseq imports a
    --user-dir, this package or a plugin that imports this package.
    """
    if not getattr(import_user_module, "memo", None):  # fairseq's note of what it has imported
        return
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for names in (("--user-dir",), ("--arch", "-a"), ("--source-lang", "-s"), ("--target-lang", "-t")):
        parser.add_argument(*names)
    args = parser.parse_known_args(sys.argv[1:])[0]
    if args.user_dir:
        with one_sentence("fairseq_lrpe"):
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
