"""BERT WordPiece tokenization of raw text, and the conversion between BERT's and fairseq's token ids.

The source of question generation is ``<s> answer </s> context </s>``. Its special types are fairseq's, which
replace BERT's [CLS], [SEP] and [SEP].
"""

import json
import re
import unicodedata
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from fairseq_lrpe.data.layout import PREPARATION
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import check_size, read_file, read_lines

VOCABULARY = "vocab.txt"
"""Name of BERT's vocabulary file, which has one type per line, in the order of their ids."""
SPECIALS = {"[CLS]": "<s>", "[PAD]": "<pad>", "[SEP]": "</s>", "[UNK]": "<unk>"}
"""{BERT's name: fairseq's name} of the special types, in fairseq's order."""
NUM_SEPARATORS = 3
"""Number of tokens of a source that belong neither to the answer nor to the context."""
ANSWER_TOKENS = 100
"""Maximum number of tokens of an answer in a source."""


def read_types(vocabulary: Path) -> list[str]:
    """Returns the types of a vocab.txt in the order of their ids.

    Raises:
        UserError: If the file is missing, or fairseq's Dictionary cannot represent its types.
    """
    if not vocabulary.is_file():
        raise UserError(f"{vocabulary} is missing: expected BERT's {VOCABULARY}, with one type per line")
    check_size(str(vocabulary), vocabulary.stat().st_size)
    types = [*read_lines(vocabulary)]
    if missing := [name for name in SPECIALS if name not in types]:
        raise UserError(f"{vocabulary} has no {', '.join(missing)}: expected BERT's {VOCABULARY}")
    for name, count in Counter(types).items():
        if count > 1 or not name or name in SPECIALS.values():
            wrong = f"{name!r}, which is repeated, blank or a special type of fairseq"
            raise UserError(f"{vocabulary} has {wrong}: expected BERT's {VOCABULARY}")
    return types


def fairseq_types(vocabulary: Path) -> list[str]:
    """Returns the types for fairseq's dict.txt: all but the four special ones, in BERT's order."""
    return [name for name in read_types(vocabulary) if name not in SPECIALS]


def bert_token_ids(vocabulary: Path) -> list[int]:
    """Returns the token id in BERT for each token id in fairseq's Dictionary."""
    ids = {name: i for i, name in enumerate(read_types(vocabulary))}
    return [ids.pop(name) for name in SPECIALS] + list(ids.values())


class Source(NamedTuple):
    """The tokens of a source, and whether its answer and its context were truncated."""

    tokens: list[str]
    answer_cut: bool
    context_cut: bool


class WordPieces:
    """BERT's tokenizer, with fairseq's names for the special types.

    Args:
        vocabulary: Path of a vocab.txt.
        lowercase: Whether to lower-case text.
    """

    def __init__(self, vocabulary: Path, lowercase: bool):
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        types = {name: i for i, name in enumerate(read_types(vocabulary))}
        # Like the package's BertWordPieceTokenizer, but "[SEP]" inside a text is not a separator.
        self._tokenizer = Tokenizer(models.WordPiece(types, unk_token="[UNK]"))
        self._tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def _encoded(self, text):
        found = self._tokenizer.encode(text, add_special_tokens=False)
        return [SPECIALS.get(piece, piece) for piece in found.tokens], found.offsets

    def pieces(self, text: str) -> list[str]:
        """Returns the word pieces of a text; unknown words become ``<unk>``."""
        return self._encoded(text)[0]

    def text(self, pieces: list[str]) -> str:
        """Converts word pieces to text, restoring spaces heuristically."""
        return restore_spaces(re.sub(r" ##(?=\S)", "", " ".join(pieces)))

    def source(
        self, answer: str, context: str, longest: int, longest_answer: int, begins: int | None = None
    ) -> Source:
        """Returns the source for an answer and its context.

        Args:
            answer: Answer, truncated to its first ``longest_answer`` tokens.
            context: Context, truncated around the answer.
            longest: Maximum number of tokens of the source.
            longest_answer: Maximum number of tokens of the answer.
            begins: Index of the answer's first character in the context. By default, spaces are normalized
                and the answer's first occurrence is used.

        Raises:
            UserError: If the context does not contain the answer.
        """
        if begins is None:
            answer, context = normalize_spaces(answer), normalize_spaces(context)
            begins = find_answer(answer, context)
        answer_pieces, (pieces, offsets) = self.pieces(answer), self._encoded(context)
        kept = answer_pieces[:longest_answer]
        first = sum(end <= begins for _, end in offsets)
        last = sum(start < begins + len(answer) for start, _ in offsets)
        part = window(
            len(pieces), first, min(last, first + longest_answer), longest - NUM_SEPARATORS - len(kept)
        )
        return Source(
            ["<s>", *kept, "</s>", *pieces[part], "</s>"],
            len(kept) < len(answer_pieces),
            part.stop - part.start < len(pieces),
        )


def max_answer_tokens(longest: int) -> int:
    """Returns the maximum number of answer tokens in a source of at most ``longest`` tokens.

    It is 100, or half of the tokens that are not separators if that is less.
    """
    return min(ANSWER_TOKENS, (longest - NUM_SEPARATORS) // 2)


def normalize_spaces(text: str) -> str:
    """Replaces each run of white space by a single space."""
    return " ".join(text.split())


def find_answer(answer: str, context: str, near: int = 0) -> int:
    """Returns the index at which the answer occurs in its context, the one nearest to ``near`` if several.

    Raises:
        UserError: If the context does not contain the answer.
    """
    if not answer.strip():
        raise UserError("the answer is blank, but must be a part of the context")
    positions, position = [], context.find(answer)
    while position >= 0:
        positions.append(position)
        position = context.find(answer, position + 1)
    if not positions:
        raise UserError(f"the answer {shorten(answer)!r} is not in its context {shorten(context)!r}")
    return min(positions, key=lambda position: abs(position - near))


def shorten(text: str) -> str:
    """Returns a text truncated to 40 characters, for error messages."""
    return text if len(text) <= 40 else f"{text[:37]}..."


def window(length: int, first: int, last: int, room: int) -> slice:
    """Returns a slice of at most ``room`` of ``length`` items, centered on items ``first`` to ``last``."""
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


def restore_spaces(words: str) -> str:
    """Removes the spaces next to full-width characters and, by heuristic rules, around punctuation."""
    wide = [False, *(unicodedata.east_asian_width(x) in "WF" for x in words), False]
    text = "".join(x for i, x in enumerate(words) if x != " " or not (wide[i] or wide[i + 2]))
    for pattern, replacement in _SPACED:
        text = pattern.sub(replacement, text)
    return text


def read_preparation(data: Path) -> dict:
    """Returns the tokenization settings of a folder of data for ``question_generation``.

    Raises:
        UserError: If they are missing or those of another task.
    """
    note = data / PREPARATION
    try:
        found = json.loads(read_file(note))
        if found["tokenizer"] == "bert" and "longest" in found:
            return found
    except (OSError, ValueError, LookupError, TypeError):
        pass
    raise UserError(f"{note} is missing or not for question generation: prepare the data again")


def load(data: Path) -> WordPieces:
    """Returns the tokenizer of a folder of data for ``question_generation``."""
    return WordPieces(data / VOCABULARY, read_preparation(data)["lowercase"])
