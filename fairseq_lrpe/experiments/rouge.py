"""ROUGE-L of questions: the longest common subsequence of what was generated and what was asked."""

import re
from collections.abc import Sequence

LANGUAGES = ("en", "zh")


def units(text: str, language: str) -> list[str]:
    """Returns what is compared: of English the words, runs of letters and digits; of Chinese the characters.

    Both are in lower case, since the pieces of a lower-casing vocabulary have no other one. English words are
    those of Google's rouge-score without stemming.
    """
    lower = text.lower()
    return re.findall("[a-z0-9]+", lower) if language == "en" else list("".join(lower.split()))


def longest_common(one: Sequence, other: Sequence) -> int:
    """Returns the length of the longest common subsequence (Hyyrö 2004: a row of the table is a number).

    Bit i of ``row`` is 0 where the length of the prefixes' subsequence grows from other[:i] to other[:i + 1].
    """
    places = {}
    for i, item in enumerate(other):
        places[item] = places.get(item, 0) | 1 << i
    full = (1 << len(other)) - 1
    row = full
    for item in one:
        found = row & places.get(item, 0)
        row = (row + found | row - found) & full
    return len(other) - row.bit_count()


def rouge_l(hypotheses: list[str], references: list[str], language: str) -> float:
    """Returns ROUGE-L in percent: the mean over the questions of F1 = 2 P R / (P + R).

    P and R are the length of the longest common subsequence over that of the hypothesis and of the reference
    (Lin 2004, with β = 1); F1 is 0 where one of them is empty. ValueError if there are not as many of both.
    """
    if language not in LANGUAGES:
        raise ValueError(f"ROUGE-L knows {' and '.join(LANGUAGES)}, not {language!r}")
    if len(hypotheses) != len(references) or not references:
        raise ValueError(
            f"there are {len(hypotheses):,} hypotheses and {len(references):,} references: each needs one"
        )
    total = 0.0
    for pair in zip(hypotheses, references, strict=True):
        hypothesis, reference = (units(text, language) for text in pair)
        if common := longest_common(hypothesis, reference):
            total += 2 * common / (len(hypothesis) + len(reference))
    return 100 * total / len(references)
