"""ROUGE-L (Lin 2004) of questions: how much of one stands in another in the same order."""

import re
from collections import defaultdict


def units(text: str, language: str) -> list[str]:
    """Returns what is compared of a text in lower case: words of "en", else characters but for blanks."""
    return re.findall(r"[a-z0-9]+", text.lower()) if language == "en" else list("".join(text.lower().split()))


def common(one: list[str], other: list[str]) -> int:
    """Returns the length of the longest common subsequence, by Hyyrö's bits (2004)."""
    places = defaultdict(int)
    for i, unit in enumerate(one):
        places[unit] |= 1 << i
    bits = full = (1 << len(one)) - 1
    for unit in other:
        found = bits & places[unit]
        bits = (bits + found | bits - found) & full
    return len(one) - bits.bit_count()


def f1(one: list[str], other: list[str]) -> float:
    """Returns F1, 2 · common / (len(one) + len(other)); 0 where one is empty."""
    return 2 * common(one, other) / (len(one) + len(other)) if one and other else 0.0


def rouge_l(hypotheses: list[str], references: list[str], language: str) -> float:
    """Returns the mean F1 of pairs of texts in percent; ValueError where there are not as many of each."""
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} texts cannot be compared with {len(references)}")
    pairs = zip(hypotheses, references, strict=True)
    return 100 * sum(f1(units(h, language), units(r, language)) for h, r in pairs) / len(references)
