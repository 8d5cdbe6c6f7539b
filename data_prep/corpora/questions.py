"""SQuAD and CMRC 2018 in BERT word pieces, with the vocabulary of a BERT model or a learned one."""

import json
import os
import shutil
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import torch

from data_prep.binarize import splits_in
from data_prep.corpus import UNPACKED, Corpus, compared, number
from data_prep.cut import check_cut, cut, cut_option
from data_prep.fetch import fetch
from data_prep.hub import find_tables, questions_to_json
from data_prep.labeled import dataset_builder
from data_prep.parallel import progress
from data_prep.squad import Question, paragraphs
from fairseq_lrpe.data import word_pieces
from fairseq_lrpe.data.layout import PREPARATION, read_object, vocabulary_size
from fairseq_lrpe.data.word_pieces import SPECIALS, VOCABULARY, WordPieces
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import file_exists, read_file, read_lines, write_lines

SIDES = ("source", "question")
ROWS = "rows.json"
LONGEST = 512  # maximum number of tokens of a source ...
LONGEST_QUESTION = 50  # ... and of a question, both with </s>
MIN_LENGTH = 16  # smallest value of --longest: 3 special tokens, 6 of the answer, 7 of the context
MIN_COUNT = 2  # minimum number of occurrences of a character or word piece in a learned vocabulary
SPECIAL_TOKENS = [*sorted(SPECIALS), "[MASK]"]  # of a learned vocabulary
CONFIG = "tokenizer_config.json"
OPTIONS = {
    **cut_option(
        "maximum numbers of questions of the splits, taken in this order from the single file given by "
        "--from; all questions of a paragraph are in the same split",
        *("TRAIN", "VALID"),
    ),
    "--bert": {
        "metavar": "NAME_OR_FOLDER",
        "help": "name of a BERT on the Hugging Face hub, or folder with its vocab.txt (default: "
        "bert-base-cased, or hfl/chinese-roberta-wwm-ext for cmrc2018); text is lower-cased unless "
        "tokenizer_config.json says otherwise",
    },
    "--pieces": number("learn a vocabulary of at most N word pieces from the training text"),
    "--longest": number(
        "maximum number of tokens of a source (default: %(default)s)", MIN_LENGTH, default=LONGEST
    ),
}


class Questions(Corpus):
    """Questions about texts in BERT word pieces, for the task ``question_generation``.

    The source is an answer and its context, and the target is the question. The first of several answers is
    used; blank questions and questions without an answer in the context are skipped. OUT/text contains the
    text, and OUT/bin the binarized data, vocab.txt and preparation.json. Long contexts are truncated around
    the answer. Answers are truncated to 100 word pieces and to half of the source, questions to 49 word
    pieces.
    """

    task = "question_generation --source-lang source --target-lang question"

    def __init__(self, name: str):
        super().__init__(name)
        self.versions = self.facts["versions"]
        text = "version of the questions; du is Du et al.'s split of SQuAD 1.1 (default: the first)"
        self.options = {"--version": {"choices": [*self.versions], "help": text}, **OPTIONS}

    @property
    def accepts(self):
        sets = []
        for version in self.versions.values():
            names = [file["name"] for file in version["files"].values()]
            sets.append(f"with {' '.join(names)}")
        files = " or ".join(sets)
        files = f"a folder {files}, or with the hub's Parquet files"
        return f"{files}, or with --cut one file in this format (default: download the files)"

    def check(self, args):
        if args.bert and args.pieces:
            raise UserError("--pieces learns a vocabulary, --bert selects one: omit one of the two")
        check_cut(args)
        if not args.source and (page := self.version(args).get("page")):
            raise UserError(f"--from is missing: pass a folder with the files of {page}")

    def version(self, args: Namespace) -> dict:
        return self.versions.get(args.version) or next(iter(self.versions.values()))

    def rows(self, args: Namespace) -> dict[str, list[Question]]:
        if args.cut:
            return cut(args.source, [*paragraphs(args.source).values()], args.cut)
        splits = {}
        folder = args.source or args.out
        if tables := find_tables(args.source):
            folder = args.out / UNPACKED
            questions_to_json(tables, self.version(args)["files"], folder)
        for split, file in self.version(args)["files"].items():
            path = folder / file["name"]
            if not args.source:
                fetch(path, {"mirrors": self.facts["mirrors"], **file})
            splits[split] = list(chain.from_iterable(paragraphs(path).values()))
        return splits

    def write_text(self, args, folder):
        for split, rows in self.rows(args).items():
            for column, values in zip(Question._fields, zip(*rows, strict=True), strict=True):
                write_lines(folder / f"{split}.{column}", values)

    def prepare(self, args, folder):
        text = self.text(args)
        language = self.facts["language"]
        name = args.bert or self.facts["bert"]
        if args.pieces:
            lowercase = language == "zh"  # as in the default BERT models of both languages
            texts = [*dict.fromkeys(read_lines(text / "train.context")), *read_lines(text / "train.question")]
            learn(texts, args.pieces, lowercase, folder / VOCABULARY)
        else:
            vocabulary, lowercase = published(name)
            shutil.copyfile(vocabulary, folder / VOCABULARY)
            if Path(name).exists():
                name = os.path.realpath(name)
        types = word_pieces.fairseq_types(folder / VOCABULARY)
        for side in SIDES:
            write_lines(folder / f"dict.{side}.txt", (f"{piece} 1" for piece in types))
        preparation = {
            "tokenizer": "bert",
            "lowercase": lowercase,
            "language": language,
            "longest": args.longest,
            "longest_answer": word_pieces.max_answer_tokens(args.longest),
            "longest_question": LONGEST_QUESTION,
            "pieces_of": None if args.pieces else name,
        }
        (folder / PREPARATION).write_text(json.dumps(preparation) + "\n", encoding="utf-8")
        pieces = word_pieces.load(folder)
        ids = {piece: number for number, piece in enumerate([*SPECIALS.values(), *types])}
        counts = {}
        for split in splits_in(text, ".question"):
            counts[split] = write_split(text, folder, split, pieces, ids, preparation)
        (folder / ROWS).write_text(json.dumps(counts, indent=1) + "\n")

    def vocabulary(self, data):
        size = vocabulary_size(data / f"dict.{SIDES[0]}.txt")
        preparation = word_pieces.read_preparation(data)
        origin = "learned from the training text"
        if preparation["pieces_of"]:
            origin = f"from {preparation['pieces_of']}"
        return f"{size:,} word pieces {origin}, {'lower-cased' if preparation['lowercase'] else 'cased'}"

    def report(self, args):
        counts = read_object(args.out / "bin" / ROWS, lambda counts: counts["train"]["rows"] > 0)
        rows = {split: count["rows"] for split, count in counts.items()}
        print(f"rows: {compared(rows, None if args.cut else self.version(args)['rows'])}")
        text = "{}: truncated {contexts:,} contexts, {answers:,} answers and {questions:,} questions"
        for split, count in counts.items():
            print(text.format(split, **count))
        super().report(args)


def published(name: str) -> tuple[Path, bool]:
    """Returns the path of a BERT's vocab.txt, and whether its text is lower-cased.

    ``name`` is a folder, or the name of a model on the Hugging Face hub.
    """
    if Path(name).exists():
        path = Path(name) / VOCABULARY
        config = Path(name) / CONFIG
    else:
        path = from_hub(name, VOCABULARY)
        config = from_hub(name, CONFIG)
    word_pieces.read_types(path)
    content = read_file(config) if config and file_exists(config) else b"{}"
    try:
        settings = json.loads(content)
        return path, bool(settings.get("do_lower_case", True))
    except (ValueError, AttributeError) as error:
        raise UserError(f"{config} is not a JSON object ({error}): correct or remove it") from None


def from_hub(name: str, file: str) -> Path | None:
    """Returns the path of a file that is downloaded from the Hugging Face hub.

    Returns None for tokenizer_config.json if the model ``name`` has no such file.
    """
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
    """Learns a vocabulary of at most ``count`` word pieces and writes it to the file ``target``.

    The vocabulary contains every character that occurs at least twice in ``texts``. The pieces "##x" of
    single characters are passed as special tokens because the trainer would number them in a random order.

    Raises:
        UserError: if ``count`` is too small for the characters.
    """
    from tokenizers import BertWordPieceTokenizer

    print(f"Learning {count:,} word pieces", flush=True)
    texts = list(texts)
    tokenizer = BertWordPieceTokenizer(lowercase=lowercase)
    characters = Counter()
    inside = set()  # characters that are not the first one of a word
    for text in texts:
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text)):
            characters.update(word)
            inside.update(word[1:])
    alphabet = []
    continuations = []  # the characters as pieces that do not start a word
    for character, times in sorted(characters.items()):
        if times >= MIN_COUNT:
            alphabet.append(character)
            if character in inside:
                continuations.append(f"##{character}")
    required = [*SPECIAL_TOKENS, *alphabet, *continuations]
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


def write_split(
    text: Path, folder: Path, split: str, pieces: WordPieces, ids: dict, preparation: dict
) -> dict:
    """Writes the binarized sources and questions of a split.

    Args:
        text: folder of the text.
        folder: folder of the binarized data.
        split: name of the split.
        pieces: the tokenizer.
        ids: {word piece: number}.
        preparation: content of preparation.json, with the maximum numbers of tokens.

    Returns:
        The numbers of "rows", and of truncated "contexts", "answers" and "questions".
    """
    counts = dict.fromkeys(("rows", "contexts", "answers", "questions"), 0)
    columns = [read_lines(text / f"{split}.{column}") for column in Question._fields]
    rows = list(zip(*columns, strict=True))
    pair = "-".join(SIDES)
    source_prefix = folder / f"{split}.{pair}.{SIDES[0]}"
    question_prefix = folder / f"{split}.{pair}.{SIDES[1]}"
    source_file = dataset_builder(source_prefix, len(ids))
    question_file = dataset_builder(question_prefix, len(ids))
    for question, answer, context, begins in progress(rows, f"writing {split}", "rows"):
        source = pieces.source(
            answer, context, preparation["longest"], preparation["longest_answer"], int(begins)
        )
        question_pieces = pieces.pieces(question)
        kept = question_pieces[: preparation["longest_question"] - 1]
        source_file.add_item(as_tensor(source.tokens, ids))
        question_file.add_item(as_tensor([*kept, "</s>"], ids))
        counts["rows"] += 1
        counts["contexts"] += source.context_cut
        counts["answers"] += source.answer_cut
        counts["questions"] += len(kept) < len(question_pieces)
    source_file.finalize(f"{source_prefix}.idx")
    question_file.finalize(f"{question_prefix}.idx")
    return counts


def as_tensor(tokens: list[str], ids: dict[str, int]) -> torch.Tensor:
    return torch.tensor([ids[token] for token in tokens])
