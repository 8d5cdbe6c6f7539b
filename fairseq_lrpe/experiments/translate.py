"""Translates raw text by a trained model: ``scripts/translate.sh CHECKPOINT < text``.

A sentence a line is read, split as the model's data was prepared, translated, and put together again.
"""

import argparse
import tempfile
from pathlib import Path

from fairseq_lrpe import text_codec
from fairseq_lrpe.checkpoint import read_checkpoint
from fairseq_lrpe.commands import as_flags, run_command
from fairseq_lrpe.experiments.kinds.translation import found_in
from fairseq_lrpe.files import REPOSITORY
from fairseq_lrpe.programs import absolute, at_least, lines_on_stdin, one_sentence


def translate(sentences: list[str], checkpoint: Path, beam: int, cpu: bool) -> list[str]:
    """Returns the translations of raw sentences; a blank one stays blank."""
    settings = read_checkpoint(checkpoint, "scripts/train.sh mt/... makes one")["cfg"]["task"]
    if settings["_name"] != "translation":
        raise ValueError(f"{checkpoint} is of the task {settings['_name']}: one of translation is needed")
    data = REPOSITORY / settings["data"]
    codec, source, target = text_codec.load(data), settings["source_lang"], settings["target_lang"]
    told = [i for i, sentence in enumerate(sentences) if sentence.strip()]
    with tempfile.TemporaryDirectory() as scratch:
        text, log = Path(scratch, "text"), Path(scratch, "log")
        text.write_text("".join(f"{codec.encode(source, sentences[i])}\n" for i in told))
        flags = {"user_dir": "fairseq_lrpe", "path": checkpoint, "input": text, "beam": beam, "cpu": cpu}
        flags |= {"source_lang": source, "target_lang": target, "batch_size": 32, "buffer_size": 1024}
        command = ["fairseq-interactive", data, *as_flags(flags)]
        if told:
            run_command(list(map(str, command)), log, cwd=REPOSITORY)
        found = found_in(log.read_text())["H"] if told else {}
    translated = dict(zip(told, (codec.decode(target, found[n]) for n in range(len(told))), strict=True))
    return [translated.get(i, "") for i in range(len(sentences))]


def main():
    parser = argparse.ArgumentParser(prog="translate.sh", description=__doc__)
    parser.add_argument("checkpoint", type=absolute)
    parser.add_argument("--beam", type=at_least(1), default=5, help="default: %(default)s")
    parser.add_argument("--cpu", action="store_true", help="use no GPU")
    args = parser.parse_args()
    with one_sentence("translate"):
        print("\n".join(translate(lines_on_stdin(), args.checkpoint, args.beam, args.cpu)))


if __name__ == "__main__":
    main()
