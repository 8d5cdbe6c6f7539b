"""The hypotheses in the output of fairseq-generate."""

import re
from pathlib import Path

from fairseq_lrpe.utils.errors import UserError

LINE = re.compile(r"^([HT])-(\d+)\t(?:-?[\d.]+(?:e-?\d+)?\t)?(.*)$", re.MULTILINE)
"""Pattern of the lines of fairseq-generate with hypotheses (H), which have a score, and targets (T)."""


def read_hypotheses(log: Path, count: int) -> tuple[list[str], list[str]]:
    """Returns the tokenized hypotheses and targets of ``count`` sentences in a log of fairseq-generate.

    The list of targets is empty if they are not logged.

    Raises:
        UserError: if the log lacks the hypothesis of a sentence, or contains hypotheses of other sentences.
    """
    lines = parse_hypotheses(log.read_text("utf-8"))
    expected = set(range(count))
    logged = set(lines["H"])
    if logged != expected:
        wrong = f"lacks those of {len(expected - logged):,} and has {len(logged - expected):,} others"
        raise UserError(
            f"expected one hypothesis for each of {count:,} sentences, but {log} {wrong}: "
            "run the command again"
        )
    return _by_number(lines["H"]), _by_number(lines["T"])


def parse_hypotheses(text: str) -> dict[str, dict[int, str]]:
    """Returns {"H" or "T": {number of the sentence: tokens}}, from the first such line of each sentence."""
    lines = {"H": {}, "T": {}}
    for kind, number, tokens in LINE.findall(text):
        lines[kind].setdefault(int(number), tokens)
    return lines


def _by_number(sentences):
    return [sentences[number] for number in sorted(sentences)]
