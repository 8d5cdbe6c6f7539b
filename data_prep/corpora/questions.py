"""SQuAD and CMRC 2018 in BERT word pieces."""

import json
import os
import shutil
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch

from data_prep.binarize import splits_in
from data_prep.corpus import Corpus, compared, number
from data_prep.cut import check_cut, cut, cut_option
from data_prep.fetch import fetch
from data_prep.labeled import dataset_builder
from data_prep.parallel import progress
from data_prep.validation import is_unicode
from fairseq_lrpe.data import word_pieces
from fairseq_lrpe.data.layout import PREPARATION, read_object, vocabulary_size
from fairseq_lrpe.data.word_pieces import SPECIALS, VOCABULARY, WordPieces, normalize_spaces
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import file_exists, read_file, read_lines, write_lines

SIDES = ("source", "question")
ROWS = "rows.json"
LONGEST, LONGEST_QUESTION = 512, 50  # maximum numbers of tokens of a source and a question, with </s>
MIN_LENGTH = 16  # smallest value of --longest: 3 special tokens, 6 of the answer, 7 of the context
MIN_COUNT = 2  # minimum number of occurrences of a character or word piece in a learned vocabulary
SPECIAL_TOKENS = [*sorted(SPECIALS), "[MASK]"]  # of a learned vocabulary
CONFIG = "tokenizer_config.json"
LAYOUT = "data > paragraphs > context and qas > question and answers > text and answer_start"
SKIPPED = "questions are blank or have no answer and are skipped"
LEFT_OUT = "questions have an answer that is not in its context and are skipped"
NO_UNICODE = "questions have an unpaired surrogate, which is not a character, and are skipped"
MOVED = "answers were moved from answer_start to their nearest occurrence"
OPTIONS = {
    **cut_option(
        "maximum numbers of questions of the splits, taken in this order from the single file given by "
        "--from; all questions of a paragraph are in the same split",
        *("TRAIN", "VALID"),
    ),
    "--bert": {
        "metavar": "NAME_OR_FOLDER",
        "help": "folder with BERT's vocab.txt and tokenizer_config.json, without which text is "
        "lower-cased, or name of a model on the Hugging Face hub (default: bert-base-cased, or "
        "hfl/chinese-roberta-wwm-ext for cmrc2018)",
    },
    "--pieces": number("learn a vocabulary of at most N word pieces from the training text"),
    "--longest": number(
        "maximum number of tokens of a source (default: %(default)s)", MIN_LENGTH, default=LONGEST
    ),
}


class Question(NamedTuple):
    question: str
    answer: str
    context: str
    begins: int  # index of the answer's first character in the context


class Questions(Corpus):
    """Questions about texts in BERT word pieces, for the task ``question_generation``.

    The source is an answer and its context, and the target is the question. The first of several answers is
    used; blank questions and those without an answer in the context are skipped. OUT/text contains the text,
    and OUT/bin the binarized data, vocab.txt and preparation.json. Long contexts are truncated around the
    answer. Answers are truncated to 100 word pieces and to half of the source, questions to 49 word pieces.
    """

    task = "question_generation --source-lang source --target-lang question"

    def __init__(self, name: str):
        super().__init__(name)
        self.versions = self.facts["versions"]
        text = "version of the questions; du is Du et al.'s split of SQuAD 1.1 (default: the first)"
        self.options = {"--version": {"choices": [*self.versions], "help": text}, **OPTIONS}

    @property
    def accepts(self):
        sets = [" ".join(file["name"] for file in x["files"].values()) for x in self.versions.values()]
        files = " or ".join(f"with {names}" for names in sets)
        return f"a folder {files}, or with --cut one file in this format (default: download the files)"

    def check(self, args):
        if args.bert and args.pieces:
            raise UserError("--pieces learns a vocabulary: it cannot be combined with --bert")
        check_cut(args)
        if not args.source and (page := self.version(args).get("page")):
            raise UserError(f"--from is missing: pass a folder with the files of {page}")

    def version(self, args: Namespace) -> dict:
        return self.versions.get(args.version) or next(iter(self.versions.values()))

    def rows(self, args: Namespace) -> dict[str, list[Question]]:
        if args.cut:
            return cut(args.source, [*paragraphs(args.source).values()], args.cut)
        found = {}
        for split, file in self.version(args)["files"].items():
            path = (args.source or args.out) / file["name"]
            if not args.source:
                fetch(path, {"mirrors": self.facts["mirrors"], **file})
            found[split] = [row for rows in paragraphs(path).values() for row in rows]
        return found

    def write_text(self, args, folder):
        for split, rows in self.rows(args).items():
            for column, values in zip(Question._fields, zip(*rows, strict=True), strict=True):
                write_lines(folder / f"{split}.{column}", values)

    def prepare(self, args, folder):
        text, language, name = self.text(args), self.facts["language"], args.bert or self.facts["bert"]
        if args.pieces:
            lowercase = language == "zh"  # as in the default BERT models of both languages
            texts = [*dict.fromkeys(read_lines(text / "train.context")), *read_lines(text / "train.question")]
            learn(texts, args.pieces, lowercase, folder / VOCABULARY)
        else:
            vocabulary, lowercase = published(name)
            shutil.copyfile(vocabulary, folder / VOCABULARY)
        types = word_pieces.fairseq_types(folder / VOCABULARY)
        for side in SIDES:
            write_lines(folder / f"dict.{side}.txt", (f"{name} 1" for name in types))
        about = {
            "tokenizer": "bert",
            "lowercase": lowercase,
            "language": language,
            "longest": args.longest,
            "longest_answer": word_pieces.max_answer_tokens(args.longest),
            "longest_question": LONGEST_QUESTION,
            "pieces_of": None if args.pieces else os.path.realpath(name) if Path(name).exists() else name,
        }
        (folder / PREPARATION).write_text(json.dumps(about) + "\n", encoding="utf-8")
        pieces, ids = word_pieces.load(folder), {x: i for i, x in enumerate([*SPECIALS.values(), *types])}
        splits = splits_in(text, ".question")
        counts = {split: write_split(text, folder, split, pieces, ids, about) for split in splits}
        (folder / ROWS).write_text(json.dumps(counts, indent=1) + "\n")

    def vocabulary(self, data):
        size, about = vocabulary_size(data / f"dict.{SIDES[0]}.txt"), word_pieces.read_preparation(data)
        origin = f"from {about['pieces_of']}" if about["pieces_of"] else "learned from the training text"
        return f"{size:,} word pieces {origin}, {'lower-cased' if about['lowercase'] else 'cased'}"

    def report(self, args):
        counts = read_object(args.out / "bin" / ROWS, lambda counts: counts["train"]["rows"] > 0)
        rows = {split: count["rows"] for split, count in counts.items()}
        print(f"rows: {compared(rows, None if args.cut else self.version(args)['rows'])}")
        text = "{}: truncated {contexts:,} contexts, {answers:,} answers and {questions:,} questions"
        for split, count in counts.items():
            print(text.format(split, **count))
        super().report(args)


def published(name: str) -> tuple[Path, bool]:
    """Returns the path of the vocab.txt of a folder or a model on the hub, and whether it is lower-cased."""
    is_folder = Path(name).exists()
    path, config = (Path(name) / file if is_folder else from_hub(name, file) for file in (VOCABULARY, CONFIG))
    word_pieces.read_types(path)
    content = read_file(config) if config and file_exists(config) else b"{}"
    try:
        settings = json.loads(content)
        return path, bool(settings.get("do_lower_case", True))
    except (ValueError, AttributeError) as error:
        raise UserError(f"{config} is not a JSON object ({error}): correct or remove it") from None


def from_hub(name: str, file: str) -> Path | None:
    """Returns the path of a downloaded file, or None if the model has no tokenizer_config.json."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    print(f"Downloading {file} of {name}", flush=True)
    try:
        return Path(hf_hub_download(name, file))
    except Exception as error:  # any error of the network, hub or package
        # LocalEntryNotFoundError is one without a connection.
        missing = isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError)
        if missing and file == CONFIG:
            return None
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        remedy = "try again later, or pass --bert FOLDER or --pieces N"
        raise UserError(f"{file} of {name} could not be downloaded ({reason}): {remedy}") from None


def learn(texts: Iterable[str], count: int, lowercase: bool, target: Path) -> None:
    """Learns a vocabulary of at most ``count`` word pieces and writes it to ``target``.

    The vocabulary contains every character that occurs at least twice in ``texts``. The pieces "##x" of
    single characters are passed as special tokens because the trainer would number them in a random order.
    """
    from tokenizers import BertWordPieceTokenizer

    print(f"Learning {count:,} word pieces", flush=True)
    texts = list(texts)
    tokenizer = BertWordPieceTokenizer(lowercase=lowercase)
    characters, inside = Counter(), set()
    for text in texts:
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text)):
            characters.update(word)
            inside.update(word[1:])
    alphabet = sorted(x for x, times in characters.items() if times >= MIN_COUNT)
    required = [*SPECIAL_TOKENS, *alphabet, *(f"##{x}" for x in alphabet if x in inside)]
    if count < len(required):
        kinds = f"{len(alphabet):,} characters that occur twice or more in the training text"
        raise UserError(f"--pieces {count} is too few for the {kinds}: pass at least {len(required)}")
    tokenizer.train_from_iterator(
        texts,
        vocab_size=count,
        min_frequency=MIN_COUNT,
        limit_alphabet=len(alphabet),
        initial_alphabet=alphabet,
        special_tokens=required,
        show_progress=False,
    )
    ids = tokenizer.get_vocab()
    write_lines(target, sorted(ids, key=ids.get))


def write_split(text: Path, folder: Path, split: str, pieces: WordPieces, ids: dict, about: dict) -> dict:
    counts = dict.fromkeys(("rows", "contexts", "answers", "questions"), 0)
    rows = zip(*(read_lines(text / f"{split}.{column}") for column in Question._fields), strict=True)
    prefixes = [folder / f"{split}.{'-'.join(SIDES)}.{side}" for side in SIDES]
    files = [dataset_builder(prefix, len(ids)) for prefix in prefixes]
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


def paragraphs(path: Path) -> dict[str, list[Question]]:
    """Returns {context: answerable questions}, and prints the numbers of skipped questions and moved answers.

    If an answer is not at answer_start, its nearest occurrence in the context is used. Questions whose answer
    or answer_start is not in the context, or whose text is not Unicode, are skipped.

    Raises:
        UserError: If the file does not have SQuAD's format, or at least half of the answers are skipped.
    """
    found, counts = {}, Counter()
    for context, question, answers in read_questions(path):
        if not answers or not question.strip():
            counts[SKIPPED] += 1
            continue
        text, start = answers[0]
        if not is_unicode(context, question, text):
            counts[NO_UNICODE] += 1
            continue
        one_line, answer = normalize_spaces(context), normalize_spaces(text)
        if not 0 <= start < len(context) or not answer or answer not in one_line:
            counts[LEFT_OUT] += 1
        else:
            near = len(normalize_spaces(f"{context[:start]}x")) - 1
            begins = word_pieces.find_answer(answer, one_line, near)
            counts[MOVED] += context[start : start + len(text)] != text
            row = Question(normalize_spaces(question), answer, one_line, begins)
            found.setdefault(one_line, []).append(row)
    total = sum(map(len, found.values()))
    for words, count in counts.items():
        if count:
            print(f"{path.name}: {count:,} {words}", flush=True)
    if (broken := counts[LEFT_OUT] + counts[NO_UNICODE]) >= total:
        few = f"has {total:,} questions with an answer in their context"
        raise UserError(f"{path} {few}, and {broken:,} without: correct the answers")
    return found


def read_questions(path: Path) -> list[tuple[str, str, list[tuple[str, int]]]]:
    """Returns (context, question, [first (answer, start), if it is possible]) of each question of a file."""
    content = read_file(path)
    try:
        found = json.loads(content)
        # A file may consist of the list of articles only.
        articles = found if isinstance(found, list) else found["data"]
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        return [
            (value(paragraph, "context", str), value(entry, "question", str), first_answer(entry))
            for paragraph in paragraphs
            for entry in paragraph["qas"]
        ]
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"{path} does not have SQuAD's format ({error!r}): expected {LAYOUT}") from None


def first_answer(entry: dict) -> list[tuple[str, int]]:
    found = [] if entry.get("is_impossible") else value(entry, "answers", list)[:1]
    return [(value(answer, "text", str), value(answer, "answer_start", int)) for answer in found]


def value(entry: dict, key: str, kind: type) -> object:
    if not isinstance(entry[key], kind):
        raise TypeError(f"{key} is of type {type(entry[key]).__name__} instead of {kind.__name__}")
    return entry[key]
