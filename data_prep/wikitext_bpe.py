"""WikiText-103, or the small corpus out of it, in GPT-2's byte pairs -> fairseq's binaries for masked_lm.

``data_prep/wikitext103_bpe.sh`` takes the raw version, which has every word;
``data_prep/wikitext_mini_bpe.sh`` the small corpus of ``data_prep/wikitext_mini.sh``.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from data_prep import binarise, books, door, gpt2_bpe, wikitext103, wikitext_mini
from data_prep.binarise import DATA, SOURCES

RAW = SOURCES["wikitext103_raw"]


def raw_texts(source, out, name):
    """{split: out/text/<split>.txt} of the raw version."""
    found = wikitext103.texts_of(RAW, source, out)
    return books.write_text({split: [path] for split, path in found.items()}, out / "text", name)


def check_mini(source):
    """The name of ``source``; BadInput if it is none of wikitext_mini's."""
    texts = wikitext_mini.find_cut(source) if source else None
    if texts is None:
        return wikitext103.check_source(wikitext103.SOURCE, source, wikitext_mini.USED)
    for path in texts.values():
        door.check_text(path)
    return source.resolve()


def mini_texts(source, out, name):
    """{split: out/text/<split>.txt}, cut out of WikiText-103 unless ``source`` is cut already."""
    texts = wikitext_mini.find_cut(source) if source else None
    if texts is None:
        tokens = wikitext103.texts_of(wikitext103.SOURCE, source, out, wikitext_mini.USED)
        return wikitext_mini.cut(tokens, out / "text", name)
    return books.write_text({split: [path] for split, path in texts.items()}, out / "text", name)


CORPORA = {  # what --from takes, the check of it, the texts from it
    "wikitext103_bpe": (
        wikitext103.from_help(RAW),
        partial(wikitext103.check_source, RAW),
        raw_texts,
    ),
    "wikitext_mini_bpe": (
        f"{wikitext103.from_help(wikitext103.SOURCE)}; or one with train.txt, valid.txt and test.txt",
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
