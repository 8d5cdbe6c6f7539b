"""WikiText-103 at word level: the published tokens -> fairseq's binaries (``data_prep/wikitext103.sh``)."""

import argparse
import os
from pathlib import Path

from data_prep import binarise, door, fetch
from data_prep.binarise import DATA, SOURCES, SPLITS

SOURCE = SOURCES["wikitext103"]
ACCEPTED = f"--from takes {SOURCE['archive']} or a folder with its files (see --help)"
FROM_HELP = f"{SOURCE['archive']} from elsewhere, or a folder with its files (default: download it)"


def find_tokens(folder, splits):
    """{split: wiki.<split>.tokens} in ``folder`` or in its wikitext-103, as the archive has them."""
    inside = folder / "wikitext-103"
    place = inside if inside.is_dir() else folder
    texts = {split: place / f"wiki.{split}.tokens" for split in splits}
    for path in texts.values():
        if not path.is_file():
            raise door.BadInput(f"{path} is missing: {ACCEPTED}")
    return texts


def check_source(source, splits):
    """The name of ``source``; BadInput if it is neither the published archive nor a folder with its texts."""
    if source is None:
        return SOURCE["archive"]
    if not source.exists():
        raise door.BadInput(f"{source} is missing: {ACCEPTED}")
    if source.is_dir():
        for path in find_tokens(source, splits).values():
            door.check_text(path)
        return source.resolve()
    fetch.verified(source, SOURCE["archive"], SOURCE["size"], SOURCE["sha256"])
    return SOURCE["archive"]


def tokens(source, out, splits):
    """{split: wiki.<split>.tokens}, fetched and unpacked in ``out`` as far as ``source`` is no folder."""
    if source is None:
        archive = out / SOURCE["archive"]
        source = fetch.fetch(archive, SOURCE["mirrors"], SOURCE["size"], SOURCE["sha256"])
    if source.is_file():
        fetch.unpack(source, out / "unpacked")
        source = out / "unpacked"
    return find_tokens(source, splits)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="wikitext103.sh", description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE_OR_FOLDER", help=FROM_HELP)
    parser.add_argument("--out", type=Path, default=DATA / "wikitext103", help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="default: %(default)s")
    args = parser.parse_args(arguments)
    with door.one_sentence("wikitext103"):
        door.check_workers(args.workers)
        if args.source or not binarise.finished(args.out):
            name = check_source(args.source, SPLITS)
            door.check_out(args.out, name)
        if binarise.finished(args.out):
            print(f"already there: {args.out / 'bin'}")
        else:
            texts = tokens(args.source, args.out, SPLITS)
            binarise.binarise(texts, args.out, name, workers=args.workers)
        size = binarise.vocabulary_size(args.out / "bin")
        expected = SOURCE["vocabulary"]
        same = (
            "as in the papers"
            if size == expected
            else f"the papers' {expected:,} is of the whole training set"
        )
        binarise.report(args.out, f"{size:,} types; {same}")


if __name__ == "__main__":
    main()
