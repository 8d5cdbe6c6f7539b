"""Hypotheses in the output of fairseq-generate."""

import re
from pathlib import Path

from fairseq_lrpe.utils.errors import UserError

LINE = re.compile(r"^([HT])-(\d+)\t(?:-?[\d.]+(?:e-?\d+)?\t)?(.*)$", re.MULTILINE)
"""Lines of fairseq-generate's output: hypotheses (H) with a score, and targets (T) without a score."""


def read_hypotheses(log: Path, count: int) -> tuple[list[str], list[str]]:
    """Returns the tokenized hypotheses and targets (empty if not logged) of ``count`` sentences in a log.

    Raises UserError unless it has a hypothesis for exactly these sentences.
    """
    lines = parse_hypotheses(log.read_text("utf-8"))
    expected = set(range(count))
    logged = set(lines["H"])
    if logged != expected:
        wrong = f"lacks {len(expected - logged):,} of them and contains {len(logged - expected):,} others"
        raise UserError(
            f"expected one hypothesis for each of {count:,} sentences, but {log} {wrong}: "
            "run the command again"
        )
    return _by_number(lines["H"]), _by_number(lines["T"])


def parse_hypotheses(text: str) -> dict[str, dict[int, str]]:
    """Returns {"H" or "T": {number of the sentence: tokens}} of the first lines of each sentence."""
    lines = {"H": {}, "T": {}}
    for kind, number, tokens in LINE.findall(text):
        lines[kind].setdefault(int(number), tokens)
    return lines


def _by_number(sentences):
    return [sentences[number] for number in sorted(sentences)]
