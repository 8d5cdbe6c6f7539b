"""Limits of sources are exact: the last number that a message or a docstring allows, and the next one."""

import json
from pathlib import Path

import numpy as np
import pytest
from small_corpora import write_files

from data_prep.corpora import lra_retrieval, pathfinder
from data_prep.corpora.glue import MAX_SCORE, TASKS, label
from data_prep.corpora.image_folders import ImageFile, check_classes
from data_prep.cut import cut
from data_prep.gpt2_bpe import first_types
from data_prep.labeled import Labeled
from data_prep.labeled_words import label_names, vocabulary
from data_prep.squad import paragraphs
from data_prep.validation import usable_rows
from fairseq_lrpe.utils.errors import UserError


def read_number(image):
    return np.array([int(image[0])])


def unreadable_images(folder, count):
    """Reads six images of which ``count`` are unreadable."""
    images = [(f"image {i}", ("x" if i < count else "1",)) for i in range(6)]
    return list(Labeled("images").readable(read_number, images, workers=1))


def broken_lines(folder, count):
    return list(usable_rows("x" * count + "1" * (6 - count), int, "file"))


def published_images(folder, count):
    rows = "imgs/0 sample_0.png 0 1 1.0 14\n" * count
    return pathfinder.published_rows(write_files(folder, {"metadata/0.npy": rows.encode()}))


def published_fields(folder, count, as_array=False):
    """Reads ten rows with ``count`` fields, of which the published files have 11."""
    rows = [["imgs/0", "sample_0.png", "0", "1", *"5678901"][:count]] * 10
    (folder / "metadata").mkdir(parents=True)
    path = folder / "metadata" / "0.npy"
    if as_array:
        np.save(path, np.array(rows))
    else:
        path.write_text("".join(f"{' '.join(row)}\n" for row in rows))
    return pathfinder.published_rows(folder)


def published_fields_of_array(folder, count):
    return published_fields(folder, count, as_array=True)


def rows_of_splits(folder, count):
    """Divides six rows into two for training, two for validation and ``count`` for test."""
    return cut(Path("file"), [[i] for i in range(6)], [2, 2, count])


def types_of_merges(folder, count):
    contents = {"vocab.bpe": b"#version\na b\nc d\n", "encoder.json": b"{}", "dict.txt": b""}
    return first_types(contents, count)


def classes_of_images(folder, count):
    images = [ImageFile(str(number), "0.png", None) for number in range(count)]
    return check_classes({"train": images, "valid": images})


def labels_of_texts(folder, count):
    lines = "".join(f"{number}\n" for number in range(count)) + "0\n"
    return label_names(write_files(folder, {"train.label": lines.encode()}))


def occurrences_of_a_word(folder, count):
    return vocabulary(write_files(folder, {"train.input0": b"word\n" * count}))


def bytes_of_articles(folder, count, articles=2):
    """Reads articles of exactly ``count`` bytes, from which two segments are needed."""
    title = b"\n = Title = \n\n"
    text = title + b"x" * (count - len(title)) + b"\n"
    return lra_retrieval.articles(write_files(folder, {"text": text * articles}) / "text")


def articles(folder, count):
    return bytes_of_articles(folder, 2 * lra_retrieval.SEGMENT, count)


def questions_with_a_wrong_answer(folder, count):
    """Reads three questions with an answer in their context, and ``count`` others."""
    questions = []
    for number in range(3 + count):
        answer = {"text": "a text" if number < 3 else "another", "answer_start": 0}
        questions.append({"question": "what?", "id": str(number), "answers": [answer]})
    content = {"data": [{"paragraphs": [{"context": "a text", "qas": questions}]}]}
    return paragraphs(write_files(folder, {"file": json.dumps(content).encode()}) / "file")


def score(folder, count):
    return label(str(count), TASKS["STS-B"])


LIMITS = [
    (unreadable_images, 3, 4),
    (broken_lines, 3, 4),
    (published_images, 10, 9),
    (published_fields, 4, 3),
    (published_fields_of_array, 4, 3),
    (rows_of_splits, 2, 3),
    (types_of_merges, 258, 259),
    (classes_of_images, 2, 1),
    (labels_of_texts, 2, 1),
    (occurrences_of_a_word, 4, 3),
    (bytes_of_articles, 512, 511),
    (articles, 2, 1),
    (questions_with_a_wrong_answer, 2, 3),
    (score, MAX_SCORE, MAX_SCORE + 1),
    (score, 0, -1),
]
"""A function that reads a source with a number of something, and that number as accepted and as refused"""


@pytest.mark.parametrize(("read_source", "accepted", "refused"), LIMITS)
def test_limits_are_exact(read_source, accepted, refused, tmp_path):
    read_source(tmp_path / "accepted", accepted)
    with pytest.raises(UserError):
        read_source(tmp_path / "refused", refused)


@pytest.mark.parametrize("count, last", [
    (5, "line 5 has e5"), (6, "line 5 has e5; and another error"), (8, "line 5 has e5; and 3 other errors"),
])  # fmt: skip
def test_different_errors_of_rows_are_listed_up_to_a_limit(count, last, capsys):
    """Errors that differ in numbers only are the same."""

    def parse(line):
        if line.startswith("0"):
            return line
        raise ValueError(f"has {line}")

    lines = [f"{letter}{number}" for number, letter in enumerate("abcdefgh"[:count], 1)]
    assert len(list(usable_rows([*lines, "a99", *"0" * 20], parse, "file"))) == 20
    first = "line 1 has a1; line 2 has b2; line 3 has c3; line 4 has d4"
    expected = f"file: left out {count + 1} of {count + 21} rows: {first}; {last}\n"
    assert capsys.readouterr().out == expected
