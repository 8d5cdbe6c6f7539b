"""Tokenization and detokenization of translation data, for preparing corpora and for translating.

``load(OUT/bin)`` returns the codec of a prepared corpus. ``decode(encode(line))`` equals the line except for
spaces and for what the codec does not preserve: Moses converts typographic quotes, dashes and dots to ASCII,
moves English commas and full stops before closing quotes, and restores spaces around quotes, apostrophes and
symbols heuristically; SentencePiece applies Unicode's NFKC.
"""

import functools
import io
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

import regex
import sentencepiece
from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer
from subword_nmt import apply_bpe, learn_bpe
from tqdm import tqdm

from fairseq_lrpe.data.layout import PREPARATION
from fairseq_lrpe.utils.files import write_atomic

SEPARATOR = "@@"  # suffix of subwords that do not end a word
CACHED_WORDS = 500_000  # by subword-nmt
SENTENCES = 2_000_000  # per language for SentencePiece training, limited by memory


@functools.cache
def moses(language: str) -> tuple:
    """Returns the cached Moses normalizer, tokenizer and detokenizer of a language."""
    return MosesPunctNormalizer(language), MosesTokenizer(language), MosesDetokenizer(language)


class TextCodec:
    """Tokenizer of both languages, whose learned ``file`` is in the folder of the prepared corpus."""

    facts: ClassVar[dict]  # recorded in preparation.json
    unit: ClassVar[str]
    file: ClassVar[str]

    def __init__(self, folder: Path):
        self.path = folder / self.file

    def encode(self, language: str, line: str) -> str:
        """Tokenizes raw text."""
        return self.pieces(self.words(language, line))


class Moses(TextCodec):
    """Moses tokenization and BPE of subword-nmt."""

    facts, unit, file = {"tokenizer": "moses", "bpe": "subword_nmt"}, "merges of byte pairs", "codes"

    def words(self, language: str, line: str) -> str:
        """Tokenizes raw text into words."""
        normalizer, tokenizer, _ = moses(language)
        # As Moses's remove-non-printing-char: replace each such character by a space.
        printable = regex.sub(r"\p{C}", " ", normalizer.normalize(line))
        return tokenizer.tokenize(printable, aggressive_dash_splits=True, return_str=True)

    def pieces(self, words: str) -> str:
        """Splits words into subwords."""
        if len(self._merges.cache) > CACHED_WORDS:
            self._merges.cache.clear()  # it is unbounded
        return " ".join(self._merges.segment_tokens(words.split()))

    def join(self, tokens: str) -> str:
        """Joins subwords into words."""
        return regex.sub(rf"{SEPARATOR}( |$)", "", tokens)

    def decode(self, language: str, tokens: str) -> str:
        """Detokenizes to raw text."""
        return moses(language)[2].detokenize(self.join(tokens).split())

    def learn(self, texts: Iterable[Path], types: int) -> None:
        """Learns at most ``types`` BPE merges from tokenized texts."""
        counts = Counter()
        for text in texts:
            with text.open(encoding="utf-8", newline="\n") as lines:
                for line in tqdm(lines, desc=f"words of {text.name}", unit="lines", disable=None):
                    counts.update(line.split())
        if all(len(word) == 1 for word in counts):
            raise ValueError("the training text has no word of two or more letters: BPE cannot be learned")
        learn_bpe.tqdm = functools.partial(tqdm, desc=self.path.name, unit="merges", disable=None)
        merges = io.StringIO()
        learn_bpe.learn_bpe((f"{word} {n}" for word, n in counts.items()), merges, types, is_dict=True)
        write_atomic(self.path, merges.getvalue())

    @functools.cached_property
    def _merges(self):
        with self.path.open(encoding="utf-8") as codes:
            return apply_bpe.BPE(codes, separator=SEPARATOR)


class SentencePiece(TextCodec):
    """SentencePiece unigram model."""

    facts, unit = {"tokenizer": None, "bpe": "sentencepiece"}, "sentence pieces"
    file = "sentencepiece.model"

    def words(self, language: str, line: str) -> str:
        """Normalizes white space."""
        return " ".join(line.split())  # removes all line separators

    def pieces(self, words: str) -> str:
        """Splits raw text into pieces."""
        return " ".join(self._model.encode(words, out_type=str))

    def join(self, tokens: str) -> str:
        """Joins pieces into raw text."""
        return "".join(tokens.split()).replace("▁", " ").strip()

    def decode(self, language: str, tokens: str) -> str:
        """Detokenizes to raw text."""
        return self.join(tokens)

    def learn(self, texts: Iterable[Path], types: int) -> None:
        """Learns a model of ``types`` pieces, including <unk>, <s> and </s>."""
        print(f"Learning {self.path}", flush=True)
        model = learn_pieces(
            types,
            "--bpe-types",
            itertools.chain.from_iterable(map(sample, texts)),
            model_type="unigram",
            num_threads=16,  # fixed: it affects the last digits of the scores
        )
        write_atomic(self.path, model)

    @functools.cached_property
    def _model(self):
        return sentencepiece.SentencePieceProcessor(model_file=str(self.path))


def learn_pieces(types: int, option: str, lines: Iterable[str], **settings) -> bytes:
    """Trains a SentencePiece model of ``types`` pieces; ``option`` is the option that sets ``types``."""
    model = io.BytesIO()
    files = {"sentence_iterator": iter(lines), "model_writer": model}
    try:
        sentencepiece.SentencePieceTrainer.train(vocab_size=types, minloglevel=2, **files, **settings)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise ValueError(
            f"SentencePiece cannot make {types:,} pieces of the training text, try another {option}: {reason}"
        ) from None
    return model.getvalue()


def sample(text: Path) -> Iterator[str]:
    """Yields at most ``SENTENCES`` evenly spaced lines of a file."""
    with text.open("rb") as lines:
        count = sum(1 for _ in lines)
    with text.open(encoding="utf-8", newline="\n") as lines:
        for line in itertools.islice(lines, 0, None, -(-count // SENTENCES)):
            yield line.removesuffix("\n")


def load(data: Path) -> TextCodec:
    """Returns the codec of an OUT/bin."""
    note = data / PREPARATION
    if not note.is_file():
        raise ValueError(
            f"{note} is missing: a folder prepared for translation by data_prep/prepare.sh is needed"
        )
    facts = json.loads(note.read_text())
    if "bpe" not in facts:
        raise ValueError(f"{note} is not for translation: {data} was prepared for another task")
    codec = (Moses if facts["bpe"] == Moses.facts["bpe"] else SentencePiece)(data.parent)
    if not codec.path.is_file():
        raise ValueError(f"{codec.path} is missing: it belongs to {data}")
    return codec
