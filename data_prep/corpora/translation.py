"""English-German sentence pairs: held-out pairs, Moses tokens, joint BPE, and the removal of bad pairs."""

import json
import re
import shutil
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product
from operator import itemgetter
from pathlib import Path

from data_prep.binarize import SPLITS, concatenate, preprocess
from data_prep.corpus import UNPACKED, Corpus, compared, number
from data_prep.fetch import fetch, unpacked
from data_prep.hub import find_tables, pairs_to_lines
from data_prep.parallel import map_lines, progress
from data_prep.validation import check_parallel
from fairseq_lrpe.data import text_codec
from fairseq_lrpe.data.layout import read_object, vocabulary_size
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import file_exists, read_lines, write_lines

LANGUAGES = ("en", "de")  # source, target
# Accepted file names of each split, in order of preference.
NAMES = {"train": ("train",), "valid": ("valid", "val"), "test": ("test", "test_2016_flickr")}
MAX_TOKENS = 250
MAX_RATIO = 1.5
VALID = ("training", "newstest2013")  # every 100th training pair, or the validation set of WMT
EVERY = 100
HELD_OUT = "held_out"  # name of the pairs held out for validation, before some of them are removed

Files = dict[str, list[dict[str, Path]]]  # {split: [{language: path}]}


class Translation(Corpus):
    """English-German sentence pairs, for fairseq's translation.

    OUT/text contains the raw text, with the same validation and test pairs as OUT/bin, which contains the
    binarized data and a dictionary of each language. The BPE merges in OUT/codes and the settings in
    OUT/bin/preparation.json are needed to translate other text. Training pairs are removed if a side is empty
    or has more than 250 tokens, or if one side has more than 1.5 times as many tokens as the other.

    As in fairseq's examples/translation/prepare-wmt14en2de.sh, every 100th pair of WMT's training corpora is
    used for validation instead of training and learning BPE, unless it has one of the faults above. With
    --valid newstest2013, newstest2013 is the validation set, and every training pair is used for training.
    """

    task = "translation"

    def __init__(self, name: str):
        super().__init__(name)
        self.archives = self.facts.get("archives", {})

    @property
    def accepts(self):
        text = "a folder with raw text as {train,valid,test}.{en,de} (also named val and test_2016_flickr), "
        text += "or with Parquet files that have the columns en and de"
        archives = f", or copies of {', '.join(self.archives)} (default: download them)"
        return text + (archives if self.archives else "")

    @property
    def options(self):
        text = "number of joint BPE merges (default: %(default)s)"
        options = {"--bpe-types": number(text, default=self.facts["bpe_types"])}
        if self.archives:
            text = f"validation set: every {EVERY}th training pair (default), or newstest2013"
            options["--valid"] = {"choices": VALID, "help": text}
        return options

    def check(self, args):
        if self.archives and args.valid and not self.is_archived(args):
            raise UserError("--valid is for the published archives, not for text files: omit it")

    def is_archived(self, args: Namespace) -> bool:
        return not args.source or any(file_exists(args.source / name) for name in self.archives)

    def holds_out(self, args: Namespace) -> bool:
        return bool(self.archives) and self.is_archived(args) and args.valid != "newstest2013"

    def write_text(self, args, folder):
        splits = self.in_archives(args) if self.is_archived(args) else self.in_source(args)
        if self.holds_out(args):
            del splits["valid"]
        for files in splits.values():
            for paths in files:
                check_parallel(paths.values())
        for split, files in splits.items():
            for language in LANGUAGES:
                concatenate(map(itemgetter(language), files), folder / f"{split}.{language}")
        if self.holds_out(args):
            for language in LANGUAGES:
                hold_out(folder, language)

    def in_source(self, args: Namespace) -> Files:
        """Returns the text files of --from, written from the hub's Parquet files if there are any."""
        if tables := find_tables(args.source):
            folder = args.out / UNPACKED
            folder.mkdir(exist_ok=True)
            pairs_to_lines(tables, LANGUAGES, folder)
            return in_folder(folder)
        return in_folder(args.source)

    def in_archives(self, args: Namespace) -> Files:
        splits = {split: [] for split in SPLITS}
        for name, facts in self.archives.items():
            archive = fetch(args.out / name, facts, args.source and args.source / name)
            folder = unpacked(archive, args.out / UNPACKED / name.removesuffix(".tgz"))
            for split, files in facts["files"].items():
                paths = {language: plain(folder / file) for language, file in files.items()}
                splits[split].append(paths)
        return splits

    def prepare(self, args, folder):
        text = self.text(args)
        codec = text_codec.Moses(text)
        words = text / "words"
        pieces = text / "pieces"
        clean = text / "clean"
        names = {split: split for split in SPLITS}  # of the splits' files
        cleaned = ["train"]
        if self.holds_out(args):
            names["valid"] = HELD_OUT
            cleaned.append(HELD_OUT)
        functions = {language: partial(codec.words, language) for language in LANGUAGES}
        encode(names.values(), functions, text, words, args.workers)
        if not codec.path.is_file():
            codec.learn(sides(words, "train").values(), args.bpe_types)
        encode(names.values(), dict.fromkeys(LANGUAGES, codec.pieces), words, pieces, args.workers)
        clean.mkdir(exist_ok=True)
        verdicts = {name: judge(pieces, name) for name in cleaned}
        counts = {"train": Counter(verdicts["train"])}
        if not counts["train"]["kept"]:
            reasons = removed(counts["train"])
            raise UserError(f"all training pairs are unusable ({reasons}): pass sentences and translations")
        for name in cleaned:
            copy_kept(pieces / name, clean / name, verdicts[name])
        if self.holds_out(args):  # the references of BLEU
            copy_kept(text / HELD_OUT, text / "valid", verdicts[HELD_OUT])
        texts = {}
        for split, name in names.items():
            texts[split] = (clean if name in cleaned else pieces) / name
        flags = [f"--source-lang={LANGUAGES[0]}", f"--target-lang={LANGUAGES[1]}"]
        preprocess(texts, folder, args.out / "preprocess.log", *flags, workers=args.workers)
        for split in SPLITS[1:]:
            counts[split] = texts[split].with_suffix(".en").read_bytes().count(b"\n")
        (folder / "pairs.json").write_text(json.dumps(counts) + "\n")
        facts = {"source": LANGUAGES[0], "target": LANGUAGES[1], **codec.facts}
        (folder / text_codec.PREPARATION).write_text(json.dumps(facts) + "\n")
        shutil.copyfile(codec.path, args.out / codec.path.name)

    def vocabulary(self, data):
        sizes = {language: vocabulary_size(data / f"dict.{language}.txt") for language in LANGUAGES}
        return compared(sizes, self.facts.get("vocabulary"))

    def report(self, args):
        pairs = read_object(args.out / "bin" / "pairs.json", lambda pairs: pairs["train"]["kept"] > 0)
        counts = Counter(pairs["train"])
        left_out = f", {removed(counts)}" if counts.total() > counts["kept"] else ""
        print(f"train: {counts['kept']:,} of {counts.total():,} pairs kept{left_out}")
        print(f"valid: {pairs['valid']:,} pairs, test: {pairs['test']:,} pairs")
        pairs["train"] = counts.total()
        published = self.facts["pairs"]
        print(f"pairs: {compared({split: pairs[split] for split in published}, published)}")
        super().report(args)


def in_folder(folder: Path) -> Files:
    splits = {}
    for split, names in NAMES.items():
        for name in (*names, names[0]):  # the first name is that of a missing file
            paths = sides(folder, name)
            splits[split] = [paths]
            if paths[LANGUAGES[0]].exists():
                break
    return splits


def sides(folder: Path, name: str) -> dict[str, Path]:
    """Returns {language: path} of the two sides ``name``.LANGUAGE of a parallel text in a folder."""
    return {language: folder / f"{name}.{language}" for language in LANGUAGES}


def plain(path: Path) -> Path:
    """Returns the path of a text with one sentence per line, to which an .sgm file is first converted."""
    if path.suffix != ".sgm":
        return path
    sentences = re.findall(r"<seg[^>]*>(.*)</seg>", "\n".join(read_lines(path)))
    text = path.with_suffix("")
    write_lines(text, map(str.strip, sentences))
    return text


def hold_out(folder: Path, language: str) -> None:
    """Moves every 100th line of the training text of a language to the separate text ``HELD_OUT``."""
    train = folder / f"train.{language}"
    every = train.rename(folder / f"every.{language}")
    other = folder / f"{HELD_OUT}.{language}"
    with every.open("rb") as lines, train.open("wb") as kept, other.open("wb") as held_out:
        for number, line in enumerate(lines, 1):
            (kept if number % EVERY else held_out).write(line)
    every.unlink()


def encode(names: Iterable[str], functions: dict, before: Path, after: Path, workers: int) -> None:
    after.mkdir(exist_ok=True)
    for prefix, (language, function) in product(names, functions.items()):
        name = f"{prefix}.{language}"
        map_lines(function, before / name, after / name, workers)


def verdict(pair: tuple[str, str]) -> str:
    """Returns "kept", or the reason for which a training pair (source, target) of tokens is removed."""
    source, target = pair
    shorter, longer = sorted([len(source.split()), len(target.split())])
    if not shorter:
        return "empty"
    if longer > MAX_TOKENS:
        return "too long"
    return "of uneven length" if longer > MAX_RATIO * shorter else "kept"


def judge(folder: Path, split: str) -> list[str]:
    """Returns the :func:`verdict` of each tokenized pair of a split."""
    source, target = sides(folder, split).values()
    pairs = zip(read_lines(source), read_lines(target), strict=True)
    return list(map(verdict, progress(pairs, f"cleaning {split}", "pairs")))


def copy_kept(source: Path, target: Path, verdicts: list[str]) -> None:
    """Copies the pairs with the verdict "kept"; the paths omit the suffixes of the languages."""
    for language in LANGUAGES:
        lines = kept_lines(source.with_suffix(f".{language}"), verdicts)
        write_lines(target.with_suffix(f".{language}"), lines)


def kept_lines(path: Path, verdicts: list[str]) -> Iterator[str]:
    for line, reason in zip(read_lines(path), verdicts, strict=True):
        if reason == "kept":
            yield line


def removed(counts: Counter) -> str:
    """Returns the number of removed pairs for each reason as text; ``counts`` are those of the verdicts."""
    texts = []
    for reason, count in sorted(counts.items()):
        if reason != "kept":
            texts.append(f"{count:,} {reason}")
    return ", ".join(texts)
