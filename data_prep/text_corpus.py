"""Base classes of running text in words, characters, GPT-2 BPE or SentencePiece units."""

import io
import shutil
from argparse import Namespace
from itertools import islice
from pathlib import Path
from typing import ClassVar

from data_prep import gpt2_bpe
from data_prep.binarize import SPLITS, concatenate, preprocess, split_files
from data_prep.corpus import Corpus, number
from data_prep.parallel import map_files
from data_prep.validation import check_text
from fairseq_lrpe.data.layout import vocabulary_size
from fairseq_lrpe.data.line_codec import SENTENCEPIECE, Characters, SentencePieces
from fairseq_lrpe.utils.cli import path_arg
from fairseq_lrpe.utils.files import read_lines, write_atomic

SENTENCES = 2_000_000  # maximum number of lines for SentencePiece training, limited by memory


class TextCorpus(Corpus):
    """Running text in words, separated by spaces; OUT/text has train.txt, valid.txt and possibly test.txt."""

    accepts = "a folder with train.txt, valid.txt and test.txt in UTF-8"

    def write_text(self, args, folder):
        copy_texts(split_files(args.source), folder, f"--from takes {self.accepts}")

    def prepare(self, args, folder):
        texts = {split: path for split, path in split_files(self.text(args)).items() if path.exists()}
        log, flags = args.out / "preprocess.log", self.flags(args)
        preprocess(self.encoded(args, texts, folder), folder, log, *flags, workers=args.workers)

    def encoded(self, args: Namespace, texts: dict[str, Path], folder: Path) -> dict[str, Path]:
        """Returns {split: file with the units of the text separated by spaces}.

        Files that are needed to encode other text are written to ``folder``, which becomes OUT/bin.
        """
        return texts

    def flags(self, args: Namespace) -> list:
        """Returns the flags of fairseq-preprocess that determine the dictionary."""
        return []


class CharacterCorpus(TextCorpus):
    """Running text in characters."""

    def encoded(self, args, texts, folder):
        return map_files(Characters().encode, texts, args.out / "text", "characters", args.workers)


class BytePairCorpus(TextCorpus):
    """Running text in GPT-2 BPE."""

    task = "masked_lm"
    options: ClassVar = {
        "--bpe": {
            "type": path_arg,
            "metavar": "FOLDER",
            "help": "folder with encoder.json, vocab.bpe and dict.txt of GPT-2 BPE (default: download them)",
        },
        "--bpe-types": number(
            "size of the vocabulary of a small model: the bytes and the first merges (default: all types)",
            gpt2_bpe.BYTES,
        ),
    }

    def prepare(self, args, folder):
        gpt2_bpe.provide(args.out / "gpt2_bpe", args.bpe, args.bpe_types)
        super().prepare(args, folder)

    def encoded(self, args, texts, folder):
        encode = gpt2_bpe.line_encoder(args.out / "gpt2_bpe")
        return map_files(encode, texts, args.out / "text", "bpe", args.workers)

    def flags(self, args):
        return ["--srcdict", args.out / "gpt2_bpe" / "dict.txt"]

    def vocabulary(self, data):
        size, expected = vocabulary_size(data / "dict.txt"), gpt2_bpe.FACTS["vocabulary_with_mask"]
        same = "as in the papers" if size + 1 == expected else f"not the papers' {expected:,}"
        return f"{size:,} types; with the <mask> of fairseq's masked_lm {size + 1:,}, {same}"


class SentencePieceCorpus(TextCorpus):
    """Running text in SentencePiece units; the model is learned on train.txt and saved in OUT/bin."""

    options: ClassVar = {
        "--sentencepiece": number("maximum vocabulary size (default: %(default)s)", default=2000)
    }

    def encoded(self, args, texts, folder):
        model = args.out / "text" / SENTENCEPIECE
        if not model.exists():
            print(f"Learning {SENTENCEPIECE}", flush=True)
            write_atomic(model, learn_pieces(args.sentencepiece, texts["train"]))
        shutil.copyfile(model, folder / SENTENCEPIECE)
        return map_files(SentencePieces(model).encode, texts, args.out / "text", "spm", args.workers)


def learn_pieces(types: int, text: Path) -> bytes:
    """Trains a SentencePiece model of at most ``types`` pieces and returns the content of its file.

    At most SENTENCES lines of the text are used, at equal distances.
    """
    import sentencepiece

    with text.open("rb") as lines:
        count = sum(1 for _ in lines)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=islice(read_lines(text), 0, None, -(-count // SENTENCES)),
            model_writer=model,
            vocab_size=types,
            model_type="bpe",
            character_coverage=1.0,
            hard_vocab_limit=False,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ValueError(
            f"SentencePiece cannot learn {types:,} pieces ({reason}): use more text or fewer pieces"
        ) from None
    return model.getvalue()


def copy_texts(texts: dict[str, Path], folder: Path, expected: str) -> None:
    """Copies {split: text file} to ``folder``/SPLIT.txt; a missing text is an error, unless it is a test.txt.

    Args:
        texts: {split: text file}.
        folder: Folder to write.
        expected: End of the error message if a text is missing.
    """
    for path in texts.values():
        check_text(path, expected)
    for split, path in texts.items():
        concatenate([path], folder / f"{split}.txt")


def write_splits(folder: Path, lines: dict[str, list[str]]) -> None:
    """Writes {split: lines} to train.txt, valid.txt and test.txt."""
    for split in SPLITS:
        path = folder / f"{split}.txt"
        path.write_text("".join(f"{line}\n" for line in lines[split]), encoding="utf-8", newline="\n")
