"""Synthetic problems in which only the answers are predicted: recall, lists of items, and needles in a text.

``MQAR`` is multi-query associative recall (Arora et al. 2023, "Zoology"); the distribution of the queries is
that of its public code (HazyResearch/zoology, zoology/data/multiquery_ar.py). The list problems are from
Kazemnejad et al. 2023 (Table 1); here, their symbols are tokens, not words of a prompt.

The functions that read a text import fairseq when they are called, because the import takes seconds, and the
other problems do not need fairseq.
"""

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

from fairseq_lrpe.data.corpora import prepare_command
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import PREPARE, file_exists

MARKS = ("<needle>", "<question>")
NSPECIAL = 4
"""Number of special tokens at the start of a dictionary of fairseq."""
POWER = 0.01
"""Exponent a of the power law of MQAR: the probability of a distance n is proportional to n^(a − 1)."""


class AnswerProblem:
    """Base class of problems whose sequences are lists of indices into ``symbols``."""

    characters = ""  # the symbols are not characters of a text
    symbols: list[str]
    min_length: int

    def sequence(self, random: Random, length: int, split: str) -> tuple[Sequence[int], Sequence[int]]:
        """Returns ``length`` + 1 indices of symbols, and the positions of the answers among them."""
        raise NotImplementedError

    def quarter(self, tokens: Sequence[int]) -> int | None:
        """Returns the quarter (1 to 4) of the text that has the answer, or None for other problems."""
        return None


@dataclass(frozen=True)
class ItemsProblem(AnswerProblem):
    """Base class of problems with a random number of items, from ``min_items`` to ``num_items``."""

    num_items: int = 16
    min_items: int = 1
    vocab_size: int = 256


class MQAR(ItemsProblem):
    """Multi-query associative recall: pairs of a key and a value, then each key once more, before its value.

    The number of pairs N is uniform among the powers of two from ``min_items`` to ``num_items``. The keys
    are different symbols of the first half of the vocabulary without symbol 0, the values of the second half.
    After the 2N symbols of the pairs, the key of query n is at the even offset 2g_n, where the g_n are drawn
    without replacement by a power law, which prefers short distances; the value follows the key and is the
    answer. All other symbols are random.
    """

    @property
    def symbols(self):
        return list(map(str, range(self.vocab_size)))

    @property
    def min_length(self):
        return 4 * self.num_items

    def sequence(self, random, length, split):
        rng = np.random.default_rng(random.getrandbits(64))
        half = self.vocab_size // 2
        pairs = 2 ** random.randint(math.ceil(math.log2(self.min_items)), int(math.log2(self.num_items)))
        tokens = rng.integers(self.vocab_size, size=length + 1)
        keys = rng.choice(half - 1, pairs, replace=False) + 1
        values = rng.choice(half, pairs, replace=False) + half
        tokens[: 2 * pairs : 2] = keys
        tokens[1 : 2 * pairs : 2] = values
        law = np.arange(1.0, (length - 2 * pairs) // 2 + 1) ** (POWER - 1)
        queries = 2 * pairs + 2 * rng.choice(len(law), pairs, replace=False, p=law / law.sum())
        tokens[queries] = keys
        tokens[queries + 1] = values
        return tokens, queries + 1


class ListProblem(ItemsProblem):
    """Base class of problems on a list of random items: ``> x_1 .. x_n = answer #``, followed by ``#``.

    The number of items is uniform in ``min_items``..``num_items``. The first ``#`` is predicted, too.
    ``answer(items)`` returns the items of the answer.
    """

    @property
    def num_types(self) -> int:
        """Number of different items."""
        return self.vocab_size

    @property
    def symbols(self):
        return [*map(str, range(self.num_types)), ">", "=", "#"]

    @property
    def min_length(self):
        return 2 * self.num_items + 2

    def sequence(self, random, length, split):
        start, equals, end = range(self.num_types, self.num_types + 3)
        count = random.randint(self.min_items, self.num_items)
        items = [random.randrange(self.num_types) for _ in range(count)]
        question = [start, *items, equals]
        answer = [*self.answer(items), end]
        filler = [end] * (length + 1 - len(question) - len(answer))
        return [*question, *answer, *filler], range(len(question), len(question) + len(answer))


class Copy(ListProblem):
    """List problem whose answer is the items in the same order."""

    def answer(self, items):
        return items


class Reverse(ListProblem):
    """List problem whose answer is the items in reverse order."""

    def answer(self, items):
        return items[::-1]


class Sort(ListProblem):
    """List problem whose answer is the items in ascending order."""

    def answer(self, items):
        return sorted(items)


class Sum(ListProblem):
    """List problem whose answer is the sum of the items, which are digits, modulo 10."""

    num_types = 10

    def answer(self, items):
        return [sum(items) % 10]


class Parity(ListProblem):
    """List problem whose answer is 1 if the number of ones among zeros and ones is odd, and 0 otherwise."""

    num_types = 2

    def answer(self, items):
        return [sum(items) % 2]


@dataclass(frozen=True)
class Needle(AnswerProblem):
    """Retrieval of a number from a text, which ends with a key as the question and its number as the answer.

    A key and its number are inserted at a random place of the text.

    The text starts at a random token of a split of ``haystack``, a folder of binarized text. The needle is
    ``<needle> k k d d d d d``, with random letters k as the key and random digits d, and its place is
    uniform. The sequence ends with ``<question> k k`` and the answer ``d d d d d``.
    """

    KEY = 2
    NUMBER = 5

    haystack: str = ""

    @property
    def symbols(self):
        return list(read_symbols(self.haystack))

    @property
    def min_length(self):
        return 2 * (1 + self.KEY + self.NUMBER)

    def sequence(self, random, length, split):
        number = read_symbols(self.haystack)
        text = read_text(self.haystack, split)
        needle, question = map(number.get, MARKS)
        key = [number[letter] for letter in random.choices(string.ascii_lowercase, k=self.KEY)]
        digits = [number[digit] for digit in random.choices(string.digits, k=self.NUMBER)]
        hay = length + 1 - self.min_length
        if len(text) < hay:
            raise UserError(
                f"{self.haystack} has {len(text)} tokens for {split}, fewer than the {hay} needed: pass a "
                "smaller --tokens-per-sample, or another --haystack"
            )
        start = random.randrange(len(text) - hay + 1)
        place = random.randint(0, hay)
        text = text[start : start + hay].astype(int) - NSPECIAL  # special tokens remain what they are
        tokens = [text[:place], [needle, *key, *digits], text[place:], [question, *key, *digits]]
        return np.concatenate(tokens), range(length + 1 - self.NUMBER, length + 1)

    def quarter(self, tokens):
        place = list(tokens).index(read_symbols(self.haystack)[MARKS[0]])
        return 1 + 4 * place // (len(tokens) - self.min_length + 1)


@cache
def read_symbols(folder: str) -> dict[str, int]:
    """Returns {symbol: index} of ``Needle``: the dictionary of the text, letters, digits and marks."""
    from fairseq.data import Dictionary

    path = Path(folder) / "dict.txt"
    if not file_exists(path):
        command = prepare_command(path.parent)
        remedy = f"`{command}` prepares it" if command else f"`{PREPARE}` lists the corpora"
        raise UserError(f"--haystack {folder} has no dict.txt: pass a folder of binarized text; {remedy}")
    types = Dictionary.load(str(path)).symbols[NSPECIAL:]
    symbols = dict.fromkeys([*types, *string.ascii_lowercase, *string.digits, *MARKS])
    return {symbol: index for index, symbol in enumerate(symbols)}


@cache
def read_text(folder: str, split: str) -> np.ndarray:
    """Returns a memory map of the tokens of a split."""
    from fairseq_lrpe.tasks.memory_lm import read_tokens

    return read_tokens(Path(folder) / split)


ANSWER_PROBLEMS = {cls.__name__.lower(): cls for cls in (MQAR, Copy, Reverse, Sort, Sum, Parity, Needle)}
