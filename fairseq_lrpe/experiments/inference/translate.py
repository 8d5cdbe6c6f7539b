"""Translating raw text with a trained model."""

import tempfile
from pathlib import Path

from fairseq_lrpe.data import text_codec
from fairseq_lrpe.experiments.spec.kinds.translation import read_hypotheses
from fairseq_lrpe.utils.files import REPOSITORY
from fairseq_lrpe.utils.subprocesses import as_flags, run_command


def translate(sentences: list[str], checkpoint: Path, settings: dict, **flags: object) -> list[str]:
    """Returns the translations of raw sentences; blank sentences stay blank.

    Sentences are tokenized like the model's training data, translated and detokenized.

    Args:
        settings: those of the checkpoint's task.
        flags: further flags of fairseq-interactive.
    """
    data, source, target = REPOSITORY / settings["data"], settings["source_lang"], settings["target_lang"]
    codec, indices = text_codec.load(data), [i for i, sentence in enumerate(sentences) if sentence.strip()]
    lines = [codec.encode(source, sentences[i]) for i in indices]
    flags |= {"source_lang": source, "target_lang": target}
    outputs = map(codec.decode, [target] * len(lines), generate(lines, checkpoint, data, **flags))
    translated = dict(zip(indices, outputs, strict=True))
    return [translated.get(i, "") for i in range(len(sentences))]


def generate(lines: list[str], checkpoint: Path, data: Path, **flags: object) -> list[str]:
    """Returns the best hypothesis of fairseq-interactive for each tokenized line."""
    if not lines:
        return []
    with tempfile.TemporaryDirectory() as scratch:
        text, log = Path(scratch, "text"), Path(scratch, "log")
        text.write_text("".join(f"{line}\n" for line in lines))
        flags |= {"user_dir": "fairseq_lrpe", "path": checkpoint, "input": text}
        flags |= {"batch_size": 32, "buffer_size": 1024}
        run_command(list(map(str, ["fairseq-interactive", data, *as_flags(flags)])), log, cwd=REPOSITORY)
        return read_hypotheses(log, len(lines))[0]
