"""Questions about paragraphs, with their answers, in BERT's word pieces -> binaries for question generation.

A source is the answer and its context, a target the question. Of several answers the first counts, and
questions without one are left out. OUT/text has the text, OUT/bin the pieces' numbers, vocab.txt and
preparation.json. A context that is too long is cut to what is around the answer; of an answer 100 pieces are
kept, but no more than half of the source, and of a question 49.
"""

import json
import shutil
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

from data_prep import bert_vocabulary
from data_prep.bert_vocabulary import learn
from data_prep.binarise import SPLITS
from data_prep.corpus import Corpus
from data_prep.door import noted_folder
from data_prep.fetch import SOURCES, fault, fetch
from data_prep.labelled import told
from data_prep.labelled_words import read_lines, write_lines
from data_prep.progress import AFTER
from data_prep.tokens import token_file
from fairseq_lrpe.layouts import PREPARATION, vocabulary_size
from fairseq_lrpe.programs import at_least
from fairseq_lrpe.word_pieces import (
    SPECIALS,
    VOCABULARY,
    WordPieces,
    answer_room,
    facts,
    fairseq_types,
    find,
    folded,
    load,
    shortened,
)

SIDES = ("source", "question")
ROWS = "rows.json"
LONGEST, LONGEST_QUESTION = 512, 50  # tokens, </s> among them
LEAST = 16  # tokens of a source: the answer and its context can have six each
LAYOUT = "data > paragraphs > context and qas > question and answers > text and answer_start"
TOLD = {
    "unanswerable": "questions have no answer and are left out",
    "blank": "questions are blank and are left out",
    "left out": "answers are not in their context and are left out with their questions",
    "moved": "answers are not at their answer_start, but at the nearest place where they are",
}
SHOWN = {"disable": None, "delay": AFTER, "leave": False}


class Question(NamedTuple):
    """A row of OUT/text: ``begins`` is the character of the context at which the answer begins."""

    question: str
    answer: str
    context: str
    begins: int


class Found(NamedTuple):
    """{split: its rows}, None if OUT/text has them; the published vocabulary, None if it is to be learned."""

    rows: dict[str, list[Question]] | None
    vocabulary: bert_vocabulary.Vocabulary | None


class Questions(Corpus):
    """SQuAD or CMRC 2018, or one file in their layout."""

    task = "question_generation --source-lang source --target-lang question"
    metavar = "FILE_OR_FOLDER"

    def __init__(self, name: str):
        super().__init__(name)
        self.facts = SOURCES[name]
        self.versions = self.facts["versions"]

    @property
    def accepts(self):
        sets = [" ".join(file["name"] for file in x["files"].values()) for x in self.versions.values()]
        files = " or ".join(f"with {names}" for names in sets)
        return f"a folder {files}, or with --cut one file of their layout (default: download them)"

    def add_options(self, parser: ArgumentParser) -> None:
        if len(self.versions) > 1:
            told = f"of the published (default: {next(iter(self.versions))}); du: Du et al.'s split of 1.1"
            parser.add_argument("--version", choices=self.versions, help=told)
        else:
            parser.set_defaults(version=None)
        told = "the one file in --from: whole paragraphs with at most so many questions"
        parser.add_argument("--cut", nargs=2, type=at_least(1), metavar=("TRAIN", "VALID"), help=told)
        kind = parser.add_mutually_exclusive_group()
        told = f"a folder with BERT's vocab.txt, or a model of the hub (default: {self.facts['bert']})"
        kind.add_argument("--bert", metavar="NAME_OR_FOLDER", help=told)
        told = "learn N word pieces of the training text instead"
        kind.add_argument("--pieces", type=at_least(1), metavar="N", help=told)
        told = "tokens of a source (default: %(default)s)"
        parser.add_argument("--longest", type=at_least(LEAST), default=LONGEST, metavar="N", help=told)

    def source(self, args):
        if args.cut and not args.source:
            raise ValueError("--cut needs --from: the file that is cut")
        if args.cut and args.version:
            raise ValueError("--version is of the published files: --cut takes one file of any version")
        parts = [str(args.source.resolve()) if args.source else "the published files"]
        if args.cut:
            parts.append(f"{' '.join(map(str, args.cut))} questions")
        elif len(self.versions) > 1:
            parts.append(f"version {self.version(args)}")
        parts.append(f"{args.longest} tokens")
        pieces = f" in {args.pieces} pieces" if args.pieces else f", with word pieces of {self.bert(args)}"
        return ", ".join(parts) + pieces

    def version(self, args: Namespace) -> str:
        """Returns which of the published versions is asked for."""
        return args.version or next(iter(self.versions))

    def bert(self, args: Namespace) -> str:
        """Returns the folder or the name of the published vocabulary."""
        name = args.bert or self.facts["bert"]
        return str(Path(name).resolve()) if Path(name).exists() else name

    def check(self, args):
        wanted = not (args.out / "text").is_dir()
        rows = self.rows(args) if wanted and args.source else None
        if wanted and not args.source and (page := self.versions[self.version(args)].get("page")):
            raise ValueError(
                f"--from is needed: {page} has the files, but no size and checksum by which a download could "
                "be known"
            )
        vocabulary = None if args.pieces else bert_vocabulary.published(self.bert(args))
        return Found(self.rows(args) if wanted and not args.source else rows, vocabulary)

    def rows(self, args: Namespace) -> dict[str, list[Question]]:
        """Returns {split: its rows}, of the files in --from or of downloaded ones."""
        if args.cut:
            return cut(args.source, args.cut)
        if args.source and not args.source.is_dir():
            wrong = "is one file: --cut TRAIN VALID says how many questions each set has"
            missing = f"is missing: --from takes {self.accepts}"
            raise ValueError(f"{args.source} {wrong if args.source.is_file() else missing}")
        found = {}
        for split, file in self.versions[self.version(args)]["files"].items():
            name, path = file["name"], (args.source or args.out) / file["name"]
            if not args.source:
                fetch(path, {"mirrors": self.facts["mirrors"], **file})
            elif not path.is_file():
                raise ValueError(f"{path} is missing: a copy of the published {name} is needed")
            known = "sha256" in file and not fault(path, file)
            found[split] = [row for rows in paragraphs(path, known).values() for row in rows]
        return found

    def write_text(self, args, found, folder):
        """Writes folder/SPLIT.answer and so on, a row a line."""
        for split, rows in found.rows.items():
            for column, values in zip(Question._fields, zip(*rows, strict=True), strict=True):
                write_lines(folder / f"{split}.{column}", values)

    def prepare(self, args, source, found):
        text = self.text(args, source, found)
        try:
            with noted_folder(args.out / "bin", source) as part:
                self.write_bin(args, text, part, found.vocabulary)
        except ValueError:  # the note in OUT/text has these options, and would refuse others
            shutil.rmtree(text)
            raise

    def write_bin(
        self, args: Namespace, text: Path, folder: Path, vocabulary: bert_vocabulary.Vocabulary | None
    ) -> None:
        """Writes the folder of the task, with ``vocabulary``'s pieces or with learned ones."""
        language = self.facts["language"]
        if vocabulary:
            shutil.copyfile(vocabulary.path, folder / VOCABULARY)
            lowercase = vocabulary.lowercase
        else:
            lowercase = language == "zh"  # as the two languages' usual BERTs
            texts = [*dict.fromkeys(read_lines(text / "train.context")), *read_lines(text / "train.question")]
            learn(texts, args.pieces, lowercase, folder / VOCABULARY)
        types = fairseq_types(folder / VOCABULARY)
        for side in SIDES:
            write_lines(folder / f"dict.{side}.txt", (f"{name} 1" for name in types))
        about = {
            "tokenizer": "bert",
            "lowercase": lowercase,
            "language": language,
            "longest": args.longest,
            "longest_answer": answer_room(args.longest),
            "longest_question": LONGEST_QUESTION,
            "pieces_of": self.bert(args) if vocabulary else None,
        }
        (folder / PREPARATION).write_text(json.dumps(about) + "\n", encoding="utf-8")
        pieces, ids = load(folder), {x: i for i, x in enumerate([*SPECIALS.values(), *types])}
        counts = {split: write_split(text, folder, split, pieces, ids, about) for split in splits_in(text)}
        (folder / ROWS).write_text(json.dumps(counts, indent=1) + "\n")

    def vocabulary(self, data):
        size, about = vocabulary_size(data / f"dict.{SIDES[0]}.txt"), facts(data)
        origin = f"of {about['pieces_of']}" if about["pieces_of"] else "learned of the training text"
        return f"{size:,} word pieces {origin}, {'lower-cased' if about['lowercase'] else 'cased'}"

    def report(self, args):
        """Prints the rows beside the published ones, what was cut, the vocabulary, and how to train."""
        counts = json.loads((args.out / "bin" / ROWS).read_text())
        rows = {split: of_split["rows"] for split, of_split in counts.items()}
        published = {} if args.cut else self.versions[self.version(args)]["rows"]
        beside = ", as published" if rows == published else f"; published are {told(published)}"
        print(f"rows: {told(rows)}{beside if published else ''}")
        for split, cut in counts.items():
            print(
                f"{split}: cut to what is around the answer {cut['contexts']:,} contexts, to its beginning "
                f"{cut['answers']:,} answers and {cut['questions']:,} questions"
            )
        super().report(args)


def splits_in(text: Path) -> list[str]:
    """Returns the splits of a text in their order."""
    return [split for split in SPLITS if (text / f"{split}.question").is_file()]


def write_split(text: Path, folder: Path, split: str, pieces: WordPieces, ids: dict, about: dict) -> dict:
    """Writes the numbers of a split, and returns how many rows it has, and how many of which were cut."""
    counts = dict.fromkeys(("rows", "contexts", "answers", "questions"), 0)
    rows = zip(*(read_lines(text / f"{split}.{column}") for column in Question._fields), strict=True)
    prefixes = [folder / f"{split}.{'-'.join(SIDES)}.{side}" for side in SIDES]
    files = [token_file(prefix, len(ids)) for prefix in prefixes]
    for asked, answer, context, begins in tqdm(list(rows), f"writing {split}", unit="rows", **SHOWN):
        source = pieces.source(answer, context, about["longest"], about["longest_answer"], int(begins))
        question = pieces.pieces(asked)
        kept = question[: about["longest_question"] - 1]
        for file, tokens in zip(files, (source.tokens, [*kept, "</s>"]), strict=True):
            file.add_item(torch.tensor([ids[token] for token in tokens]))
        counts["rows"] += 1
        counts["contexts"] += source.windowed
        counts["answers"] += source.answer_cut
        counts["questions"] += len(kept) < len(question)
    for file, prefix in zip(files, prefixes, strict=True):
        file.finalize(f"{prefix}.idx")
    return counts


def cut(path: Path, wanted: list[int]) -> dict[str, list[Question]]:
    """Returns the first paragraphs of a file for training and the next for validation.

    They have at most as many questions as ``wanted``, and no paragraph is in both.
    """
    if not path.is_file():
        raise ValueError(f"{path} is no file: --cut is for one JSON file of questions")
    groups = list(paragraphs(path, known=False).values())
    if sum(wanted) > (there := sum(map(len, groups))):
        asked = " + ".join(f"{count:,}" for count in wanted)
        raise ValueError(f"{path} has {there:,} questions with an answer: --cut asks for {asked}")
    found, taken = {"train": [], "valid": []}, 0
    for (split, rows), most in zip(found.items(), wanted, strict=True):
        while taken < len(groups) and len(rows) + len(groups[taken]) <= most:
            rows += groups[taken]
            taken += 1
        if not rows:
            raise ValueError(
                f"{path}: paragraph {taken + 1} has {len(groups[taken])} questions: --cut asks for {most} at "
                f"most for {split}, and a paragraph stays whole"
            )
    return found


def paragraphs(path: Path, known: bool) -> dict[str, list[Question]]:
    """Returns {context: its questions that have an answer}, and prints what is remarkable.

    ValueError names the question whose answer is not in its context; of a ``known`` file, whose bytes are the
    published ones, it is left out. An answer that is somewhere else than the file says is taken at the
    nearest place.
    """
    found, counts = {}, Counter()
    for where, context, asked in asked_in(path):
        question, answers = fields(asked, where, question=str, answers=list)
        if not answers or not question.strip():
            counts["blank" if answers else "unanswerable"] += 1
            continue
        text, start = fields(answers[0], f"{where}, its answer", text=str, answer_start=int)
        one_line, answer = folded(context), folded(text)
        try:
            begins = find(answer, one_line, near=len(folded(f"{context[:start]}x")) - 1)
        except ValueError as error:
            if not known:
                there = shortened(context[start : start + len(text)])
                raise ValueError(f"{where}: {error}; at answer_start, {start}, is {there!r}") from None
            counts["left out"] += 1
            continue
        counts["moved"] += context[start : start + len(text)] != text
        found.setdefault(one_line, []).append(Question(folded(question), answer, one_line, begins))
    total = sum(map(len, found.values()))
    if not total:
        raise ValueError(f"{path} has no question with an answer: {LAYOUT} is needed")
    for kind, words in TOLD.items():
        if counts[kind]:
            print(f"{path.name}: {counts[kind]:,} {words}", flush=True)
    return found


def asked_in(path: Path) -> Iterator[tuple[str, str, object]]:
    """Yields (what names it in messages, its context, the question itself) of all questions of a file."""
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:  # of JSON or of UTF-8
        raise ValueError(f"{path} is not JSON ({error}): {LAYOUT} is needed") from None
    # A split of the articles may be their list alone.
    articles = found if isinstance(found, list) else fields(found, str(path), data=list)[0]
    for i, article in enumerate(tqdm(articles, path.name, unit="articles", **SHOWN), 1):
        [of_article] = fields(article, f"{path}: article {i}", paragraphs=list)
        for k, paragraph in enumerate(of_article, 1):
            where = f"{path}: article {i}, paragraph {k}"
            context, asked = fields(paragraph, where, context=str, qas=list)
            for n, question in enumerate(asked, 1):
                name = question.get("id") if isinstance(question, dict) else None
                yield f"{path}: question {name}" if name else f"{where}, question {n}", context, question


def fields(found: object, where: str, **kinds: type) -> list:
    """Returns the values of these keys of a dict; ValueError if one is not there, or of another type."""
    for key, kind in kinds.items():
        if not isinstance(found, dict) or not isinstance(found.get(key), kind):
            raise ValueError(f"{where} has no {key!r} as in SQuAD's layout: {LAYOUT} is needed")
    return [found[key] for key in kinds]
