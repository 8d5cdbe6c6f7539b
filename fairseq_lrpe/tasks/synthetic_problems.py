"""The synthetic problems of RoPER (Harik and Jayasiri 2022), and the construction of all problems by name.

The web page of RoPER's paper shows the format of its problems. The page does not state the distributions of
numbers and positions, nor the lengths in Search, which are our choice (docs/deviations/synthetic.md).
"""

import math
from dataclasses import dataclass, fields
from random import Random
from string import ascii_lowercase, digits

from fairseq_lrpe.tasks.answer_problems import ANSWER_PROBLEMS, MQAR, AnswerProblem, ItemsProblem, Needle
from fairseq_lrpe.utils.errors import UserError


class QuestionProblem:
    """Base class of problems whose text consists of questions, each followed by its answer.

    ``problem(random)`` returns a random question and its answer, which ends with #.
    """

    def text(self, random: Random, length: int) -> str:
        """Returns a random text of ``length`` characters, whose last answer may be truncated."""
        text = ""
        while len(text) < length:
            text += "".join(self.problem(random))
        return text[:length]


@dataclass(frozen=True)
class Addition(QuestionProblem):
    """Addition step by step: ``?d=77+5; 7e0+5e0+0e0==12e0 and 7e1+0e1+1e1==8e1 and d==82#``.

    A step adds two digits and the carry, starting from the last digits. The number of digits of a summand is
    uniform in 1..``digits``, and the summand is uniform among the positive numbers with as many digits.
    """

    characters = digits + "?d=+; e#an"

    digits: int = 8

    def problem(self, random: Random) -> tuple[str, str]:
        return self.of(self._number(random), self._number(random))

    def _number(self, random):
        count = random.randint(1, self.digits)
        return random.randrange(10 ** (count - 1), 10**count)

    @staticmethod
    def of(x: int, y: int) -> tuple[str, str]:
        """Returns the question for x + y and its answer."""
        steps = []
        a = x
        b = y
        carry = 0
        while a or b or carry:
            k = len(steps)
            total = a % 10 + b % 10 + carry
            steps.append(f"{a % 10}e{k}+{b % 10}e{k}+{carry}e{k}=={total}e{k}")
            a = a // 10
            b = b // 10
            carry = total // 10
        return f"?d={x}+{y}; ", " and ".join([*steps, f"d=={x + y}#"])

    @property
    def min_length(self) -> int:
        nines = 10**self.digits - 1  # gives the longest problem
        return len("".join(self.of(nines, nines)))


@dataclass(frozen=True)
class Index(QuestionProblem):
    """Slicing of a string, such as ``?s='abc'; s[1:]=='bc'#``, with uniform letters and start."""

    characters = ascii_lowercase + digits + "?='; []:#"

    letters: int = 13

    def problem(self, random: Random) -> tuple[str, str]:
        word = "".join(random.choices(ascii_lowercase, k=self.letters))
        return self.of(word, random.randrange(self.letters))

    @staticmethod
    def of(word: str, start: int) -> tuple[str, str]:
        """Returns the question for ``word[start:]`` and its answer."""
        return f"?s='{word}'; s[{start}:]==", f"'{word[start:]}'#"

    @property
    def min_length(self) -> int:
        return max(len("".join(self.of("a" * self.letters, start))) for start in range(self.letters))


@dataclass(frozen=True)
class Search:
    """Text that copies parts of itself: random letters, then repeatedly ``>``, a copy and random letters.

    The text starts with ``first`` random letters out of four. A copy consists of ``copied`` consecutive
    letters of the previous text without ``>``, from a uniform start, and is followed by ``between`` random
    letters.
    """

    letters = "abcd"
    characters = letters + ">"

    first: int = 48
    copied: int = 48
    between: int = 4

    def text(self, random: Random, length: int) -> str:
        """Returns a random text of ``length`` characters."""
        text = letters = "".join(random.choices(self.letters, k=self.first))
        while len(text) < length:
            start = random.randrange(len(letters) - self.copied + 1)
            copy = letters[start : start + self.copied]
            more = copy + "".join(random.choices(self.letters, k=self.between))
            text = f"{text}>{more}"
            letters = letters + more
        return text[:length]

    @property
    def min_length(self) -> int:
        return self.first + 1 + self.copied + self.between

    def least_loss(self, text: str) -> float:
        """Returns the loss of an ideal model in nats per character, without the first character.

        The loss is ln 4 for a random letter, 0 for ``>``, and -ln p for a letter of a copy, where p is the
        fraction of the possible starts of the copy that continue with this letter (Bayes' rule).
        """
        nats = math.log(len(self.letters)) * (min(self.first, len(text)) - 1)
        letters = text[: self.first]
        position = self.first
        while position < len(text):
            copy_end = position + 1 + self.copied
            copy = text[position + 1 : copy_end]
            starts = range(len(letters) - self.copied + 1)
            continued = sum(letters.startswith(copy, start) for start in starts)
            nats += math.log(len(starts) / continued)
            random = text[copy_end : copy_end + self.between]
            nats += math.log(len(self.letters)) * len(random)
            position = copy_end + self.between
            letters += copy + random
        return nats / (len(text) - 1)


PROBLEMS = {"addition": Addition, "index": Index, "search": Search, **ANSWER_PROBLEMS}


def build_problem(name: str, sizes: object, length: int) -> QuestionProblem | Search | AnswerProblem:
    """Returns the problem ``name`` with the sizes that are attributes of ``sizes``, such as ``num_items``.

    Raises:
        UserError: if the name is unknown, sizes are invalid, ``haystack`` is missing, or ``length`` is too
            small for the longest question and its answer, or for a text with one copy.
    """
    if name not in PROBLEMS:
        raise UserError(f"unknown problem {name!r}: choose from {', '.join(PROBLEMS)}")
    values = {field.name: getattr(sizes, field.name, field.default) for field in fields(PROBLEMS[name])}
    for size, value in values.items():
        if size != "haystack" and value < 1:
            raise UserError(f"--{size.replace('_', '-')} must be at least 1, not {value}")
    problem = PROBLEMS[name](**values)
    if isinstance(problem, Search) and problem.copied > problem.first:
        raise UserError(f"--copied {problem.copied} must not exceed --first {problem.first}: reduce it")
    if isinstance(problem, Needle) and not problem.haystack:
        raise UserError("needle requires a text: pass --haystack with a folder of binarized text")
    if isinstance(problem, ItemsProblem) and problem.min_items > problem.num_items:
        raise UserError(
            f"--min-items {problem.min_items} must not exceed --num-items {problem.num_items}: reduce it"
        )
    if isinstance(problem, MQAR):
        check_mqar(problem)
    if length < problem.min_length:
        shown = ", ".join(f"{size} {value}" for size, value in values.items())
        raise UserError(
            f"--tokens-per-sample {length} is too short for {name} with {shown}: pass at least "
            f"{problem.min_length}"
        )
    return problem


def check_mqar(problem: MQAR) -> None:
    """Raises a UserError if a number of items is not a power of two, or has too few symbols."""
    if not (_is_power_of_two(problem.num_items) and _is_power_of_two(problem.min_items)):
        raise UserError("--num-items and --min-items of mqar must be powers of two, such as 8")
    least = 2 * problem.num_items + 2
    if problem.vocab_size < least:
        raise UserError(
            f"--vocab-size must be at least {least} for {problem.num_items} different keys and values"
        )


def _is_power_of_two(number):
    return number & (number - 1) == 0
