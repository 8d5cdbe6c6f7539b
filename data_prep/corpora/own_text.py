"""Your own train.txt, valid.txt and test.txt in SentencePiece units, for fairseq's language_modeling.

The SentencePiece model is learned on train.txt and saved as OUT/bin/spm.model. Without --from, the text is
the English documentation included in Python, with one paragraph per line and without duplicates. Of every
topic, the first 80% of the characters are used for training, the next 10% for validation, the rest for test.
"""

import pydoc_data.topics
import re
import shutil
from argparse import Namespace
from pathlib import Path

from data_prep.binarize import SPLITS, concatenate, preprocess, split_files
from data_prep.corpus import Corpus, add_number
from data_prep.parallel import map_files
from data_prep.validation import check_text, folder_with_source
from fairseq_lrpe.data.line_codec import SENTENCEPIECE, SentencePieces
from fairseq_lrpe.data.text_codec import learn_pieces, sample


class OwnText(Corpus):
    """The user's own text, or Python's documentation."""

    published = "the English prose inside Python"
    accepts = f"a folder with train.txt, valid.txt and test.txt in UTF-8 (default: {published})"
    pieces = 2000

    def add_options(self, parser):
        text = "maximum vocabulary size (default: %(default)s)"
        add_number(parser, "--sentencepiece", text, default=self.pieces)

    def source(self, args):
        return f"{super().source(args)} in {args.sentencepiece} sentence pieces"

    def check(self, args):
        for path in (split_files(args.source) if args.source else {}).values():
            check_text(path, "--from takes a folder with train.txt, valid.txt and test.txt")

    def prepare(self, args, source, inputs):
        text = self.text(args, source, inputs)
        encode = SentencePieces(text / SENTENCEPIECE).encode
        encoded = map_files(encode, split_files(text), args.out, "spm", args.workers)
        with folder_with_source(args.out / "bin", source) as part:
            shutil.copyfile(text / SENTENCEPIECE, part / SENTENCEPIECE)
            preprocess(encoded, part, args.out / "preprocess.log", workers=args.workers)

    def write_text(self, args, inputs, folder):
        self.write_splits(args, inputs, folder)
        print(f"Learning {SENTENCEPIECE}", flush=True)
        model = learn_pieces(
            args.sentencepiece,
            "--sentencepiece",
            sample(folder / "train.txt"),
            model_type="bpe",
            character_coverage=1.0,
            hard_vocab_limit=False,
        )
        (folder / SENTENCEPIECE).write_bytes(model)

    def write_splits(self, args: Namespace, inputs: object, folder: Path) -> None:
        """Writes the text as train.txt, valid.txt and test.txt."""
        if args.source is None:
            return self.write_published(inputs, folder)
        for path in split_files(args.source).values():
            concatenate([path], folder / path.name)

    def write_published(self, inputs: object, folder: Path) -> None:
        """Writes the default text, which is used without --from, as train.txt, valid.txt and test.txt."""
        write_python_docs(folder)


def write_python_docs(folder: Path) -> None:
    """Writes Python's documentation as train.txt, valid.txt and test.txt, which share no paragraph."""
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
    for split, path in split_files(folder).items():
        path.write_text("\n".join(lines[split]) + "\n", encoding="utf-8")
