"""ROUGE-L against Google's rouge-score and against its definition."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score import rouge_scorer

from fairseq_lrpe.data.rouge import rouge_l

WORDS = ["The", "the", "cat", "isn't", "on", "3.5%", "mat-like", "Zoë", "?", "", "--"]
ENGLISH = st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join)
CHINESE = st.text("中国北京人 Aa。\u3000\n", max_size=14)


def longest_common_subsequence(one, other):
    @cache
    def length(i, k):
        if not i or not k:
            return 0
        if one[i - 1] == other[k - 1]:
            return length(i - 1, k - 1) + 1
        return max(length(i - 1, k), length(i, k - 1))

    return length(len(one), len(other))


@settings(deadline=None)
@given(st.lists(st.tuples(ENGLISH, ENGLISH), min_size=1, max_size=8))
def test_english_scores_equal_rouge_score(pairs):
    scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=False)
    scores = [scorer.score(reference, hypothesis)["rougeL"].fmeasure for hypothesis, reference in pairs]
    hypotheses, references = zip(*pairs, strict=True)
    actual = rouge_l(list(hypotheses), list(references), "en")
    assert actual == pytest.approx(100 * sum(scores) / len(scores), abs=1e-9)


@settings(deadline=None)
@given(st.lists(st.tuples(CHINESE, CHINESE), min_size=1, max_size=8))
def test_chinese_is_compared_by_character(pairs):
    total = 0
    for pair in pairs:
        one, other = ("".join(text.lower().split()) for text in pair)
        if shared := longest_common_subsequence(one, other):
            total += 2 * shared / (len(one) + len(other))
    hypotheses, references = zip(*pairs, strict=True)
    assert rouge_l(list(hypotheses), list(references), "zh") == pytest.approx(
        100 * total / len(pairs), abs=1e-9
    )
