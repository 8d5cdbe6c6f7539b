"""Translate raw text by a trained model: ``scripts/translate.sh CHECKPOINT < text``.

A sentence a line is read, split as the model's data was prepared, translated, and put together again.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

import sacrebleu
import torch

import fairseq_lrpe.checkpoint  # noqa: F401
from fairseq_lrpe.experiments import compose
from fairseq_lrpe.commands import CommandFailed, ending_signals, run_command
from fairseq_lrpe.experiments.compose import REPOSITORY

LINE = re.compile(r"^([HT])-(\d+)\t(?:-?[\d.]+(?:e-?\d+)?\t)?(.*)$", re.M)
"""fairseq's hypotheses, with their score, and targets, without."""


def found_in(text):
    """{"H": {number: its best hypothesis}, "T": {number: its target}}, as tokens, in fairseq's output."""
    lines = {"H": {}, "T": {}}
    for kind, number, tokens in LINE.findall(text):
        lines[kind].setdefault(int(number), tokens)
    return lines


def codec_of(data):
    """What prepared the data folder; ValueError if that is not known."""
    from data_prep import door, text_codec

    try:
        return text_codec.load(data)
    except door.BadInput as error:
        raise ValueError(str(error)) from None


def read_generated(log, split, cfg):
    """{sacrebleu, signature, bleu, bleu_signature, sentences} of what fairseq-generate printed to ``log``.

    sacreBLEU is of raw text against the raw reference; bleu is of the words that the preparation made of
    both, as papers measured before it.
    """
    data, language = REPOSITORY / cfg.data, cfg.train.target_lang
    codec, lines = codec_of(data), found_in(log.read_text())
    raw = data.parent / "text" / f"{split}.{language}"
    references = raw.read_text().splitlines()
    if sorted(lines["H"]) != list(range(len(references))):
        raise ValueError(f"{log} has {len(lines['H'])} translations for the {len(references)} lines of {raw}")
    hypotheses = [lines["H"][i] for i in range(len(references))]
    measures = {
        "sacrebleu": (sacrebleu.BLEU(), [codec.decode(language, x) for x in hypotheses], references),
        "bleu": (
            sacrebleu.BLEU(tokenize="none", force=True),
            [codec.join(x) for x in hypotheses],
            [codec.join(lines["T"][i]) for i in range(len(references))],
        ),
    }
    scores = {
        name: metric.corpus_score(ours, [theirs]).score for name, (metric, ours, theirs) in measures.items()
    }
    signatures = {f"{name}_signature": str(metric.get_signature()) for name, (metric, *_) in measures.items()}
    return {**scores, **signatures, "sentences": len(references)}


def translate(sentences, checkpoint, beam, cpu):
    """The translations of raw sentences; a blank one stays blank."""
    settings = read_settings(checkpoint)
    data = REPOSITORY / settings["data"]
    codec, source, target = codec_of(data), settings["source_lang"], settings["target_lang"]
    told = [i for i, sentence in enumerate(sentences) if sentence.strip()]
    with tempfile.TemporaryDirectory() as scratch:
        text, log = Path(scratch, "text"), Path(scratch, "log")
        text.write_text("".join(f"{codec.encode(source, sentences[i])}\n" for i in told))
        flags = {"user_dir": "fairseq_lrpe", "path": checkpoint, "input": text, "beam": beam, "cpu": cpu}
        flags |= {"source_lang": source, "target_lang": target, "batch_size": 32, "buffer_size": 1024}
        command = ["fairseq-interactive", data, *compose.as_flags(flags)]
        if told:
            run_command(list(map(str, command)), log, cwd=REPOSITORY)
        found = found_in(log.read_text())["H"] if told else {}
    translated = dict(zip(told, (codec.decode(target, found[n]) for n in range(len(told))), strict=True))
    return [translated.get(i, "") for i in range(len(sentences))]


def read_settings(checkpoint):
    """The task of a checkpoint; ValueError if it is of no translation model of ours."""
    if not checkpoint.is_file():
        raise ValueError(f"the checkpoint {checkpoint} does not exist: scripts/train.sh mt/... makes one")
    try:
        cfg = torch.load(checkpoint, map_location="cpu", mmap=True, weights_only=True)["cfg"]
    except Exception as error:  # whatever torch says of what it cannot read
        reason = next(iter(str(error).splitlines()), error)
        raise ValueError(f"{checkpoint} is no checkpoint of fairseq that can be read ({reason})") from None
    if cfg["task"]["_name"] != "translation":
        raise ValueError(f"{checkpoint} is of the task {cfg['task']['_name']}: one of translation is needed")
    return cfg["task"]


def main():
    parser = argparse.ArgumentParser(
        prog="translate.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--beam", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--cpu", action="store_true", help="use no GPU")
    args = parser.parse_args()
    try:
        sentences = [line.removesuffix("\n") for line in sys.stdin]
        with ending_signals():
            translated = translate(sentences, args.checkpoint.absolute(), args.beam, args.cpu)
    except UnicodeDecodeError as error:
        sys.exit(f"translate: the text is not UTF-8 ({error}): convert it first")
    except (ValueError, CommandFailed) as error:
        sys.exit(f"translate: {error}")
    print("\n".join(translated))


if __name__ == "__main__":
    main()
