"""The algorithmic problems of RoPER (Harik and Jayasiri 2022), as text made from random numbers.

The paper's page shows the form of each problem. What it leaves open is ours: how numbers and places are
drawn, and the lengths of Search.
"""

import math
from dataclasses import dataclass, fields
from random import Random
from string import ascii_lowercase, digits


@dataclass(frozen=True)
class Asked:
    """A problem that is asked and answered: problems follow one another in a sequence."""

    def problem(self, random: Random) -> tuple[str, str]:
        """Returns a question, and its answer up to the # that ends it."""
        raise NotImplementedError

    def text(self, random: Random, length: int) -> str:
        """Returns ``length`` characters of a sequence; the last problem is cut."""
        parts, characters = [], 0
        while characters < length:
            parts += self.problem(random)
            characters += len(parts[-2]) + len(parts[-1])
        return "".join(parts)[:length]


@dataclass(frozen=True)
class Addition(Asked):
    """Adds two numbers step by step: ``?d=77+5; 7e0+5e0+0e0==12e0 and 7e1+0e1+1e1==8e1 and d==82#``.

    A step adds two digits and what is carried, the last digits first, while there are any. How many digits a
    number has is uniform in 1..``digits``, and so is a number of so many digits, 0 aside.
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
        """Returns the question for x + y, and its answer."""
        steps, a, b, carry = [], x, y, 0
        while a or b or carry:
            k, total = len(steps), a % 10 + b % 10 + carry
            steps.append(f"{a % 10}e{k}+{b % 10}e{k}+{carry}e{k}=={total}e{k}")
            a, b, carry = a // 10, b // 10, total // 10
        return f"?d={x}+{y}; ", " and ".join([*steps, f"d=={x + y}#"])

    @property
    def longest(self) -> int:
        """Returns how long a problem can be."""
        nines = 10**self.digits - 1
        return len("".join(self.of(nines, nines)))


@dataclass(frozen=True)
class Index(Asked):
    """Asks for what follows in a string from a place on: ``?s='abc'; s[1:]=='bc'#``.

    The letters are uniform in a-z, the place in the string's.
    """

    characters = ascii_lowercase + digits + "?='; []:#"

    letters: int = 13

    def problem(self, random: Random) -> tuple[str, str]:
        word = "".join(random.choices(ascii_lowercase, k=self.letters))
        return self.of(word, random.randrange(self.letters))

    @staticmethod
    def of(word: str, place: int) -> tuple[str, str]:
        """Returns the question for what ``word`` has from a place on, and its answer."""
        return f"?s='{word}'; s[{place}:]==", f"'{word[place:]}'#"

    @property
    def longest(self) -> int:
        """Returns how long a problem can be."""
        return max(len("".join(self.of("a" * self.letters, place))) for place in range(self.letters))


@dataclass(frozen=True)
class Search:
    """A text that copies itself: random letters, then again and again ``>``, a copy, random letters.

    It begins with ``first`` letters of four; a copy has ``copied``, from a place that is uniform among
    those of all letters so far, the ``>`` left out; ``between`` random letters follow it.
    """

    letters = "abcd"
    characters = letters + ">"

    first: int = 48
    copied: int = 48
    between: int = 4

    def text(self, random: Random, length: int) -> str:
        """Returns ``length`` characters of a sequence."""
        text = letters = "".join(random.choices(self.letters, k=self.first))
        while len(text) < length:
            place = random.randrange(len(letters) - self.copied + 1)
            more = letters[place : place + self.copied] + "".join(
                random.choices(self.letters, k=self.between)
            )
            text, letters = f"{text}>{more}", letters + more
        return text[:length]

    @property
    def longest(self) -> int:
        """Returns how long a sequence is that has one copy."""
        return self.first + 1 + self.copied + self.between

    def least_loss(self, text: str) -> float:
        """Returns the nats a character of who knows how ``text`` is made, its first character aside.

        A random letter costs ln 4, and ``>`` nothing. Of a copy's letters each costs -ln of the part of the
        places, among those that agree with the copy so far, that go on with it (Bayes' rule).
        """
        nats = math.log(len(self.letters)) * (min(self.first, len(text)) - 1)
        letters, at = text[: self.first], self.first
        while at < len(text):
            copy = text[at + 1 : at + 1 + self.copied]
            places = [letters[i : i + self.copied] for i in range(len(letters) - self.copied + 1)]
            nats += math.log(len(places) / sum(place.startswith(copy) for place in places))
            random = text[at + 1 + self.copied : at + 1 + self.copied + self.between]
            nats += math.log(len(self.letters)) * len(random)
            at += 1 + self.copied + self.between
            letters += copy + random
        return nats / (len(text) - 1)


PROBLEMS = {"addition": Addition, "index": Index, "search": Search}


def problem_of(name: str, sizes: object, length: int) -> Asked | Search:
    """Returns the problem ``name`` with its own of the attributes of ``sizes``, for sequences of ``length``.

    A size that is not given has its default.

    ValueError in one sentence for an unknown problem, for sizes below 1 and for a length that is too short.
    """
    if name not in PROBLEMS:
        raise ValueError(f"unknown problem {name!r}: choose from {', '.join(PROBLEMS)}")
    own = {field.name: getattr(sizes, field.name, field.default) for field in fields(PROBLEMS[name])}
    for size, value in own.items():
        if value < 1:
            raise ValueError(f"--{size} {value}: a problem needs at least 1")
    if name == "search" and own["copied"] > own["first"]:
        raise ValueError(
            f"--copied {own['copied']}: the first copy is of the first letters, and --first is {own['first']}"
        )
    problem = PROBLEMS[name](**own)
    if length < problem.longest:
        what = f"{name} with {', '.join(f'{size} {value}' for size, value in own.items())}"
        raise ValueError(
            f"--tokens-per-sample {length} is too short for {what}: give at least {problem.longest}"
        )
    return problem
