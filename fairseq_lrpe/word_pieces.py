"""BERT's word pieces of raw text, and the two orders of their ids: fairseq's and BERT's.

A source is ``<s> answer </s> context </s>`` in fairseq's types: BERT's [CLS], [SEP] and [SEP].
"""

import json
import re
import unicodedata
from pathlib import Path
from typing import NamedTuple

from fairseq_lrpe.layouts import PREPARATION

VOCABULARY = "vocab.txt"
"""BERT's file, a type a line; a type's line is its id."""
SPECIALS = {"[CLS]": "<s>", "[PAD]": "<pad>", "[SEP]": "</s>", "[UNK]": "<unk>"}
"""BERT's types that are fairseq's four, in fairseq's order."""
AROUND = 3
"""Tokens of a source that are neither of the answer nor of the context."""
FACTS = {
    "tokenizer": str,
    "lowercase": bool,
    "language": str,
    "longest": int,
    "longest_answer": int,
    "longest_question": int,
}
"""What PREPARATION says, besides ``pieces_of``: whose pieces they are, None if they were learned."""


def read_types(vocabulary: Path) -> list[str]:
    """Returns BERT's types in their order.

    ValueError if there is no such file, or if fairseq's Dictionary cannot have the same types.
    """
    if not vocabulary.is_file():
        raise ValueError(f"{vocabulary} is missing: BERT's {VOCABULARY} is needed, a type a line")
    try:
        types = vocabulary.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{vocabulary} is not UTF-8 text ({error}): BERT's {VOCABULARY} is needed") from None
    if lacking := [name for name in SPECIALS if name not in types]:
        raise ValueError(f"{vocabulary} has no {', '.join(lacking)}: BERT's {VOCABULARY} is needed")
    seen = set()
    for number, name in enumerate(types, 1):
        if name in seen:
            raise ValueError(f"{vocabulary} has {name!r} twice, the second time in line {number}")
        if not name or name in SPECIALS.values():
            what = repr(name) if name else "nothing"
            raise ValueError(f"{vocabulary} has {what} in line {number}, which fairseq has no type for")
        seen.add(name)
    return types


def fairseq_types(vocabulary: Path) -> list[str]:
    """Returns the types of fairseq's dict.txt: all but the four special ones, in BERT's order."""
    return [name for name in read_types(vocabulary) if name not in SPECIALS]


def bert_ids(vocabulary: Path) -> list[int]:
    """Returns for each id of fairseq's Dictionary the id of the same type in ``vocabulary``.

    ValueError as of ``read_types``.
    """
    ids = {name: i for i, name in enumerate(read_types(vocabulary))}
    return [ids.pop(name) for name in SPECIALS] + list(ids.values())


class Source(NamedTuple):
    """The tokens of a source, and what of it had to be left out."""

    tokens: list[str]
    answer_cut: bool
    windowed: bool


class WordPieces:
    """The word pieces of a vocabulary, as BERT makes them of raw text, in fairseq's types."""

    def __init__(self, vocabulary: Path, lowercase: bool):
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        types = {name: i for i, name in enumerate(read_types(vocabulary))}
        # As the package's BertWordPieceTokenizer, but that a text with "[SEP]" in it has no separator there.
        self._tokenizer = Tokenizer(models.WordPiece(types, unk_token="[UNK]"))
        self._tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def _encoded(self, text):
        found = self._tokenizer.encode(text, add_special_tokens=False)
        return [SPECIALS.get(piece, piece) for piece in found.tokens], found.offsets

    def pieces(self, text: str) -> list[str]:
        """Returns the pieces of a text; one that is not in the vocabulary is ``<unk>``."""
        return self._encoded(text)[0]

    def text(self, pieces: list[str]) -> str:
        """Returns the text that pieces stand for, with blanks where they are likely."""
        return spaced(re.sub(r" ##(?=\S)", "", " ".join(pieces)))

    def source(
        self, answer: str, context: str, longest: int, longest_answer: int, begins: int | None = None
    ) -> Source:
        """Returns the source of an answer that ``begins`` at this character of its context.

        It has ``longest`` tokens at most: the answer's first ``longest_answer`` pieces, and of the context
        what is around the answer. Without ``begins``, blanks are folded, and the first place of the answer
        is taken; ValueError if it is not there.
        """
        if begins is None:
            answer, context = folded(answer), folded(context)
            begins = find(answer, context)
        of_answer, (pieces, offsets) = self.pieces(answer), self._encoded(context)
        kept = of_answer[:longest_answer]
        first = sum(end <= begins for _, end in offsets)
        last = sum(start < begins + len(answer) for start, _ in offsets)
        part = window(len(pieces), first, min(last, first + longest_answer), longest - AROUND - len(kept))
        return Source(
            ["<s>", *kept, "</s>", *pieces[part], "</s>"],
            len(kept) < len(of_answer),
            part.stop - part.start < len(pieces),
        )


def answer_room(longest: int) -> int:
    """Returns how many pieces an answer may have in a source of ``longest`` tokens.

    They are 100, but no more than half of the source, so that the context can have the answer too.
    """
    return min(100, (longest - AROUND) // 2)


def folded(text: str) -> str:
    """Returns a text in one line, with single blanks."""
    return " ".join(text.split())


def find(answer: str, context: str, near: int = 0) -> int:
    """Returns where an answer begins in its context, of several places the one nearest to ``near``.

    ValueError if it is not there.
    """
    if not answer.strip():
        raise ValueError("the answer is blank: a piece of its context is needed")
    places, place = [], context.find(answer)
    while place >= 0:
        places.append(place)
        place = context.find(answer, place + 1)
    if not places:
        raise ValueError(f"the answer {shortened(answer)!r} is not in its context {shortened(context)!r}")
    return min(places, key=lambda place: abs(place - near))


def shortened(text: str) -> str:
    """Returns the beginning of a text, for a message."""
    return text if len(text) <= 40 else f"{text[:37]}..."


def window(length: int, first: int, last: int, room: int) -> slice:
    """Returns the ``room`` items of ``length`` around those from ``first`` to before ``last``.

    As many before as after them; where one side has fewer, the other has more.
    """
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


def spaced(words: str) -> str:
    """Returns words with the blanks that stand in text: none beside what is as wide as a Chinese character.

    Which blanks stood around signs has to be guessed.
    """
    wide = [False, *(unicodedata.east_asian_width(x) in "WF" for x in words), False]
    text = "".join(x for i, x in enumerate(words) if x != " " or not (wide[i] or wide[i + 2]))
    for pattern, replacement in _SPACED:
        text = pattern.sub(replacement, text)
    return text


def facts(data: Path) -> dict:
    """Returns what PREPARATION says of a prepared OUT/bin; ValueError if it is not of word pieces."""
    note = data / PREPARATION
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
        fine = found["tokenizer"] == "bert" and all(type(found[key]) is kind for key, kind in FACTS.items())
    except (OSError, ValueError, LookupError, TypeError):
        fine = False
    if not fine:
        raise ValueError(
            f"{note} is missing or not of BERT's word pieces: a folder that data_prep/prepare.sh made for "
            "question generation is needed"
        )
    return found


def load(data: Path) -> WordPieces:
    """Returns the word pieces of a prepared OUT/bin; ValueError if it has none."""
    return WordPieces(data / VOCABULARY, facts(data)["lowercase"])
