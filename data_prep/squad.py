"""Reading of questions in the format of SQuAD (Rajpurkar et al. 2016), which CMRC 2018 has, too."""

import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from data_prep.validation import is_unicode
from fairseq_lrpe.data import word_pieces
from fairseq_lrpe.data.word_pieces import normalize_spaces
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import read_file

LAYOUT = "data > paragraphs > context and qas > question and answers > text and answer_start"
SKIPPED = "questions are blank or have no answer and are skipped"
LEFT_OUT = "questions have an answer that is not in its context and are skipped"
NO_UNICODE = "questions have an unpaired surrogate, which is not a character, and are skipped"
MOVED = "answers were moved from answer_start to their nearest occurrence"


class Question(NamedTuple):
    question: str
    answer: str
    context: str
    begins: int  # index of the answer's first character in the context


def paragraphs(path: Path) -> dict[str, list[Question]]:
    """Returns {context: answerable questions}; prints the numbers of skipped questions and moved answers.

    If an answer is not at answer_start, its nearest occurrence in the context is used. Questions whose answer
    or answer_start is not in the context, or whose text is not Unicode, are skipped.

    Raises:
        UserError: if the file does not have SQuAD's format, or at least half of the answers are skipped.
    """
    rows = {}
    counts = Counter()
    for context, question, answers in read_questions(path):
        if not answers or not question.strip():
            counts[SKIPPED] += 1
            continue
        text, start = answers[0]
        if not is_unicode(context, question, text):
            counts[NO_UNICODE] += 1
            continue
        line = normalize_spaces(context)
        answer = normalize_spaces(text)
        if not 0 <= start < len(context) or not answer or answer not in line:
            counts[LEFT_OUT] += 1
        else:
            near = len(normalize_spaces(f"{context[:start]}x")) - 1
            begins = word_pieces.find_answer(answer, line, near)
            counts[MOVED] += context[start : start + len(text)] != text
            row = Question(normalize_spaces(question), answer, line, begins)
            rows.setdefault(line, []).append(row)
    total = sum(map(len, rows.values()))
    for words, count in counts.items():
        if count:
            print(f"{path.name}: {count:,} {words}", flush=True)
    if (broken := counts[LEFT_OUT] + counts[NO_UNICODE]) >= total:
        few = f"has {total:,} questions with an answer in their context"
        raise UserError(f"{path} {few}, and {broken:,} without: correct the answers")
    return rows


def read_questions(path: Path) -> list[tuple[str, str, list[tuple[str, int]]]]:
    """Returns (context, question, answers) of each question of a file.

    The answers are [(text, answer_start)] of the first answer, or [] if the question has none.
    """
    text = read_file(path)
    try:
        content = json.loads(text)
        # A file may consist of the list of articles only.
        articles = content if isinstance(content, list) else content["data"]
        questions = []
        for article in articles:
            for paragraph in article["paragraphs"]:
                for entry in paragraph["qas"]:
                    context = value(paragraph, "context", str)
                    question = value(entry, "question", str)
                    questions.append((context, question, first_answer(entry)))
        return questions
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"{path} does not have SQuAD's format ({error!r}): expected {LAYOUT}") from None


def first_answer(entry: dict) -> list[tuple[str, int]]:
    answers = [] if entry.get("is_impossible") else value(entry, "answers", list)[:1]
    return [(value(answer, "text", str), value(answer, "answer_start", int)) for answer in answers]


def value(entry: dict, key: str, kind: type) -> object:
    if not isinstance(entry[key], kind):
        raise TypeError(f"{key} is of type {type(entry[key]).__name__} instead of {kind.__name__}")
    return entry[key]
