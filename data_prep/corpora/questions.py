"""SQuAD and CMRC 2018 in BERT word pieces, for the task ``question_generation``.

The source is an answer and its context, and the target is the question. The first of several answers is used,
and questions without an answer are skipped. OUT/text contains the text, and OUT/bin the binarized data,
vocab.txt and preparation.json. Long contexts are truncated around the answer. Answers are truncated to 100
word pieces and to half of the source, and questions to 49 word pieces.
"""

import json
import shutil
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from data_prep import bert_vocabulary
from data_prep.binarize import splits_in
from data_prep.corpus import Corpus, add_number
from data_prep.fetch import fetch, mismatch
from data_prep.labelled import print_rows, token_file
from data_prep.progress import progress
from data_prep.validation import folder_with_source
from fairseq_lrpe.data.layout import PREPARATION, vocabulary_size
from fairseq_lrpe.data.word_pieces import (
    SPECIALS,
    VOCABULARY,
    WordPieces,
    fairseq_types,
    find_answer,
    load,
    max_answer_tokens,
    normalize_spaces,
    read_preparation,
    shorten,
)
from fairseq_lrpe.utils.cli import min_int
from fairseq_lrpe.utils.files import read_file, read_lines, write_lines

SIDES = ("source", "question")
ROWS = "rows.json"
LONGEST, LONGEST_QUESTION = 512, 50  # maximum numbers of tokens of a source and a question, with </s>
MIN_LENGTH = 16  # smallest value of --longest: 3 special tokens, 6 of the answer, 7 of the context
LAYOUT = "data > paragraphs > context and qas > question and answers > text and answer_start"
MESSAGES = {
    "unanswerable": "questions have no answer and are skipped",
    "unplaced": "questions have an answer_start outside of the context and are skipped",
    "blank": "questions are blank and are skipped",
    "left out": "questions have an answer that is not in its context and are skipped",
    "moved": "answers were moved from answer_start to their nearest occurrence",
}


class Question(NamedTuple):
    """A question, its answer and context, and the index of the answer's first character in the context."""

    question: str
    answer: str
    context: str
    begins: int


class Inputs(NamedTuple):
    """{split: questions} or, if OUT/text exists, None; and the vocabulary, or None to learn one."""

    rows: dict[str, list[Question]] | None
    vocabulary: bert_vocabulary.Vocabulary | None


class Questions(Corpus):
    """SQuAD or CMRC 2018, or one file in SQuAD's format."""

    task = "question_generation --source-lang source --target-lang question"
    published = "the published files"
    metavar = "FILE_OR_FOLDER"

    def __init__(self, name: str):
        super().__init__(name)
        self.versions = self.facts["versions"]

    @property
    def accepts(self):
        sets = [" ".join(file["name"] for file in x["files"].values()) for x in self.versions.values()]
        files = " or ".join(f"with {names}" for names in sets)
        return f"a folder {files}, or with --cut one file in this format (default: download the files)"

    def add_options(self, parser: ArgumentParser) -> None:
        if len(self.versions) > 1:
            text = f"published version (default: {next(iter(self.versions))}); du is Du et al.'s split of 1.1"
            parser.add_argument("--version", choices=self.versions, help=text)
        else:
            parser.set_defaults(version=None)
        text = "split the file given by --from between paragraphs into at most these numbers of questions"
        parser.add_argument("--cut", nargs=2, type=min_int(1), metavar=("TRAIN", "VALID"), help=text)
        kind = parser.add_mutually_exclusive_group()
        text = "folder with BERT's vocab.txt, or name of a model on the Hugging Face hub (default: {})"
        text = text.format(self.facts["bert"])
        kind.add_argument("--bert", metavar="NAME_OR_FOLDER", help=text)
        text = "learn a vocabulary of N word pieces from the training text instead"
        add_number(kind, "--pieces", text)
        text = "maximum number of tokens of a source (default: %(default)s)"
        add_number(parser, "--longest", text, MIN_LENGTH, default=LONGEST)

    def source(self, args):
        if args.cut and not args.source:
            raise ValueError("--cut requires --from FILE, the file to split")
        if args.cut and args.version:
            raise ValueError("--version selects published files: it cannot be combined with --cut")
        parts = [super().source(args)]
        if args.cut:
            parts.append(f"{' '.join(map(str, args.cut))} questions")
        elif len(self.versions) > 1:
            parts.append(f"version {self.version(args)}")
        parts.append(f"{args.longest} tokens")
        pieces = f" in {args.pieces} pieces" if args.pieces else f", with word pieces of {self.bert(args)}"
        return ", ".join(parts) + pieces

    def version(self, args: Namespace) -> str:
        """Returns the published version that --version selects."""
        return args.version or next(iter(self.versions))

    def bert(self, args: Namespace) -> str:
        """Returns the name of the model, or the absolute path of the folder, of the published vocabulary."""
        name = args.bert or self.facts["bert"]
        return str(Path(name).resolve()) if Path(name).exists() else name

    def check(self, args):
        rows = None if (args.out / "text").is_dir() else self.rows(args)
        return Inputs(rows, None if args.pieces else bert_vocabulary.published(self.bert(args)))

    def rows(self, args: Namespace) -> dict[str, list[Question]]:
        """Returns {split: questions} of the files given by --from, or of downloaded files."""
        if args.cut:
            return split_paragraphs(args.source, args.cut)
        if args.source and not args.source.is_dir():
            raise ValueError(f"{args.source} is not a folder: --from takes {self.accepts}")
        if not args.source and (page := self.versions[self.version(args)].get("page")):
            raise ValueError(f"--from is missing: pass a folder with the files of {page}")
        found = {}
        for split, file in self.versions[self.version(args)]["files"].items():
            path = (args.source or args.out) / file["name"]
            if not args.source:
                fetch(path, {"mirrors": self.facts["mirrors"], **file})
            elif not path.is_file():
                raise ValueError(f"{path} is missing: put a copy of the published file there")
            published = "sha256" in file and not mismatch(path, file)
            found[split] = [row for rows in paragraphs(path, published).values() for row in rows]
        return found

    def write_text(self, args, inputs, folder):
        """Writes SPLIT.question, SPLIT.answer, SPLIT.context and SPLIT.begins, one row per line."""
        for split, rows in inputs.rows.items():
            for column, values in zip(Question._fields, zip(*rows, strict=True), strict=True):
                write_lines(folder / f"{split}.{column}", values)

    def prepare(self, args, source, inputs):
        text = self.text(args, source, inputs)
        try:
            with folder_with_source(args.out / "bin", source) as part:
                self.write_bin(args, text, part, inputs.vocabulary)
        except ValueError:  # if OUT/text remained, another run with other options would be rejected
            shutil.rmtree(text)
            raise

    def write_bin(
        self, args: Namespace, text: Path, folder: Path, vocabulary: bert_vocabulary.Vocabulary | None
    ) -> None:
        """Writes the binarized data to ``folder``; learns a vocabulary if ``vocabulary`` is None."""
        language = self.facts["language"]
        if vocabulary:
            shutil.copyfile(vocabulary.path, folder / VOCABULARY)
            lowercase = vocabulary.lowercase
        else:
            lowercase = language == "zh"  # as in the default BERT models of both languages
            texts = [*dict.fromkeys(read_lines(text / "train.context")), *read_lines(text / "train.question")]
            bert_vocabulary.learn(texts, args.pieces, lowercase, folder / VOCABULARY)
        types = fairseq_types(folder / VOCABULARY)
        for side in SIDES:
            write_lines(folder / f"dict.{side}.txt", (f"{name} 1" for name in types))
        about = {
            "tokenizer": "bert",
            "lowercase": lowercase,
            "language": language,
            "longest": args.longest,
            "longest_answer": max_answer_tokens(args.longest),
            "longest_question": LONGEST_QUESTION,
            "pieces_of": self.bert(args) if vocabulary else None,
        }
        (folder / PREPARATION).write_text(json.dumps(about) + "\n", encoding="utf-8")
        pieces, ids = load(folder), {x: i for i, x in enumerate([*SPECIALS.values(), *types])}
        splits = splits_in(text, ".question")
        counts = {split: write_split(text, folder, split, pieces, ids, about) for split in splits}
        (folder / ROWS).write_text(json.dumps(counts, indent=1) + "\n")

    def vocabulary(self, data):
        size, about = vocabulary_size(data / f"dict.{SIDES[0]}.txt"), read_preparation(data)
        origin = f"from {about['pieces_of']}" if about["pieces_of"] else "learned from the training text"
        return f"{size:,} word pieces {origin}, {'lower-cased' if about['lowercase'] else 'cased'}"

    def report(self, args):
        """Prints the numbers of rows and of truncated texts, and what ``Corpus.report`` prints."""
        counts = json.loads((args.out / "bin" / ROWS).read_text())
        rows = {split: count["rows"] for split, count in counts.items()}
        published = {} if args.cut else self.versions[self.version(args)]["rows"]
        print_rows(rows, published)
        text = "{}: truncated {contexts:,} contexts, {answers:,} answers and {questions:,} questions"
        for split, cut in counts.items():
            print(text.format(split, **cut))
        super().report(args)


def write_split(text: Path, folder: Path, split: str, pieces: WordPieces, ids: dict, about: dict) -> dict:
    """Writes the binarized data of a split to ``folder``; ``about`` is the content of preparation.json.

    Returns:
        The number of "rows", and of truncated "contexts", "answers" and "questions".
    """
    counts = dict.fromkeys(("rows", "contexts", "answers", "questions"), 0)
    rows = zip(*(read_lines(text / f"{split}.{column}") for column in Question._fields), strict=True)
    prefixes = [folder / f"{split}.{'-'.join(SIDES)}.{side}" for side in SIDES]
    files = [token_file(prefix, len(ids)) for prefix in prefixes]
    for question, answer, context, begins in progress(list(rows), f"writing {split}", "rows"):
        source = pieces.source(answer, context, about["longest"], about["longest_answer"], int(begins))
        question_pieces = pieces.pieces(question)
        kept = question_pieces[: about["longest_question"] - 1]
        for file, tokens in zip(files, (source.tokens, [*kept, "</s>"]), strict=True):
            file.add_item(torch.tensor([ids[token] for token in tokens]))
        counts["rows"] += 1
        counts["contexts"] += source.context_cut
        counts["answers"] += source.answer_cut
        counts["questions"] += len(kept) < len(question_pieces)
    for file, prefix in zip(files, prefixes, strict=True):
        file.finalize(f"{prefix}.idx")
    return counts


def split_paragraphs(path: Path, wanted: list[int]) -> dict[str, list[Question]]:
    """Returns {split: questions} of a file, split between paragraphs into at most ``wanted`` questions."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file: --cut requires a single JSON file of questions")
    groups = list(paragraphs(path, published=False).values())
    if sum(wanted) > (total := sum(map(len, groups))):
        requested = " + ".join(f"{count:,}" for count in wanted)
        raise ValueError(f"{path} has only {total:,} answerable questions, but --cut requests {requested}")
    found, taken = {"train": [], "valid": []}, 0
    for (split, rows), most in zip(found.items(), wanted, strict=True):
        while taken < len(groups) and len(rows) + len(groups[taken]) <= most:
            rows += groups[taken]
            taken += 1
        if not rows:
            number = f"paragraph {taken + 1} has {len(groups[taken])} questions"
            raise ValueError(f"{path}: {number}, but --cut allows only {most} for {split}")
    return found


def paragraphs(path: Path, published: bool) -> dict[str, list[Question]]:
    """Returns {context: answerable questions}, and prints the numbers of skipped questions and moved answers.

    If an answer is not at answer_start, its nearest occurrence in the context is used.

    Args:
        path: File in SQuAD's format.
        published: Whether the file is a published one, in which questions whose answer is not in the context
            are skipped.

    Raises:
        ValueError: If the file has no answerable question, does not have SQuAD's format, or, unless it is
            published, has an answer that is not in its context.
    """
    found, counts = {}, Counter()
    for where, context, entry in iterate_questions(path):
        question, answers = fields(entry, where, question=str, answers=list)
        if not answers or entry.get("is_impossible") or not question.strip():
            counts["blank" if not question.strip() else "unanswerable"] += 1
            continue
        text, start = fields(answers[0], f"{where}, its answer", text=str, answer_start=int)
        if not 0 <= start < len(context):
            counts["unplaced"] += 1
            continue
        one_line, answer = normalize_spaces(context), normalize_spaces(text)
        try:
            begins = find_answer(answer, one_line, near=len(normalize_spaces(f"{context[:start]}x")) - 1)
        except ValueError as error:
            if not published:
                excerpt = shorten(context[start : start + len(text)])
                raise ValueError(
                    f"{where}: {error}; the text at answer_start {start} is {excerpt!r}"
                ) from None
            counts["left out"] += 1
            continue
        counts["moved"] += context[start : start + len(text)] != text
        found.setdefault(one_line, []).append(Question(normalize_spaces(question), answer, one_line, begins))
    total = sum(map(len, found.values()))
    if not total:
        raise ValueError(f"{path} has no question with an answer: expected the keys {LAYOUT}")
    for kind, words in MESSAGES.items():
        if counts[kind]:
            print(f"{path.name}: {counts[kind]:,} {words}", flush=True)
    return found


def iterate_questions(path: Path) -> Iterator[tuple[str, str, object]]:
    """Yields (name for error messages, context, entry of "qas") for each question of a file."""
    try:
        found = json.loads(read_file(path))
    except (ValueError, RecursionError) as error:  # invalid JSON or UTF-8
        raise ValueError(f"{path} is not valid JSON ({error}): expected the keys {LAYOUT}") from None
    # A file may consist of the list of articles only.
    articles = found if isinstance(found, list) else fields(found, str(path), data=list)[0]
    for i, article in enumerate(progress(articles, path.name, "articles"), 1):
        [article_paragraphs] = fields(article, f"{path}: article {i}", paragraphs=list)
        for k, paragraph in enumerate(article_paragraphs, 1):
            where = f"{path}: article {i}, paragraph {k}"
            context, entries = fields(paragraph, where, context=str, qas=list)
            for n, entry in enumerate(entries, 1):
                name = entry.get("id") if isinstance(entry, dict) else None
                yield f"{path}: question {name}" if name else f"{where}, question {n}", context, entry


def fields(found: object, where: str, **kinds: type) -> list:
    """Returns the values of some keys of a dictionary; raises ValueError unless all have the given types."""
    for key, kind in kinds.items():
        if not isinstance(found, dict) or not isinstance(found.get(key), kind):
            raise ValueError(f"{where} lacks the key {key!r} of SQuAD's format: expected {LAYOUT}")
    return [found[key] for key in kinds]
