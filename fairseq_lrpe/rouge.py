"""ROUGE-L (Lin 2004) of questions: how much of one stands in another in the same order."""

import re
from collections.abc import Sequence

LANGUAGES = ("en", "zh")


def units(text: str, language: str) -> list[str]:
    """Returns what is compared: of English the words, runs of letters and digits; of Chinese the characters.

    Both are in lower case, since the pieces of a lower-casing vocabulary have no other one. English words are
    those of Google's rouge-score without stemming; blanks do not count.
    """
    lower = text.lower()
    return re.findall("[a-z0-9]+", lower) if language == "en" else list("".join(lower.split()))


def common(one: Sequence, other: Sequence) -> int:
    """Returns the length of the longest common subsequence (Hyyrö 2004: a row of the table is a number).

    Bit i of ``row`` is 0 where the length of the prefixes' subsequence grows from other[:i] to other[:i + 1].
    """
    places = {}
    for i, item in enumerate(other):
        places[item] = places.get(item, 0) | 1 << i
    row = full = (1 << len(other)) - 1
    for item in one:
        found = row & places.get(item, 0)
        row = (row + found | row - found) & full
    return len(other) - row.bit_count()


def f1(one: Sequence, other: Sequence) -> float:
    """Returns 2 P R / (P + R), P and R the common length over each one's own; 0 where one is empty."""
    return 2 * common(one, other) / (len(one) + len(other)) if one and other else 0.0


def rouge_l(hypotheses: list[str], references: list[str], language: str) -> float:
    """Returns the mean F1 of hypotheses and their references in percent.

    ValueError if there are not as many of both, or none, or for another language than "en" and "zh".
    """
    if language not in LANGUAGES:
        raise ValueError(f"ROUGE-L knows {' and '.join(LANGUAGES)}, not {language!r}")
    if len(hypotheses) != len(references) or not references:
        raise ValueError(
            f"{len(hypotheses):,} hypotheses cannot be compared with {len(references):,} references"
        )
    pairs = zip(hypotheses, references, strict=True)
    return 100 * sum(f1(units(h, language), units(r, language)) for h, r in pairs) / len(references)
