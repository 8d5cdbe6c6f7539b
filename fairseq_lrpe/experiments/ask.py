"""Generates questions by a trained model: ``scripts/generate_questions.sh CHECKPOINT < text``.

A line is an answer, a tab, and a text in which it stands; a question a line is written. Of a text that is too
long for the model the part around the answer is read, which is told.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from fairseq_lrpe import word_pieces
from fairseq_lrpe.checkpoint import read_checkpoint
from fairseq_lrpe.commands import as_flags, run_command
from fairseq_lrpe.experiments.kinds.translation import found_in
from fairseq_lrpe.files import REPOSITORY
from fairseq_lrpe.programs import absolute, at_least, lines_on_stdin, one_sentence

TASK = "question_generation"
SEARCH = {"lenpen": 0.6, "no_repeat_ngram_size": 3, "max_len_a": 0, "max_len_b": 50}
"""How the paper searches."""


def ask(lines: list[str], checkpoint: Path, beam: int, cpu: bool) -> list[str]:
    """Returns a question for each line; ValueError where one is no answer and text, or has no such answer."""
    settings = read_checkpoint(checkpoint, "scripts/train.sh questions/... makes one")["cfg"]["task"]
    if settings["_name"] != TASK:
        raise ValueError(f"{checkpoint} is of the task {settings['_name']}: one of {TASK} is needed")
    data = REPOSITORY / settings["data"]
    pieces, facts = word_pieces.load(data), word_pieces.facts(data)
    sources = [source_of(number, line, pieces, facts) for number, line in enumerate(lines, 1)]
    if not sources:
        return []
    with tempfile.TemporaryDirectory() as scratch:
        text, log = Path(scratch, "text"), Path(scratch, "log")
        # fairseq puts the last </s> there itself.
        text.write_text("".join(f"{' '.join(source[:-1])}\n" for source in sources))
        flags = {"user_dir": "fairseq_lrpe", "path": checkpoint, "input": text, "beam": beam, "cpu": cpu}
        flags |= {"task": TASK, "batch_size": 32, "buffer_size": 1024, **SEARCH}
        run_command(list(map(str, ["fairseq-interactive", data, *as_flags(flags)])), log, cwd=REPOSITORY)
        found = found_in(log.read_text())["H"]
    return [pieces.text(found[n].split()) for n in range(len(sources))]


def source_of(number: int, line: str, pieces: word_pieces.WordPieces, facts: dict) -> list[str]:
    """Returns the tokens of a line's answer and text; ValueError where it has no such two."""
    answer, tab, text = line.partition("\t")
    if not tab:
        raise ValueError(f"line {number} has no tab: an answer, a tab, and a text with the answer are needed")
    try:
        source = pieces.source(answer.strip(), text, facts["longest"], facts["longest_answer"])
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None
    if source.windowed:
        print(f"line {number}: the text is long, and what is around the answer is read", file=sys.stderr)
    return source.tokens


def main():
    parser = argparse.ArgumentParser(prog="generate_questions.sh", description=__doc__)
    parser.add_argument("checkpoint", type=absolute)
    parser.add_argument("--beam", type=at_least(1), default=5, help="default: %(default)s")
    parser.add_argument("--cpu", action="store_true", help="use no GPU")
    args = parser.parse_args()
    with one_sentence("generate_questions"):
        for question in ask(lines_on_stdin(), args.checkpoint, args.beam, args.cpu):
            print(question)


if __name__ == "__main__":
    main()
