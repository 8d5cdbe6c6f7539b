"""ROUGE-L: by rouge-score's own numbers in English, and by its definition in characters."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from fairseq_lrpe.rouge import f1, rouge_l, units

WORDS = st.lists(st.sampled_from("What who is the U.S. Born 1912 don't é".split()), max_size=12).map(" ".join)


@given(WORDS, WORDS)
def test_english_is_rouge_scores(one, other):
    expected = RougeScorer(["rougeL"]).score(other, one)["rougeL"].fmeasure
    assert rouge_l([one], [other], "en") == pytest.approx(100 * expected, abs=1e-9)


def plain(one, other):
    """The definition: with or without the last character of each."""

    @cache
    def longest(i, j):
        if not i or not j:
            return 0
        if one[i - 1] == other[j - 1]:
            return longest(i - 1, j - 1) + 1
        return max(longest(i - 1, j), longest(i, j - 1))

    shared = longest(len(one), len(other))
    if not shared:
        return 0.0
    precision, recall = shared / len(one), shared / len(other)
    return 2 * precision * recall / (precision + recall)


@given(st.text("谁在哪里？A1", max_size=80), st.text("谁在哪里？a1", max_size=80))
def test_characters_are_by_definition(one, other):
    one, other = units(one, "zh"), units(other, "zh")
    assert f1(one, other) == pytest.approx(plain(one, other), abs=1e-12)


def test_units_and_means():
    assert units("战国 NBA 无双", "zh") == list("战国nba无双")
    assert units("What's 3.5?", "en") == ["what", "s", "3", "5"]
    assert rouge_l(["谁", "他", ""], ["谁", "她", "它"], "zh") == pytest.approx(100 / 3)
    with pytest.raises(ValueError, match="2 texts cannot be compared with 1"):
        rouge_l(["a", "b"], ["a"], "en")
