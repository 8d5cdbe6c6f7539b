"""ROUGE-L (Lin 2004) of generated questions, computed with Google's package rouge-score."""

import re
from functools import cache


class Tokenizer:
    """Tokenizer of lower-cased text into words for English ("en"), and into characters otherwise."""

    def __init__(self, language: str):
        self.language = language

    def tokenize(self, text: str) -> list[str]:
        lower = text.lower()
        return re.findall("[a-z0-9]+", lower) if self.language == "en" else list("".join(lower.split()))


@cache
def _scorer(language):
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], tokenizer=Tokenizer(language))


def f1(hypothesis: str, reference: str, language: str) -> float:
    """Returns ROUGE-L's F1 of two texts, from 0 to 1: 2 LCS / (m + n), or 0 if a text is empty.

    LCS is the length of the longest common subsequence of the texts' m and n tokens.
    """
    tokenize = Tokenizer(language).tokenize
    m = len(tokenize(hypothesis))
    n = len(tokenize(reference))
    if m == 0 or n == 0:
        return 0.0
    score = _scorer(language).score(reference, hypothesis)["rougeL"]
    lcs = round(score.precision * m)
    return 2 * lcs / (m + n)


def rouge_l(hypotheses: list[str], references: list[str], language: str) -> float:
    """Returns the mean F1 of ROUGE-L of the pairs of a hypothesis and its reference, in percent."""
    total = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        total += f1(hypothesis, reference, language)
    return 100 * total / len(references)
