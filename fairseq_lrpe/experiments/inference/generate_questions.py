"""Generating questions from answers and texts with a trained model."""

import sys
from pathlib import Path

from fairseq_lrpe.data import word_pieces
from fairseq_lrpe.experiments.inference.translate import generate
from fairseq_lrpe.utils.files import REPOSITORY

TASK = "question_generation"
SEARCH = {"lenpen": 0.6, "no_repeat_ngram_size": 3, "max_len_a": 0, "max_len_b": 50}
"""The paper's beam search settings."""


def generate_questions(lines: list[str], checkpoint: Path, settings: dict, **flags: object) -> list[str]:
    """Returns a question for each line, which has an answer, a tab and a text that contains the answer.

    Args:
        settings: those of the checkpoint's task.
        flags: further flags of fairseq-interactive.

    Raises:
        ValueError: a line has another format, or its text does not contain the answer.
    """
    data = REPOSITORY / settings["data"]
    pieces, facts = word_pieces.load(data), word_pieces.read_preparation(data)
    sources = [tokenize(number, line, pieces, facts) for number, line in enumerate(lines, 1)]
    # fairseq appends the final </s> itself.
    texts = [" ".join(source[:-1]) for source in sources]
    questions = generate(texts, checkpoint, data, task=TASK, **SEARCH, **flags)
    return [pieces.text(question.split()) for question in questions]


def tokenize(number: int, line: str, pieces: word_pieces.WordPieces, facts: dict) -> list[str]:
    """Returns the tokens of a line; long texts are truncated around the answer, with a warning."""
    answer, tab, text = line.partition("\t")
    if not tab:
        raise ValueError(f"line {number} has no tab: expected an answer, a tab, and a text with the answer")
    try:
        source = pieces.source(answer.strip(), text, facts["longest"], facts["longest_answer"])
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None
    if source.context_cut:
        print(f"line {number}: the text is too long and was truncated around the answer", file=sys.stderr)
    return source.tokens
