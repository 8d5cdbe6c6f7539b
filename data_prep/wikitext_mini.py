"""A small corpus out of WikiText-103 -> fairseq's binaries (``data_prep/wikitext_mini.sh``).

WikiText-103's test set is for training, the two halves of its validation set are for validation and test.
Numbers on it say nothing about WikiText-103's own.
"""

import argparse
import re
import shutil
from pathlib import Path

from data_prep import binarise, door
from data_prep.binarise import DATA, SPLITS
from data_prep.wikitext103 import SOURCE, check_source, from_help, texts_of

USED = ("valid", "test")


def halves(lines):
    """``lines`` in two, the second from the first title in its half on.

    A title is `` = Name = `` between blank lines; a heading inside an article has more equals signs.
    """
    blank = [not line.strip() for line in lines]
    for i in range(len(lines) // 2, len(lines) - 1):
        if blank[i - 1] and blank[i + 1] and re.fullmatch(r" = [^=].* = \n", lines[i]):
            return lines[:i], lines[i:]
    raise door.BadInput("the second half of wiki.valid.tokens has no article's title: it is not WikiText's")


def cut(texts, folder, source):
    """{split: folder/<split>.txt} of the published validation and test sets; whole or not at all."""
    if not folder.is_dir():
        with texts["valid"].open(encoding="utf-8", newline="\n") as file:
            parts = dict(zip(USED, halves(file.readlines()), strict=True))
        with door.whole_folder(folder, source) as part:
            for split, lines in parts.items():
                (part / f"{split}.txt").write_text("".join(lines), encoding="utf-8", newline="\n")
            shutil.copyfile(texts["test"], part / "train.txt")
    return {split: folder / f"{split}.txt" for split in SPLITS}


def find_cut(folder):
    """{split: path} of a folder that is cut already, else None."""
    texts = {split: folder / f"{split}.txt" for split in SPLITS}
    there = [path.is_file() for path in texts.values()]
    if any(there) and not all(there):
        raise door.BadInput(f"{folder} needs all of train.txt, valid.txt and test.txt")
    return texts if all(there) else None


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="wikitext_mini.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FILE_OR_FOLDER",
        help=f"{from_help(SOURCE)}; or a folder with train.txt, valid.txt and test.txt cut already",
    )
    parser.add_argument("--out", type=Path, default=DATA / "wikitext_mini", help="default: %(default)s")
    args = parser.parse_args(arguments)
    with door.one_sentence("wikitext_mini"):
        texts = find_cut(args.source) if args.source else None
        if args.source or not binarise.finished(args.out):
            name = args.source.resolve() if texts else check_source(SOURCE, args.source, USED)
            for path in (texts or {}).values():
                door.check_text(path)
            door.check_out(args.out, name)
        if binarise.finished(args.out):
            print(f"already there: {args.out / 'bin'}")
        else:
            texts = texts or cut(texts_of(SOURCE, args.source, args.out, USED), args.out / "text", name)
            binarise.binarise(texts, args.out, name, "--thresholdsrc", 5)
        size = binarise.vocabulary_size(args.out / "bin")
        binarise.report(args.out, f"{size:,} types, words that the training text has five times or more")


if __name__ == "__main__":
    main()
