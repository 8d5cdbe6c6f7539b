"""BERT WordPiece tokenization of raw text, and the conversion between BERT's and fairseq's token ids.

The source of question generation is ``<s> answer </s> context </s>``: fairseq's special tokens replace
those of BERT's ``[CLS] answer [SEP] context [SEP]``.
"""

import re
import unicodedata
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from fairseq_lrpe.data.layout import PREPARATION, read_object
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import file_exists, read_lines

VOCABULARY = "vocab.txt"  # BERT's file, with one type per line, in the order of their ids
# {BERT's name: fairseq's name} of the special types, in fairseq's order
SPECIALS = {"[CLS]": "<s>", "[PAD]": "<pad>", "[SEP]": "</s>", "[UNK]": "<unk>"}
NUM_SEPARATORS = 3  # tokens of a source that belong neither to the answer nor to the context
ANSWER_TOKENS = 100  # maximum number of tokens of an answer in a source


def read_types(vocabulary: Path) -> list[str]:
    """Returns the types of a vocab.txt in the order of their ids.

    Raises:
        UserError: if the file is missing, lacks one of ``SPECIALS``, or has a blank or repeated type or one
            of fairseq's special types (<s>, <pad>, </s> and <unk>).
    """
    if not file_exists(vocabulary):
        raise UserError(f"{vocabulary} is missing: expected BERT's {VOCABULARY}")
    types = [*read_lines(vocabulary)]
    if missing := [name for name in SPECIALS if name not in types]:
        raise UserError(f"{vocabulary} has no {', '.join(missing)}: expected BERT's {VOCABULARY}")
    for name, count in Counter(types).items():
        if count > 1 or not name or name in SPECIALS.values():
            wrong = f"{name!r}, which is repeated, blank or a special type of fairseq"
            raise UserError(f"{vocabulary} has {wrong}: expected BERT's {VOCABULARY}")
    return types


def fairseq_types(vocabulary: Path) -> list[str]:
    """Returns the types of fairseq's dict.txt: all but the four special types, in BERT's order."""
    return [name for name in read_types(vocabulary) if name not in SPECIALS]


def bert_token_ids(vocabulary: Path) -> list[int]:
    """Returns the token id in BERT for each token id in fairseq's Dictionary."""
    ids = _ids(vocabulary)
    special = [ids.pop(name) for name in SPECIALS]
    return special + list(ids.values())


def _ids(vocabulary):
    """Returns {type: id} of a vocab.txt."""
    return {name: number for number, name in enumerate(read_types(vocabulary))}


class Source(NamedTuple):
    """The tokens of a source, and whether its answer and its context were truncated."""

    tokens: list[str]
    answer_cut: bool
    context_cut: bool


class WordPieces:
    """BERT's tokenizer with the types of a vocab.txt, and fairseq's names for the special types."""

    def __init__(self, vocabulary: Path, lowercase: bool):
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        types = _ids(vocabulary)
        # Like the package's BertWordPieceTokenizer, but "[SEP]" inside a text is not a separator.
        self._tokenizer = Tokenizer(models.WordPiece(types, unk_token="[UNK]"))
        self._tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def _encoded(self, text):
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return [SPECIALS.get(piece, piece) for piece in encoding.tokens], encoding.offsets

    def pieces(self, text: str) -> list[str]:
        return self._encoded(text)[0]

    def text(self, pieces: list[str]) -> str:
        """Converts word pieces to text, restoring spaces heuristically."""
        return restore_spaces(re.sub(r" ##(?=\S)", "", " ".join(pieces)))

    def source(
        self, answer: str, context: str, longest: int, longest_answer: int, begins: int | None = None
    ) -> Source:
        """Returns the source for an answer and its context, which is truncated around the answer.

        Args:
            answer: the answer, which is truncated to its first tokens.
            context: the text that contains the answer.
            longest: maximum number of tokens of the source.
            longest_answer: maximum number of tokens of the answer.
            begins: index of the answer's first character in the context. By default, spaces are normalized
                and the answer's first occurrence is used.
        """
        if begins is None:
            answer = normalize_spaces(answer)
            context = normalize_spaces(context)
            begins = find_answer(answer, context)
        answer_pieces = self.pieces(answer)
        kept = answer_pieces[:longest_answer]
        pieces, offsets = self._encoded(context)
        # Indices of the answer's first piece in the context, and of the first one after it.
        first = sum(end <= begins for _, end in offsets)
        last = sum(start < begins + len(answer) for start, _ in offsets)
        last = min(last, first + longest_answer)
        room = longest - NUM_SEPARATORS - len(kept)
        part = pieces[window(len(pieces), first, last, room)]
        tokens = ["<s>", *kept, "</s>", *part, "</s>"]
        return Source(tokens, len(kept) < len(answer_pieces), len(part) < len(pieces))


def max_answer_tokens(longest: int) -> int:
    """Returns the maximum length of an answer: half of ``longest`` without separators, but at most 100."""
    return min(ANSWER_TOKENS, (longest - NUM_SEPARATORS) // 2)


def normalize_spaces(text: str) -> str:
    return " ".join(text.split())


def find_answer(answer: str, context: str, near: int = 0) -> int:
    """Returns the index of the answer in its context, if it occurs several times the nearest to ``near``.

    Raises:
        UserError: if the answer is blank, or the context does not contain it.
    """
    if not answer.strip():
        raise UserError("the answer is blank: give a part of the context")
    positions = []
    position = context.find(answer)
    while position >= 0:
        positions.append(position)
        position = context.find(answer, position + 1)
    if not positions:
        shown = f"the answer {answer[:40]!r} is not in its context {context[:40]!r}"
        raise UserError(f"{shown}: give a part of the context")
    return min(positions, key=lambda position: abs(position - near))


def window(length: int, first: int, last: int, room: int) -> slice:
    """Returns a slice of at most ``room`` of ``length`` items, around the items ``first`` to ``last`` - 1."""
    start = first - max(room - (last - first), 0) // 2
    start = max(min(start, length - room), 0)
    return slice(start, min(start + room, length))


_SPACED = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r" (?=[.,;:!?%)\]}])|(?<=[(\[{$£€#]) ", ""),
        (r"(?<=\w) ?(['’/-]) ?(?=\w)", r"\1"),
        (r"(?<=\d)([.:]) (?=\d)|(?<=\d)(,) (?=\d{3}(?!\d))", r"\1\2"),
        (r'" ([^"]*?) ?"', r'"\1"'),
    )
]


def _is_wide(character):
    return unicodedata.east_asian_width(character) in "WF"


def restore_spaces(words: str) -> str:
    """Removes the spaces next to full-width characters and, by heuristic rules, around punctuation."""
    wide = [False, *map(_is_wide, words), False]
    text = ""
    for index, character in enumerate(words):
        is_beside_wide = wide[index] or wide[index + 2]  # ``wide`` has an item before the first character
        if character != " " or not is_beside_wide:
            text += character
    for pattern, replacement in _SPACED:
        text = pattern.sub(replacement, text)
    return text


def read_preparation(data: Path) -> dict:
    def is_valid(found):
        return found["tokenizer"] == "bert" and "longest" in found

    return read_object(data / PREPARATION, is_valid, "question generation needs data of squad or cmrc2018")


def load(data: Path) -> WordPieces:
    return WordPieces(data / VOCABULARY, read_preparation(data)["lowercase"])
