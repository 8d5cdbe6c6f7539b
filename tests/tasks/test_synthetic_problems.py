"""Synthetic problems: published examples, distributions and sizes."""

import math
import re
from collections import Counter
from random import Random
from statistics import fmean
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_lrpe.tasks.synthetic_problems import PROBLEMS, Addition, Index, Search, build_problem
from fairseq_lrpe.utils.errors import UserError

PAGE = [
    (
        "?d=77+38446365; ",
        "7e0+5e0+0e0==12e0 and 7e1+6e1+1e1==14e1 and 0e2+3e2+1e2==4e2 and 0e3+6e3+0e3==6e3 and "
        "0e4+4e4+0e4==4e4 and 0e5+4e5+0e5==4e5 and 0e6+8e6+0e6==8e6 and 0e7+3e7+0e7==3e7 and d==38446442#",
    ),
    (
        "?d=66623+401; ",
        "3e0+1e0+0e0==4e0 and 2e1+0e1+0e1==2e1 and 6e2+4e2+0e2==10e2 and 6e3+0e3+1e3==7e3 and "
        "6e4+0e4+0e4==6e4 and d==67024#",
    ),
]


@pytest.mark.parametrize("question, answer", PAGE)
def test_published_addition_examples(question, answer):
    x, y = map(int, re.findall(r"\d+", question))
    assert Addition.of(x, y) == (question, answer)


@given(st.integers(0, 10**8), st.integers(0, 10**8))
def test_addition_steps_are_correct(x, y):
    _, answer = Addition.of(x, y)
    *steps, last = answer.removesuffix("#").split(" and ")
    digits, carried = [], 0
    for k, step in enumerate(steps):
        found = re.fullmatch(rf"(\d)e{k}\+(\d)e{k}\+(\d)e{k}==(\d+)e{k}", step)
        a, b, c, total = map(int, found.groups())
        assert c == carried and total == a + b + c
        digits.append(total % 10)
        carried = total // 10
    assert not carried and last == f"d=={x + y}"
    assert sum(digit * 10**k for k, digit in enumerate(digits)) == x + y


def test_published_index_example():
    assert Index.of("hcrmcofakwqgi", 6) == ("?s='hcrmcofakwqgi'; s[6:]==", "'fakwqgi'#")


@given(st.integers(0, 10**6), st.sampled_from(["addition", "index", "search"]))
def test_sequences_have_the_problems_characters(seed, name):
    problem = PROBLEMS[name]()
    text = problem.text(Random(seed), 300)
    assert len(text) == 300 and set(text) <= set(problem.characters)
    size = {"addition": 20, "index": 45, "search": 5}[name]
    assert len(set(problem.characters)) == len(problem.characters) == size
    assert text == problem.text(Random(seed), 300) != problem.text(Random(seed + 1), 300)


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(0, 9), st.integers(1, 5))
def test_search_copies_previous_letters(seed, copied, more, between):
    text = Search(first=copied + more, copied=copied, between=between).text(Random(seed), 200)
    first, *parts = text.split(">")
    assert len(first) == min(copied + more, 200)
    before = first
    for part in parts[:-1]:
        assert len(part) == copied + between and part[:copied] in before
        before += part


def test_least_loss_is_below_published_losses():
    def least(problem):
        return fmean(problem.least_loss(problem.text(Random(seed), 513)) for seed in range(40))

    assert 0.294 < least(Search()) < 0.297 < 0.3191
    assert least(Search(32, 32, 8)) > 0.3269


def test_least_loss_letter_by_letter():
    """The loss equals the sum over letters, given the starts that agree so far."""
    problem = Search(first=8, copied=6, between=2)
    for seed in range(20):
        text = problem.text(Random(seed), 100)
        letters, nats = text[:8], 7 * math.log(4)
        for part in text[8:].split(">")[1:]:
            places = [letters[i : i + 6] for i in range(len(letters) - 5)]
            for i, letter in enumerate(part):
                if i < 6:
                    agree = [place for place in places if place[i] == letter]
                    nats -= math.log(len(agree) / len(places))
                    places = agree
                else:
                    nats += math.log(4)
            letters += part
        assert problem.least_loss(text) == pytest.approx(nats / 99)


@pytest.mark.parametrize("name, sizes, length, message", [
    ("sums", {}, 512, "unknown problem 'sums': choose from addition, index, search"),
    ("search", {"first": 4}, 512, "--copied 48 must not exceed --first 4"),
    ("addition", {}, 100, "--tokens-per-sample 100 is too short for addition"),
    ("search", {}, 64, "pass at least 101"),
    ("needle", {}, 40, "needle requires a text: pass --haystack"),
    ("mqar", {"num_items": 6}, 40, "--num-items and --min-items of mqar must be powers of two"),
    ("mqar", {"num_items": 8, "vocab_size": 16}, 40, "--vocab-size must be at least 18"),
    ("mqar", {}, 40, "is too short for mqar .*: pass at least 64"),
    ("copy", {"num_items": 20}, 40, "is too short for copy .*: pass at least 42"),
    ("sort", {"num_items": 4, "min_items": 5}, 40, "--min-items 5 must not exceed --num-items 4"),
    ("sum", {"min_items": 0}, 40, "--min-items must be at least 1, not 0"),
])  # fmt: skip
def test_invalid_sizes(name, sizes, length, message):
    with pytest.raises(UserError, match=message):
        build_problem(name, SimpleNamespace(**sizes), length)


@given(st.integers(0, 10**6), st.sampled_from([Addition(3), Index(5)]))
def test_sequences_are_consecutive_problems(seed, problem):
    text = problem.text(Random(seed), 1000)
    questions = text.split("?")
    assert questions[0] == "" and all(question.endswith("#") for question in questions[1:-1])
    assert max(map(len, questions)) + 1 <= problem.min_length


def test_numbers_and_starts_are_uniform():
    random, counts = Random(0), Counter()
    for _ in range(4000):
        question, _ = Addition(4).problem(random)
        counts.update(map(len, re.findall(r"\d+", question)))
    assert counts.keys() == {1, 2, 3, 4} and all(abs(n - 2000) < 200 for n in counts.values())
    places = Counter(re.search(r"\[(\d+)", Index(5).problem(random)[0])[1] for _ in range(5000))
    assert places.keys() == set("01234") and all(abs(n - 1000) < 130 for n in places.values())
