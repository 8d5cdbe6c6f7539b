"""WikiText-103, or the small corpus out of it, in GPT-2's byte pairs -> fairseq's binaries for masked_lm.

``data_prep/wikitext103_bpe.sh`` takes the raw version, which has every word;
``data_prep/wikitext_mini_bpe.sh`` the small corpus of ``data_prep/wikitext_mini.sh``.
"""

import argparse
import sys
from pathlib import Path

from data_prep import binarise, books, door, fetch, gpt2_bpe, wikitext103, wikitext_mini
from data_prep.binarise import DATA, SOURCES, SPLITS

RAW = SOURCES["wikitext103_raw"]
ACCEPTED = f"--from takes {RAW['archive']} or a folder with its files (see --help)"


def find_raw(folder):
    """{split: wiki.<split>.raw} in ``folder`` or in its wikitext-103-raw, as the archive has them."""
    inside = folder / "wikitext-103-raw"
    place = inside if inside.is_dir() else folder
    texts = {split: place / f"wiki.{split}.raw" for split in SPLITS}
    for path in texts.values():
        if not path.is_file():
            raise door.BadInput(f"{path} is missing: {ACCEPTED}")
    return texts


def check_raw(source):
    """The name of ``source``; BadInput if it is neither the published archive nor a folder with its texts."""
    if source is None:
        return RAW["archive"]
    if not source.exists():
        raise door.BadInput(f"{source} is missing: {ACCEPTED}")
    if source.is_dir():
        for path in find_raw(source).values():
            door.check_text(path)
        return source.resolve()
    fetch.verified(source, RAW["archive"], RAW["size"], RAW["sha256"])
    return RAW["archive"]


def raw_texts(source, out, name):
    """{split: out/text/<split>.txt}, fetched and unpacked in ``out`` as far as ``source`` is no folder."""
    if source is None:
        source = fetch.fetch(out / RAW["archive"], RAW["mirrors"], RAW["size"], RAW["sha256"])
    if source.is_file():
        fetch.unpack(source, out / "unpacked")
        source = out / "unpacked"
    return books.write_text({split: [path] for split, path in find_raw(source).items()}, out / "text", name)


def check_mini(source):
    """The name of ``source``; BadInput if it is none of wikitext_mini's."""
    texts = wikitext_mini.find_cut(source) if source else None
    if texts is None:
        return wikitext103.check_source(source, wikitext_mini.USED)
    for path in texts.values():
        door.check_text(path)
    return source.resolve()


def mini_texts(source, out, name):
    """{split: out/text/<split>.txt}, cut out of WikiText-103 unless ``source`` is cut already."""
    texts = wikitext_mini.find_cut(source) if source else None
    if texts is None:
        tokens = wikitext103.tokens(source, out, wikitext_mini.USED)
        return wikitext_mini.cut(tokens, out / "text", name)
    return books.write_text({split: [path] for split, path in texts.items()}, out / "text", name)


CORPORA = {  # what --from takes, the check of it, the texts from it
    "wikitext103_bpe": (
        f"{RAW['archive']} from elsewhere, or a folder with its files (default: download it)",
        check_raw,
        raw_texts,
    ),
    "wikitext_mini_bpe": (
        f"{wikitext103.FROM_HELP}; or a folder with train.txt, valid.txt and test.txt cut already",
        check_mini,
        mini_texts,
    ),
}


def main(corpus, arguments=None):
    accepted, check_source, find_texts = CORPORA[corpus]
    parser = argparse.ArgumentParser(
        prog=f"{corpus}.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE_OR_FOLDER", help=accepted)
    books.add_options(parser, DATA / corpus)
    args = parser.parse_args(arguments)
    with door.one_sentence(corpus):
        door.check_workers(args.workers)
        if args.source or not binarise.finished(args.out):
            name = check_source(args.source)
            door.check_out(args.out, name)
        if binarise.finished(args.out):
            print(f"already there: {args.out / 'bin'}")
        else:
            gpt2_bpe.provide(args.out / "gpt2_bpe", args.bpe)
            texts = find_texts(args.source, args.out, name)
            encoded = books.encode(texts, args.out, args.workers)
            books.binarise_bpe(encoded, args.out, name, args.workers)
        binarise.report_masked_lm(args.out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
