"""English and German sentences, pair by pair -> fairseq's binaries for its task translation.

OUT/bin has them and their two dictionaries, OUT/text the raw text, and OUT/codes (or
OUT/sentencepiece.model) with OUT/bin/preparation.json what it takes to translate other text.
Of the training pairs those with an empty side, with more than 250 tokens on a side, or with more than 1.5
times as many on one side as on the other are left out.
"""

import argparse
import json
import os
import re
import shutil
import sys
from collections import Counter
from functools import partial
from pathlib import Path

from tqdm import tqdm

from data_prep import binarise, door, fetch, text_codec
from data_prep.binarise import DATA, SOURCES, SPLITS
from data_prep.each_line import each_line
from fairseq_lrpe.commands import run

LANGUAGES = ("en", "de")  # source, target
# How files of a split may be called, the first that is there is taken.
NAMES = {"train": ("train",), "valid": ("valid", "val"), "test": ("test", "test_2016_flickr")}
LONGEST, UNEVEN = 250, 1.5
PUBLISHED = "the published archives"


def in_folder(folder):
    """{split: [{language: path}]} of a folder with the raw files; BadInput names one that is missing."""
    found = {}
    for split, names in NAMES.items():
        name = next((name for name in names if (folder / f"{name}.{LANGUAGES[0]}").exists()), names[0])
        found[split] = [{language: folder / f"{name}.{language}" for language in LANGUAGES}]
        for path in found[split][0].values():
            if not path.is_file():
                wanted = " ".join(f"{'|'.join(names)}.{{{','.join(LANGUAGES)}}}" for names in NAMES.values())
                raise door.BadInput(f"{path} is missing: --from takes a folder with {wanted}")
    return found


def in_archives(archives, source, out):
    """{split: [{language: path}]} of the published archives, those in the folder ``source`` or fetched."""
    found = {split: [] for split in SPLITS}
    for name, facts in archives.items():
        if source:
            archive = fetch.verified(source / name, name, facts["size"], facts["sha256"])
        else:
            archive = fetch.fetch(out / name, facts["mirrors"], facts["size"], facts["sha256"])
        folder = out / "unpacked" / name.removesuffix(".tgz")
        fetch.unpack(archive, folder)
        for split, files in facts["files"].items():
            paths = {language: folder / file for language, file in files.items()}
            for path in paths.values():
                if not path.is_file():
                    raise door.BadInput(f"{archive} has no {path.relative_to(folder)}: get it again")
            found[split].append({language: plain(path) for language, path in paths.items()})
    return found


def plain(path):
    """``path``, or the sentences of a .sgm, one per line, in a file beside it."""
    if path.suffix != ".sgm":
        return path
    sentences = re.findall(r"<seg[^>]*>(.*)</seg>", path.read_text(encoding="utf-8"))
    text = path.with_suffix("")
    text.write_text("".join(f"{sentence.strip()}\n" for sentence in sentences), encoding="utf-8")
    return text


def find(corpus, source, out):
    """{split: [{language: path}]} of the raw text; BadInput or FetchError if it cannot be had."""
    archives = SOURCES[corpus].get("archives", {})
    if source is None:
        if not archives:
            raise door.BadInput(
                f"--from is needed: {SOURCES[corpus]['page']} has the files, but no size and checksum "
                "by which a download could be known"
            )
        return in_archives(archives, None, out)
    if not source.is_dir():
        raise door.BadInput(f"{source} is not a folder: --from takes one with parallel text")
    if any((source / name).is_file() for name in archives):
        return in_archives(archives, source, out)
    return in_folder(source)


def check(found):
    """BadInput unless all files are UTF-8 text and both sides of each pair of files have as many lines."""
    for paths in (paths for files in found.values() for paths in files):
        counts = {}
        for path in paths.values():
            door.check_text(path)
            with path.open("rb") as lines:
                counts[path] = sum(1 for _ in lines)
        if len(set(counts.values())) > 1:
            (one, first), (other, second) = counts.items()
            raise door.BadInput(
                f"{one} has {first:,} lines and {other} {second:,}: they must be the same sentences"
            )


def write_text(found, folder, source):
    """folder/<split>.<language>, a split's files one after the other; the folder appears whole."""
    with door.whole_folder(folder, source) as part:
        for split, files in found.items():
            for language in LANGUAGES:
                with (part / f"{split}.{language}").open("wb") as out:
                    for paths in files:
                        with paths[language].open("rb") as lines:
                            shutil.copyfileobj(lines, out)
                            lines.seek(-1, os.SEEK_END)
                            if lines.read() != b"\n":
                                out.write(b"\n")


def verdict(pair):
    """What becomes of a training pair of tokens, in the words of the report."""
    least, most = sorted(len(side.split()) for side in pair)
    if not least:
        return "empty"
    if most > LONGEST:
        return "too long"
    return "of uneven length" if most > UNEVEN * least else "kept"


def clean(folder, target):
    """target/train.<language>: the training pairs of ``folder`` that are kept; the folder appears whole.

    With them pairs.json, how many pairs there are of each verdict, and of the other splits.
    """
    if target.is_dir():
        return
    counts = Counter()
    with door.whole_folder(target, folder) as part:
        sides = [
            (folder / f"train.{language}").open(encoding="utf-8", newline="\n") for language in LANGUAGES
        ]
        kept = [(part / f"train.{language}").open("w", encoding="utf-8") for language in LANGUAGES]
        for pair in tqdm(zip(*sides, strict=True), desc="cleaning", unit="pairs", disable=None):
            counts[fate := verdict(pair)] += 1
            if fate == "kept":
                for file, side in zip(kept, pair, strict=True):
                    file.write(side)
        for file in (*sides, *kept):
            file.close()
        if not counts["kept"]:
            raise door.BadInput(f"none of the {counts.total():,} training pairs can be kept: {told(counts)}")
        pairs = {"train": counts}
        for split in SPLITS[1:]:
            pairs[split] = (folder / f"{split}.{LANGUAGES[0]}").read_bytes().count(b"\n")
        (part / "pairs.json").write_text(json.dumps(pairs) + "\n")


def told(counts):
    """How many pairs were left out and why."""
    return ", ".join(f"{number:,} {fate}" for fate, number in sorted(counts.items()) if fate != "kept")


def write_bin(codec, out, source, workers):
    """``out``/bin for fairseq; it appears whole or not at all."""
    print(f"Preparing {out / 'bin'}", flush=True)
    one, other = LANGUAGES
    texts = [
        *("--trainpref", out / "clean" / "train"),
        *("--validpref", out / "pieces" / "valid"),
        *("--testpref", out / "pieces" / "test"),
    ]
    with door.whole_folder(out / "bin", source) as part:
        run(
            "preprocess",
            ["--source-lang", one, "--target-lang", other, *texts, "--destdir", part, "--workers", workers],
            out / "preprocess.log",
            show=rf"\[({'|'.join(LANGUAGES)})\] .*",
        )
        shutil.copyfile(out / "clean" / "pairs.json", part / "pairs.json")
        preparation = {"source": one, "target": other, "tokenizer": codec.tokenizer, "bpe": codec.bpe}
        (part / text_codec.PREPARATION).write_text(json.dumps(preparation) + "\n")


def prepare(corpus, codec, types, source, out, name, workers):
    """``out``/bin; steps that an earlier run finished are not done again."""
    text = out / "text"
    if not text.is_dir():
        found = find(corpus, source, out)
        check(found)
        write_text(found, text, name)
        shutil.rmtree(out / "unpacked", ignore_errors=True)
    files = [(language, f"{split}.{language}") for split in SPLITS for language in LANGUAGES]

    def step(function_of, before, after):
        for language, file in files:
            if not (out / after / file).exists():
                (out / after).mkdir(exist_ok=True)
                each_line(function_of(language), out / before / file, out / after / file, workers)

    step(lambda language: partial(codec.words, language), "text", "words")
    if not codec.path.is_file():
        codec.learn([out / "words" / f"train.{language}" for language in LANGUAGES], types)
    step(lambda language: codec.pieces, "words", "pieces")
    clean(out / "pieces", out / "clean")
    write_bin(codec, out, name, workers)


def made_from(source, out, how):
    """The source as the notes in ``out`` name it; without --from, the one of an earlier run is meant."""
    name = str(source.resolve()) if source else PUBLISHED
    for product in ("bin", "text"):
        if source is None and (note := out / product / door.NOTE).exists():
            name = note.read_text().strip().rpartition(" in ")[0]
            break
    return f"{name} in {how}"


def report(corpus, out):
    """The last lines: the pairs, the vocabularies beside the papers', and how to train."""
    pairs = json.loads((out / "bin" / "pairs.json").read_text())
    counts = Counter(pairs["train"])
    left_out = f", {told(counts)}" if counts.total() > counts["kept"] else ""
    print(f"train: {counts['kept']:,} of {counts.total():,} pairs kept{left_out}")
    print(f"valid: {pairs['valid']:,} pairs, test: {pairs['test']:,} pairs")
    sizes = {
        language: binarise.vocabulary_size(out / "bin", f"dict.{language}.txt") for language in LANGUAGES
    }
    words = ", ".join(f"{language} {size:,} types" for language, size in sizes.items())
    if expected := SOURCES[corpus].get("vocabulary"):
        papers = ", ".join(f"{language} {size:,}" for language, size in expected.items())
        words += ", as in the papers" if sizes == expected else f"; the papers' are {papers}"
    binarise.report(out, words, "translation")


def main(corpus, arguments=None):
    types = SOURCES[corpus]["bpe_types"]
    parser = argparse.ArgumentParser(
        prog=f"{corpus}.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    archives = SOURCES[corpus].get("archives")
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FOLDER",
        help="raw text, train.en, train.de and so on"
        + (f", or copies of {', '.join(archives)} (default: download them)" if archives else ""),
    )
    parser.add_argument("--out", type=Path, default=DATA / corpus, help="default: %(default)s")
    parser.add_argument(
        "--bpe-types",
        type=int,
        default=types,
        metavar="N",
        help="merges of byte pairs, or pieces, of both languages together (default: %(default)s)",
    )
    parser.add_argument(
        "--sentencepiece", action="store_true", help="SentencePiece instead of Moses's words in byte pairs"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="default: %(default)s")
    args = parser.parse_args(arguments)
    with door.one_sentence(corpus):
        door.check_workers(args.workers)
        if args.bpe_types < 1:
            raise door.BadInput(f"--bpe-types must be at least 1, not {args.bpe_types}")
        codec = (text_codec.SentencePiece if args.sentencepiece else text_codec.Moses)(args.out)
        name = made_from(args.source, args.out, f"{args.bpe_types} {codec.unit}")
        door.check_out(args.out, name)
        if binarise.finished(args.out):
            print(f"already there: {args.out / 'bin'}")
        else:
            prepare(corpus, codec, args.bpe_types, args.source, args.out, name, args.workers)
        report(corpus, args.out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
