"""English-German sentence pairs, for fairseq's translation.

OUT/text contains the raw text, and OUT/bin the binarized data and a dictionary of each language. The BPE
merges in OUT/codes (or OUT/sentencepiece.model) and the settings in OUT/bin/preparation.json are needed to
translate other text. Training pairs are removed if a side is empty or has more than 250 tokens, or if one
side has more than 1.5 times as many tokens as the other.

As in fairseq's examples/translation/prepare-wmt14en2de.sh, every 100th pair of WMT's training corpora is
used for validation instead of training and learning BPE, unless it would be removed from training, too.
With --valid newstest2013, newstest2013 is the validation set, and every training pair is used for training.
"""

import json
import re
import shutil
from argparse import Namespace
from collections import Counter
from functools import partial
from itertools import product
from pathlib import Path

from tqdm import tqdm

from data_prep import fetch
from data_prep.binarize import SPLITS, concatenate, preprocess
from data_prep.corpus import Corpus, add_number
from data_prep.parallel import map_lines
from data_prep.validation import check_text, folder_with_source
from fairseq_lrpe.data import text_codec
from fairseq_lrpe.data.layout import vocabulary_size
from fairseq_lrpe.utils.files import atomic_folder, read_lines, write_lines

LANGUAGES = ("en", "de")  # source, target
# Accepted file names of each split, in order of preference.
NAMES = {"train": ("train",), "valid": ("valid", "val"), "test": ("test", "test_2016_flickr")}
MAX_TOKENS, MAX_RATIO = 250, 1.5
VALID = ("training", "newstest2013")
"""Values of --valid: every 100th training pair, or the validation set of WMT."""
EVERY = 100
RECORD = ", 1 percent of the training pairs for validation"
"""Text in the recorded source of data whose validation set is from the training pairs."""


class Translation(Corpus):
    """English-German sentence pairs; ``check`` returns {split: [{language: path}]} or None."""

    task = "translation"

    def __init__(self, name: str):
        super().__init__(name)
        self.archives = self.facts.get("archives", {})

    @property
    def published(self):
        return "the published archives" if self.archives else None

    @property
    def accepts(self):
        text = "a folder with raw text as {train,valid,test}.{en,de}"
        archives = f", or copies of {', '.join(self.archives)} (default: download them)"
        return text + (archives if self.archives else "")

    def add_options(self, parser):
        text = (
            "number of joint BPE merges, or size of the joint SentencePiece vocabulary (default: %(default)s)"
        )
        add_number(parser, "--bpe-types", text, default=self.facts["bpe_types"])
        text = "use SentencePiece instead of Moses tokenization and BPE"
        parser.add_argument("--sentencepiece", action="store_true", help=text)
        if self.archives:
            text = f"validation set: every {EVERY}th training pair (default), or newstest2013"
            parser.add_argument("--valid", choices=VALID, help=text)

    def source(self, args):
        record = RECORD if self.holds_out(args) else ""
        return f"{super().source(args)} in {args.bpe_types} {codec_of(args).unit}{record}"

    def is_archived(self, args: Namespace) -> bool:
        """Returns whether the source is the published archives, or a folder with copies of them."""
        return not args.source or any((args.source / name).is_file() for name in self.archives)

    def holds_out(self, args: Namespace) -> bool:
        """Returns whether every 100th training pair is used for validation."""
        if not self.archives or args.valid == "newstest2013":
            return False
        return self.is_archived(args) or RECORD in args.earlier

    def check(self, args):
        if (args.out / "text").is_dir():
            return None
        if not self.is_archived(args):
            if self.archives and args.valid:
                raise ValueError("--valid is for the published archives: it cannot be used with text files")
            splits = in_folder(args.source)
        else:
            splits = in_archives(self.archives, args.source, args.out)
            if self.holds_out(args):
                splits["valid"] = []
        check_sides(splits)
        return splits

    def write_text(self, args, inputs, folder):
        for split, files in inputs.items():
            for language in LANGUAGES:
                concatenate([paths[language] for paths in files], folder / f"{split}.{language}")
        if not inputs["valid"]:
            for language in LANGUAGES:
                hold_out(folder, language)

    def prepare(self, args, source, inputs):
        out, codec = args.out, codec_of(args)
        self.text(args, source, inputs)
        shutil.rmtree(out / "unpacked", ignore_errors=True)

        def step(function_of, before, after):
            for split, language in product(SPLITS, LANGUAGES):
                target = out / after / f"{split}.{language}"
                target.parent.mkdir(exist_ok=True)
                map_lines(function_of(language), out / before / target.name, target, args.workers)

        step(lambda language: partial(codec.words, language), "text", "words")
        if not codec.path.is_file():
            try:
                codec.learn([out / "words" / f"train.{language}" for language in LANGUAGES], args.bpe_types)
            except ValueError:  # if OUT/text remained, another run with other --bpe-types would be rejected
                for folder in ("text", "words"):
                    shutil.rmtree(out / folder)
                raise
        step(lambda language: codec.pieces, "words", "pieces")
        cleaned = SPLITS[: 2 if self.holds_out(args) else 1]
        clean(out / "pieces", out / "clean", cleaned)

        texts = {split: out / ("clean" if split in cleaned else "pieces") / split for split in SPLITS}
        with folder_with_source(out / "bin", source) as part:
            log = out / "preprocess.log"
            preprocess(texts, part, log, languages=LANGUAGES, workers=args.workers)
            shutil.copyfile(out / "clean" / "pairs.json", part / "pairs.json")
            facts = {**dict(zip(("source", "target"), LANGUAGES, strict=True)), **codec.facts}
            (part / text_codec.PREPARATION).write_text(json.dumps(facts) + "\n")

    def vocabulary(self, data):
        sizes = {language: vocabulary_size(data / f"dict.{language}.txt") for language in LANGUAGES}
        words = ", ".join(f"{language} {size:,} types" for language, size in sizes.items())
        if expected := self.facts.get("vocabulary"):
            papers = ", ".join(f"{language} {size:,}" for language, size in expected.items())
            words += ", as in the papers" if sizes == expected else f"; the papers have {papers}"
        return words

    def report(self, args):
        """Prints the numbers of pairs, and what ``Corpus.report`` prints."""
        pairs = json.loads((args.out / "bin" / "pairs.json").read_text())
        counts = Counter(pairs["train"])
        left_out = f", {removed(counts)}" if counts.total() > counts["kept"] else ""
        print(f"train: {counts['kept']:,} of {counts.total():,} pairs kept{left_out}")
        print(f"valid: {pairs['valid']:,} pairs, test: {pairs['test']:,} pairs")
        super().report(args)


def codec_of(args: Namespace) -> text_codec.Moses | text_codec.SentencePiece:
    """Returns the tokenizer that the options select."""
    return (text_codec.SentencePiece if args.sentencepiece else text_codec.Moses)(args.out)


def in_folder(folder: Path) -> dict[str, list]:
    """Returns {split: [{language: path}]} of a folder with raw text; the files need not exist."""
    splits = {}
    for split, names in NAMES.items():
        name = next((name for name in names if (folder / f"{name}.{LANGUAGES[0]}").exists()), names[0])
        splits[split] = [{language: folder / f"{name}.{language}" for language in LANGUAGES}]
    return splits


def in_archives(archives: dict, source: Path | None, out: Path) -> dict[str, list]:
    """Returns {split: [{language: path}]} of the published archives, from ``source`` or downloaded."""
    splits = {split: [] for split in SPLITS}
    for name, facts in archives.items():
        archive = fetch.verified(source / name, name, facts) if source else fetch.fetch(out / name, facts)
        folder = out / "unpacked" / name.removesuffix(".tgz")
        fetch.unpack(archive, folder)
        for split, files in facts["files"].items():
            paths = {language: folder / file for language, file in files.items()}
            splits[split].append({language: plain(path) for language, path in paths.items()})
    return splits


def plain(path: Path) -> Path:
    """Returns the path of a text file; an .sgm file is first converted to text with one sentence per line."""
    if path.suffix != ".sgm":
        return path
    sentences = re.findall(r"<seg[^>]*>(.*)</seg>", "\n".join(read_lines(path)))
    text = path.with_suffix("")
    write_lines(text, map(str.strip, sentences))
    return text


def check_sides(splits: dict[str, list]) -> None:
    """Raises ValueError unless all files contain text and both files of a pair have equally many lines."""
    wanted = " ".join(f"{'|'.join(names)}.{{{','.join(LANGUAGES)}}}" for names in NAMES.values())
    for paths in (paths for files in splits.values() for paths in files):
        counts = {path: check_text(path, f"--from takes a folder with {wanted}") for path in paths.values()}
        if len(set(counts.values())) > 1:
            (one, first), (other, second) = counts.items()
            raise ValueError(f"{one} has {first:,} lines, but {other} has {second:,}")


def hold_out(folder: Path, language: str) -> None:
    """Moves every 100th line of the training text to the validation text."""
    train, valid = (folder / f"{split}.{language}" for split in ("train", "valid"))
    every = train.rename(folder / f"every.{language}")
    with every.open("rb") as lines, train.open("wb") as kept, valid.open("wb") as held_out:
        for number, line in enumerate(lines, 1):
            (kept if number % EVERY else held_out).write(line)
    every.unlink()


def verdict(pair: tuple[str, str]) -> str:
    """Returns "kept", or the reason for which a tokenized training pair is removed."""
    shorter, longer = sorted(len(side.split()) for side in pair)
    if not shorter:
        return "empty"
    if longer > MAX_TOKENS:
        return "too long"
    return "of uneven length" if longer > MAX_RATIO * shorter else "kept"


def clean(folder: Path, target: Path, splits: tuple[str, ...]) -> None:
    """Writes the kept pairs of ``splits`` to ``target``, and the numbers of pairs to pairs.json there."""
    if target.is_dir():
        return
    with atomic_folder(target) as part:
        paths = {split: folder / f"{split}.{LANGUAGES[0]}" for split in SPLITS if split not in splits}
        pairs = {split: path.read_bytes().count(b"\n") for split, path in paths.items()}
        for split in splits:
            counts = clean_split(folder, part, split)
            if not counts["kept"]:
                kind = {"train": "training", "valid": "validation"}[split]
                raise ValueError(f"all {counts.total():,} {kind} pairs are unusable: {removed(counts)}")
            pairs[split] = counts if split == "train" else counts["kept"]
        (part / "pairs.json").write_text(json.dumps(pairs) + "\n")


def clean_split(folder: Path, target: Path, split: str) -> Counter:
    """Writes the pairs of a split that are kept to ``target``; returns {verdict: number of pairs}."""
    counts, names = Counter(), [f"{split}.{language}" for language in LANGUAGES]
    sides = [(folder / name).open(encoding="utf-8", newline="\n") for name in names]
    kept = [(target / name).open("w", encoding="utf-8") for name in names]
    for pair in tqdm(zip(*sides, strict=True), desc=f"cleaning {split}", unit="pairs", disable=None):
        counts[decision := verdict(pair)] += 1
        if decision == "kept":
            for file, side in zip(kept, pair, strict=True):
                file.write(side)
    for file in (*sides, *kept):
        file.close()
    return counts


def removed(counts: Counter) -> str:
    """Returns the number of removed pairs for each reason, as a text."""
    return ", ".join(f"{number:,} {reason}" for reason, number in sorted(counts.items()) if reason != "kept")
