"""Your own train.txt, valid.txt and test.txt in SentencePiece's pieces -> fairseq's binaries.

The pieces are learned on train.txt; OUT/bin/spm.model has them. Without --from the text is the English prose
that ships inside Python, a paragraph a line: of every topic the first 80% of the characters are for training,
the next and the last 10% for validation and test; a paragraph that stands in several topics is kept once.
"""

import io
import pydoc_data.topics
import re
import shutil
from functools import cache, partial
from pathlib import Path

import sentencepiece

from data_prep.binarise import SPLITS, join, preprocess, texts_in
from data_prep.corpus import Corpus
from data_prep.door import check_text, noted_folder
from data_prep.each_line import each_line
from fairseq_lrpe.layouts import vocabulary_size
from fairseq_lrpe.programs import at_least
from fairseq_lrpe.text_codec import learn_pieces, sample

MODEL = "spm.model"


class OwnText(Corpus):
    """A person's own text, or the prose inside Python."""

    published = "the English prose inside Python"
    accepts = f"train.txt, valid.txt and test.txt, UTF-8 (default: {published})"
    pieces = 2000

    def add_options(self, parser):
        parser.add_argument(
            "--sentencepiece",
            type=at_least(1),
            default=self.pieces,
            metavar="N",
            help="pieces, fewer if the text has not as many (default: %(default)s)",
        )

    def source(self, args):
        return f"{super().source(args)} in {args.sentencepiece} sentence pieces"

    def check(self, args):
        for path in (texts_in(args.source) if args.source else {}).values():
            check_text(path, "--from takes a folder with train.txt, valid.txt and test.txt")

    def prepare(self, args, source, found):
        text = self.text(args, source, found)
        encoded = {split: args.out / f"{split}.spm" for split in SPLITS}
        for split, path in texts_in(text).items():
            if not encoded[split].exists():
                each_line(partial(in_pieces, text / MODEL), path, encoded[split], args.workers, newline=None)
        with noted_folder(args.out / "bin", source) as part:
            shutil.copyfile(text / MODEL, part / MODEL)
            preprocess(encoded, part, args.out / "preprocess.log", workers=args.workers)

    def write_text(self, args, found, folder):
        if args.source is None:
            self.write_published(folder)
        else:
            for path in texts_in(args.source).values():
                join([path], folder / path.name)
        print(f"Learning {MODEL}", flush=True)
        learned = io.BytesIO()
        learn_pieces(
            args.sentencepiece,
            "--sentencepiece",
            sentence_iterator=sample(folder / "train.txt"),
            model_writer=learned,
            model_type="bpe",
            character_coverage=1.0,
            hard_vocab_limit=False,
        )
        (folder / MODEL).write_bytes(learned.getvalue())

    def write_published(self, folder: Path) -> None:
        """Writes the texts that are taken without --from."""
        write_python_docs(folder)

    def vocabulary(self, data):
        return f"{vocabulary_size(data / 'dict.txt'):,} types, with those that fairseq adds"


@cache
def _processor(model):
    return sentencepiece.SentencePieceProcessor(model_file=str(model))


def in_pieces(model: Path, line: str) -> str:
    """Returns the pieces of a line, without the blanks at its ends."""
    return " ".join(_processor(model).encode(line.strip(), out_type=str))


def write_python_docs(folder: Path) -> None:
    """Writes the prose inside Python to ``folder``, in three texts that share no paragraph."""
    lines, seen = {split: [] for split in SPLITS}, set()
    for _, topic in sorted(pydoc_data.topics.topics.items()):
        paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", topic)]
        paragraphs = [p for p in dict.fromkeys(paragraphs) if p and p not in seen]
        seen.update(paragraphs)
        total, done = sum(map(len, paragraphs)), 0
        for paragraph in paragraphs:
            split = "train" if done < 0.8 * total else "valid" if done < 0.9 * total else "test"
            lines[split].append(paragraph)
            done += len(paragraph)
    for split, path in texts_in(folder).items():
        path.write_text("\n".join(lines[split]) + "\n", encoding="utf-8")
