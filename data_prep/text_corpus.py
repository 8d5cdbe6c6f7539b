"""Base classes of corpora of running text in words, characters, GPT-2 BPE or SentencePiece units."""

import io
import shutil
import textwrap
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path

from data_prep import gpt2_bpe
from data_prep.binarize import SPLITS, concatenate, preprocess, split_files
from data_prep.corpus import Corpus, compared, number
from data_prep.parallel import map_lines, ordered_map, progress
from data_prep.validation import check_text
from fairseq_lrpe.data.layout import vocabulary_size
from fairseq_lrpe.data.line_codec import (
    SENTENCEPIECE,
    TOKENIZER,
    Characters,
    SentencePieces,
    TokenizerFile,
    load_tokenizer,
)
from fairseq_lrpe.utils.cli import path_arg
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import read_lines, write_atomic, write_lines

SENTENCES = 2_000_000  # maximum number of lines for SentencePiece training, limited by memory
MAX_BYTES = 4192  # SentencePiece's training skips longer lines
MAX_CHARACTERS = MAX_BYTES // 4  # of at most four bytes each
RESERVED = "\u2585"  # it also skips lines with this character
BATCH = 10_000  # rows of a dataset that are read at once


class TextCorpus(Corpus):
    """Running text in words, separated by spaces; OUT/text has train.txt, valid.txt and possibly test.txt.

    Attributes:
        suffix: suffix of the files in OUT/text whose lines :meth:`encoder` has split into units.
    """

    accepts = "a folder with train.txt, valid.txt and test.txt in UTF-8"
    suffix: str

    def write_text(self, args, folder):
        copy_texts(split_files(args.source), folder)

    def prepare(self, args, folder):
        texts = {split: path for split, path in split_files(self.text(args)).items() if path.exists()}
        if encode := self.encoder(args, texts["train"], folder):
            for split, path in texts.items():
                texts[split] = path.with_suffix(f".{self.suffix}")
                map_lines(encode, path, texts[split], args.workers)
        flags = ["--only-source", *self.flags(args)]
        preprocess(texts, folder, args.out / "preprocess.log", *flags, workers=args.workers)

    def encoder(self, args: Namespace, train: Path, folder: Path) -> Callable[[str], str] | None:
        """Returns the function that splits a line into units separated by spaces, or None for words.

        Args:
            args: the options of the command.
            train: the training text, from which units can be learned.
            folder: the folder that becomes OUT/bin, for files that are needed to encode other text.
        """

    def flags(self, args: Namespace) -> list:
        """Returns the flags of fairseq-preprocess that determine the dictionary."""
        return []


class CharacterCorpus(TextCorpus):
    suffix = "characters"

    def encoder(self, args, train, folder):
        return Characters().encode


class BytePairCorpus(TextCorpus):
    task = "masked_lm"
    suffix = "bpe"
    options = {
        "--bpe": {
            "type": path_arg,
            "metavar": "FOLDER",
            "help": "folder with encoder.json, vocab.bpe and dict.txt of GPT-2 BPE (default: download them)",
        },
        "--bpe-types": number(
            "use only N types, the bytes and the first merges, for a small model (default: all types)",
            gpt2_bpe.BYTES,
        ),
    }

    def prepare(self, args, folder):
        gpt2_bpe.provide(args.out / "gpt2_bpe", args.bpe, args.bpe_types)
        super().prepare(args, folder)

    def encoder(self, args, train, folder):
        return gpt2_bpe.line_encoder(args.out / "gpt2_bpe")

    def flags(self, args):
        return ["--srcdict", args.out / "gpt2_bpe" / "dict.txt"]

    def vocabulary(self, data):
        size = vocabulary_size(data / "dict.txt")
        return compared({"types": size, "with <mask>": size + 1}, gpt2_bpe.FACTS["vocabulary"])


def sentencepiece_option(types: int) -> dict[str, dict]:
    return {"--sentencepiece": number("maximum vocabulary size (default: %(default)s)", default=types)}


class SentencePieceCorpus(TextCorpus):
    """Running text in SentencePiece units, whose model is learned on train.txt and saved in OUT/bin."""

    suffix = "spm"
    options = sentencepiece_option(2000)

    def encoder(self, args, train, folder):
        model = args.out / "text" / SENTENCEPIECE
        if not model.exists():
            print(f"Learning {SENTENCEPIECE}", flush=True)
            # In a process of its own, because SentencePiece keeps gigabytes for a corpus with many words.
            [content] = ordered_map(partial(learn_pieces, args.sentencepiece), [train], workers=1)
            write_atomic(model, content)
        shutil.copyfile(model, folder / SENTENCEPIECE)
        return SentencePieces(model).encode


class TokenizerCorpus(TextCorpus):
    """Running text in the tokens of a tokenizer of the package tokenizers, which is saved in OUT/bin.

    ``args.tokenizer`` is the path of the tokenizer's file. The dictionary has all of its tokens.
    """

    suffix = "tokens"

    def encoder(self, args, train, folder):
        tokenizer = load_tokenizer(args.tokenizer)
        tokenizer.save(str(folder / TOKENIZER))
        count = max(tokenizer.get_vocab().values()) + 1  # the numbers of tokens may have gaps
        write_lines(self._dictionary(args), (f"{token} 1" for token in range(count)))
        return TokenizerFile(args.tokenizer).encode

    def flags(self, args):
        return ["--srcdict", self._dictionary(args)]

    def _dictionary(self, args):
        return args.out / "text" / "tokens.dict.txt"


class ByteCorpus(TokenizerCorpus):
    """Running text in bytes, whose tokenizer has a token for each byte."""

    def encoder(self, args, train, folder):
        path = args.out / "text" / TOKENIZER
        byte_tokenizer().save(str(path))
        return super().encoder(Namespace(**{**vars(args), "tokenizer": path}), train, folder)


def byte_tokenizer():
    """Returns a tokenizer of the package tokenizers with one token for each of the 256 bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(characters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def learn_pieces(types: int, text: Path) -> bytes:
    """Trains a SentencePiece model of at most ``types`` pieces and returns the content of its file.

    At most ``SENTENCES`` lines of the file ``text``, at equal distances, are used.

    Raises:
        UserError: if SentencePiece cannot learn this number of pieces from the text.
    """
    import sentencepiece

    with text.open("rb") as lines:
        count = sum(1 for _ in lines)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences(islice(read_lines(text), 0, None, -(-count // SENTENCES))),
            model_writer=model,
            vocab_size=types,
            model_type="bpe",
            character_coverage=1.0,
            hard_vocab_limit=False,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        remedy = "increase --sentencepiece, or use more text"
        raise UserError(f"SentencePiece cannot learn {types:,} pieces ({reason}): {remedy}") from None
    return model.getvalue()


def sentences(lines: Iterable[str]) -> Iterator[str]:
    """Yields lines that SentencePiece does not skip: long lines are wrapped between words.

    The learned pieces do not depend on line breaks, because SentencePiece counts words.
    """
    for line in lines:
        line = line.replace(RESERVED, " ")
        if len(line.encode()) <= MAX_BYTES:
            yield line
            continue
        yield from textwrap.wrap(line, MAX_CHARACTERS, break_on_hyphens=False)


def copy_texts(texts: dict[str, Path], folder: Path) -> None:
    for path in texts.values():
        check_text(path)
    for split, path in texts.items():
        concatenate([path], folder / f"{split}.txt")


def nth_split(i: int, every: int) -> str:
    """Returns the split of text i: of ``every`` texts, the first is in "valid" and the second in "test"."""
    return {0: "valid", 1: "test"}.get(i % every, "train")


def write_splits(folder: Path, lines: dict[str, list[str]]) -> None:
    for split in SPLITS:
        write_lines(folder / f"{split}.txt", lines[split])


def write_dataset(
    facts: dict, folder: Path, split: Callable[[int, int], str], text: Callable[[str], str] = "{}\n".format
) -> None:
    """Writes the column "text" of a dataset on the Hugging Face hub to train.txt, valid.txt and test.txt.

    Args:
        facts: the entry in sources.yaml: the name of the ``dataset``, the ``name`` of its configuration if it
            has several, the ``revision``, and the published number of ``rows``.
        folder: the folder of the text files.
        split: function that returns the split of row i of n, given i and n.
        text: function that returns the text to write for a value of the column.

    Raises:
        UserError: if the package datasets is missing.
    """
    try:
        from datasets import load_dataset
    except ImportError:
        remedy = "run `pip install datasets`, or give a folder of text files with --from"
        raise UserError(f"{facts['dataset']} requires the package datasets: {remedy}") from None
    rows = load_dataset(facts["dataset"], facts.get("name"), revision=facts["revision"], split="train")
    count = len(rows)
    print(f"{facts['dataset']}: {compared({'rows': count}, {'rows': facts['rows']})}", flush=True)
    with ExitStack() as stack:
        files = {}
        for name, path in split_files(folder).items():
            files[name] = stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
        for start in progress(range(0, count, BATCH), facts["dataset"], "batches"):
            for i, row in enumerate(rows[start : start + BATCH]["text"], start):
                files[split(i, count)].write(text(row))
