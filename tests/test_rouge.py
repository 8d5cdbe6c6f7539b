"""ROUGE-L beside Google's rouge-score, and beside its definition."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score import rouge_scorer

from fairseq_lrpe.rouge import common, rouge_l

WORDS = ["The", "the", "cat", "isn't", "on", "3.5%", "mat-like", "Zoë", "?", "", "--"]
ENGLISH = st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join)
CHINESE = st.text("中国北京人 Aa。\u3000\n", max_size=14)


def defined(one, other):
    """The length of the longest common subsequence by its recursive definition."""

    @cache
    def of(i, k):
        if not i or not k:
            return 0
        if one[i - 1] == other[k - 1]:
            return of(i - 1, k - 1) + 1
        return max(of(i - 1, k), of(i, k - 1))

    return of(len(one), len(other))


@settings(deadline=None)
@given(st.lists(st.tuples(ENGLISH, ENGLISH), min_size=1, max_size=8))
def test_english_is_that_of_rouge_score(pairs):
    scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=False)
    scores = [scorer.score(reference, hypothesis)["rougeL"].fmeasure for hypothesis, reference in pairs]
    hypotheses, references = zip(*pairs, strict=True)
    found = rouge_l(list(hypotheses), list(references), "en")
    assert found == pytest.approx(100 * sum(scores) / len(scores), abs=1e-9)


@given(st.lists(st.tuples(CHINESE, CHINESE), min_size=1, max_size=8))
def test_chinese_is_by_characters(pairs):
    total = 0
    for pair in pairs:
        one, other = ("".join(text.lower().split()) for text in pair)
        if shared := defined(one, other):
            precision, recall = shared / len(one), shared / len(other)
            total += 2 * precision * recall / (precision + recall)
    hypotheses, references = zip(*pairs, strict=True)
    found = rouge_l(list(hypotheses), list(references), "zh")
    assert found == pytest.approx(100 * total / len(pairs), abs=1e-9)


@given(st.lists(st.integers(0, 4), max_size=90), st.lists(st.integers(0, 4), max_size=90))
def test_longest_common_subsequence(one, other):
    assert common(one, other) == defined(tuple(one), tuple(other)) == common(other, one)


def test_examples():
    assert rouge_l(["the cat sat"], ["The cat, it sat!"], "en") == pytest.approx(100 * 6 / 7)
    assert rouge_l(["北京在哪里？", ""], ["北京 在哪？", "人"], "zh") == pytest.approx(50 * 10 / 11)
    assert rouge_l(["iphone"], ["iPhone"], "zh") == 100 and rouge_l(["?"], ["!"], "en") == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((["a"], ["a", "b"], "en"), "1 hypotheses cannot be compared with 2 references"),
        (([], [], "en"), "0 hypotheses cannot be compared with 0"),
        ((["a"], ["a"], "de"), "ROUGE-L knows en and zh, not 'de'"),
    ],
)
def test_what_cannot_be_compared(given, message):
    with pytest.raises(ValueError, match=message):
        rouge_l(*given)
