"""Generates translations of sentences, and questions about answers in texts."""

import sys
import tempfile
from pathlib import Path

from fairseq_lrpe.data import text_codec, word_pieces
from fairseq_lrpe.experiments.spec.kinds.translation import read_hypotheses
from fairseq_lrpe.utils.files import PLUGIN, REPOSITORY, display_path
from fairseq_lrpe.utils.subprocesses import as_flags, run_command

QUESTION_SEARCH = {"lenpen": 0.6, "no_repeat_ngram_size": 3, "max_len_a": 0, "max_len_b": 50}
"""Flags of fairseq's beam search for questions, as in the LFHC and GCDF paper."""


def translate(sentences: list[str], checkpoint: Path, settings: dict, **flags: object) -> list[str]:
    """Returns the translations of raw sentences; blank sentences stay blank.

    Args:
        sentences: the sentences in the source language.
        checkpoint: a translation model.
        settings: settings of the checkpoint's task, with the data folder that defines the tokenization.
        flags: further flags of fairseq-interactive, with underscores.
    """
    data, source, target = REPOSITORY / settings["data"], settings["source_lang"], settings["target_lang"]
    codec, indices = text_codec.load(data), [i for i, sentence in enumerate(sentences) if sentence.strip()]
    lines = [codec.encode(source, sentences[i]) for i in indices]
    outputs = generate(lines, checkpoint, data, source_lang=source, target_lang=target, **flags)
    translated = {i: codec.decode(target, output) for i, output in zip(indices, outputs, strict=True)}
    return [translated.get(i, "") for i in range(len(sentences))]


def generate_questions(lines: list[str], checkpoint: Path, settings: dict, **flags: object) -> list[str]:
    """Returns a question for each line, which consists of an answer, a tab and a text with the answer.

    Long texts are truncated around the answer, with a warning. The other arguments are as in ``translate``.

    Raises:
        ValueError: a line has another format, or its text does not contain the answer.
    """
    data, sources = REPOSITORY / settings["data"], []
    pieces, facts = word_pieces.load(data), word_pieces.read_preparation(data)
    for number, line in enumerate(lines, 1):
        answer, tab, text = line.partition("\t")
        try:
            if not tab:
                raise ValueError("there is no tab: expected an answer, a tab, and a text with the answer")
            source = pieces.source(answer.strip(), text, facts["longest"], facts["longest_answer"])
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if source.context_cut:
            message = f"line {number}: the text is too long and was truncated around the answer"
            print(message, file=sys.stderr)
        sources.append(" ".join(source.tokens[:-1]))  # fairseq appends the final </s> itself
    task = "question_generation"
    questions = generate(sources, checkpoint, data, task=task, **QUESTION_SEARCH, **flags)
    return [pieces.text(question.split()) for question in questions]


GENERATORS = {"translation": translate, "question_generation": generate_questions}
"""{task of fairseq: function that generates text with models of this task}"""


def generate(lines: list[str], checkpoint: Path, data: Path, **flags: object) -> list[str]:
    """Returns the best hypothesis of fairseq-interactive, as tokenized text, for each tokenized line."""
    if not lines:
        return []
    with tempfile.TemporaryDirectory() as scratch:
        text, log = Path(scratch, "text"), Path(scratch, "log")
        text.write_text("".join(f"{line}\n" for line in lines))
        flags |= {"user_dir": display_path(PLUGIN), "path": checkpoint, "input": text}
        flags |= {"batch_size": 32, "buffer_size": 1024}
        run_command(list(map(str, ["fairseq-interactive", data, *as_flags(flags)])), log, cwd=REPOSITORY)
        return read_hypotheses(log, len(lines), "fairseq-interactive's output")[0]
