"""WikiText-103 at word level: the published tokens -> fairseq's binaries (``data_prep/wikitext103.sh``)."""

import argparse
import os
from pathlib import Path

from data_prep import binarise, door, fetch
from data_prep.binarise import DATA, SOURCES, SPLITS

SOURCE = SOURCES["wikitext103"]


def from_help(version):
    return f"{version['archive']} from elsewhere, or a folder with its files (default: download it)"


def find(version, folder, splits):
    """{split: its file} of a version in ``folder``, or in the folder that its archive has them in."""
    inside = folder / version["folder"]
    place = inside if inside.is_dir() else folder
    texts = {split: place / version["file"].format(split) for split in splits}
    for path in texts.values():
        if not path.is_file():
            raise door.BadInput(f"{path} is missing: {accepted(version)}")
    return texts


def accepted(version):
    return f"--from takes {version['archive']} or a folder with its files (see --help)"


def check_source(version, source, splits=SPLITS):
    """The name of ``source``; BadInput if it is neither the published archive nor a folder with its texts."""
    if source is None:
        return version["archive"]
    if not source.exists():
        raise door.BadInput(f"{source} is missing: {accepted(version)}")
    if source.is_dir():
        for path in find(version, source, splits).values():
            door.check_text(path)
        return source.resolve()
    fetch.verified(source, version["archive"], version["size"], version["sha256"])
    return version["archive"]


def texts_of(version, source, out, splits=SPLITS):
    """{split: its file}, fetched and unpacked in ``out`` as far as ``source`` is no folder."""
    if source is None:
        archive = out / version["archive"]
        source = fetch.fetch(archive, version["mirrors"], version["size"], version["sha256"])
    if source.is_file():
        fetch.unpack(source, out / "unpacked")
        source = out / "unpacked"
    return find(version, source, splits)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="wikitext103.sh", description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE_OR_FOLDER", help=from_help(SOURCE))
    parser.add_argument("--out", type=Path, default=DATA / "wikitext103", help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="default: %(default)s")
    args = parser.parse_args(arguments)
    with door.one_sentence("wikitext103"):
        door.check_workers(args.workers)
        if args.source or not binarise.finished(args.out):
            name = check_source(SOURCE, args.source)
            door.check_out(args.out, name)
        if binarise.finished(args.out):
            print(f"already there: {args.out / 'bin'}")
        else:
            texts = texts_of(SOURCE, args.source, args.out)
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
