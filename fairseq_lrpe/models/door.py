"""Answers to what is asked wrongly: one sentence and a non-zero exit, before anything is built or written."""

import argparse
import os
import sys
from contextlib import contextmanager
from pathlib import Path

from fairseq.models import ARCH_MODEL_REGISTRY


@contextmanager
def one_sentence():
    """Turn a ValueError of the rooms below into fairseq's end: its sentence on stderr, exit code 1."""
    try:
        yield
    except ValueError as error:
        raise SystemExit(f"fairseq_lrpe: {error}") from error


def check_arch(family):
    """Refuse ``--arch <linear|softmax>_<family>_...`` when there is no such method.

    fairseq's own parser answers an unknown architecture with every one it has. Like its --user-dir, the
    flag is read ahead of the real parser.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--arch", "-a", default="")
    arch = parser.parse_known_args(sys.argv[1:])[0].arch
    for prefix in (f"linear_{family}", f"softmax_{family}"):
        if arch.startswith(f"{prefix}_") and arch not in ARCH_MODEL_REGISTRY:
            methods = [
                name[len(prefix) + 1 :] for name in ARCH_MODEL_REGISTRY if name.startswith(f"{prefix}_")
            ]
            asked = arch[len(prefix) + 1 :]
            raise SystemExit(
                f"fairseq_lrpe: {prefix} has no method {asked!r}: choose from {', '.join(methods)}"
            )


def check_languages():
    """Refuse a language of ``--source-lang`` and ``--target-lang`` that the data folder has no dictionary of.

    Of a translation's folder alone; fairseq-generate would end in a traceback before any model is asked.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flags in (("--source-lang", "-s"), ("--target-lang", "-t")):
        parser.add_argument(*flags)
    args = parser.parse_known_args(sys.argv[1:])[0]
    for word in sys.argv[1:]:
        folder = word.split(os.pathsep)[0]
        known = sorted(path.name.split(".")[1] for path in Path(folder).glob("dict.?*.txt"))
        for language in filter(None, (args.source_lang, args.target_lang)):
            if known and language not in known:
                raise SystemExit(
                    f"fairseq_lrpe: the data folder {folder!r} has no dict.{language}.txt: its languages are "
                    f"{', '.join(known)}, give its languages as --source-lang and --target-lang"
                )


def check_data(args):
    """Refuse a data folder that is missing, or holds no binarised training and validation set."""
    dictionaries, texts = ["dict.txt"], ["{split}"]
    remedy = "run fairseq-preprocess --only-source --trainpref ... --validpref ... on the text first"
    if args.task == "sentence_prediction":
        dictionaries, texts = ["input0/dict.txt"], ["input0/{split}"]
        remedy = "bash data_prep/glue.sh makes such folders of GLUE's tasks"
    elif args.task == "translation" and args.source_lang and args.target_lang:
        pair = args.source_lang, args.target_lang
        dictionaries = [f"dict.{language}.txt" for language in pair]
        texts = [f"{{split}}.{'-'.join(pair)}.{language}" for language in pair]
        remedy = f"run fairseq-preprocess -s {pair[0]} -t {pair[1]} on the text first, or give its languages"
    elif args.task not in ("language_modeling", "masked_lm"):
        return
    for number, folder in enumerate(args.data.split(os.pathsep)):
        if not Path(folder).is_dir():
            raise ValueError(
                f"the data folder {folder!r} does not exist: give one that fairseq-preprocess wrote"
            )
        splits, wanted = [args.train_subset], []
        if number == 0:  # further folders are shards of the training set
            splits += [] if args.disable_validation else args.valid_subset.split(",")
            wanted = dictionaries
        wanted = [
            *wanted,
            *(f"{text.format(split=x)}{end}" for x in splits for text in texts for end in (".bin", ".idx")),
        ]
        missing = [name for name in wanted if not (Path(folder) / name).is_file()]
        if missing:
            raise ValueError(
                f"the data folder {folder!r} is not binarised, {', '.join(missing)} missing: {remedy}"
            )
