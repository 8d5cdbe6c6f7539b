"""Tokenization and detokenization of translation data, for preparing corpora and for translating.

:func:`load` returns the codec of a prepared corpus: its tokenizer and detokenizer. Encoding and then
decoding a line restores it, except for spaces and the following changes. Moses converts typographic quotes,
dashes and ellipses to ASCII, moves English commas and full stops before closing quotes, and restores spaces
around quotes, apostrophes and symbols heuristically. SentencePiece applies Unicode's normalization form NFKC.
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
from fairseq_lrpe.utils.files import read_lines, write_atomic

SEPARATOR = "@@"  # suffix of subwords that do not end a word
CACHED_WORDS = 500_000  # limit of subword-nmt's cache
SENTENCES = 2_000_000  # maximum number of lines of a file for SentencePiece training, limited by memory


@functools.cache
def moses(language: str) -> tuple:
    """Returns Moses's punctuation normalizer, tokenizer and detokenizer of a language."""
    return MosesPunctNormalizer(language), MosesTokenizer(language), MosesDetokenizer(language)


class TextCodec:
    """Base class of tokenizers and detokenizers of translation data; ``path`` is the learned model's file."""

    facts: ClassVar[dict]  # settings that preparation.json records
    unit: ClassVar[str]  # name of what --bpe-types counts
    file: ClassVar[str]  # name of the learned model's file

    def __init__(self, folder: Path):
        self.path = folder / self.file

    def encode(self, language: str, line: str) -> str:
        """Returns the subword tokens of a line of raw text, separated by spaces."""
        return self.pieces(self.words(language, line))


class Moses(TextCodec):
    """Moses tokenization followed by subword-nmt's BPE."""

    facts, unit, file = {"tokenizer": "moses", "bpe": "subword_nmt"}, "merges of byte pairs", "codes"

    def words(self, language: str, line: str) -> str:
        """Returns the words of a line of raw text, separated by spaces."""
        normalizer, tokenizer, _ = moses(language)
        # Moses's remove-non-printing-char.perl also replaces each such character by a space.
        printable = regex.sub(r"\p{C}", " ", normalizer.normalize(line))
        return tokenizer.tokenize(printable, aggressive_dash_splits=True, return_str=True)

    def pieces(self, words: str) -> str:
        """Splits words into subwords, all separated by spaces."""
        if len(self._merges.cache) > CACHED_WORDS:
            self._merges.cache.clear()  # subword-nmt does not limit its size
        return " ".join(self._merges.segment_tokens(words.split()))

    def join(self, tokens: str) -> str:
        """Joins subwords into words."""
        return regex.sub(rf"{SEPARATOR}( |$)", "", tokens)

    def decode(self, language: str, tokens: str) -> str:
        """Converts subword tokens to raw text."""
        return moses(language)[2].detokenize(self.join(tokens).split())

    def learn(self, texts: Iterable[Path], types: int) -> None:
        """Learns at most ``types`` BPE merges from files of words, and writes them to ``path``."""
        counts = Counter()
        for text in texts:
            for line in tqdm(read_lines(text), desc=f"words of {text.name}", unit="lines", disable=None):
                counts.update(line.split())
        if all(len(word) == 1 for word in counts):
            raise ValueError("BPE cannot be learned: all words of the training text have a single character")
        learn_bpe.tqdm = functools.partial(tqdm, desc=self.path.name, unit="merges", disable=None)
        merges = io.StringIO()
        learn_bpe.learn_bpe((f"{word} {n}" for word, n in counts.items()), merges, types, is_dict=True)
        write_atomic(self.path, merges.getvalue())

    @functools.cached_property
    def _merges(self):
        with self.path.open(encoding="utf-8") as codes:
            return apply_bpe.BPE(codes, separator=SEPARATOR)


class SentencePiece(TextCodec):
    """SentencePiece with a unigram model."""

    facts, unit = {"tokenizer": None, "bpe": "sentencepiece"}, "sentence pieces"
    file = "sentencepiece.model"

    def words(self, language: str, line: str) -> str:
        """Returns a line of raw text with normalized white space, which is not split into words."""
        return " ".join(line.split())  # also removes Unicode's line separators

    def pieces(self, words: str) -> str:
        """Splits raw text into sentence pieces, separated by spaces."""
        return " ".join(self._model.encode(words, out_type=str))

    def join(self, tokens: str) -> str:
        """Joins sentence pieces to raw text."""
        return "".join(tokens.split()).replace("▁", " ").strip()

    def decode(self, language: str, tokens: str) -> str:
        """Converts sentence pieces to raw text."""
        return self.join(tokens)

    def learn(self, texts: Iterable[Path], types: int) -> None:
        """Learns a model of ``types`` pieces, including <unk>, <s> and </s>, and writes it to ``path``."""
        print(f"Learning {self.path}", flush=True)
        model = learn_pieces(
            types,
            "--bpe-types",
            itertools.chain.from_iterable(map(sample, texts)),
            model_type="unigram",
            num_threads=16,  # fixed because it affects the last digits of the scores
        )
        write_atomic(self.path, model)

    @functools.cached_property
    def _model(self):
        return sentencepiece.SentencePieceProcessor(model_file=str(self.path))


def learn_pieces(types: int, option: str, lines: Iterable[str], **settings) -> bytes:
    """Trains a SentencePiece model of ``types`` pieces on ``lines``, and returns the content of its file.

    Raises:
        ValueError: If the text is too small; the message names the ``option`` that sets ``types``.
    """
    model = io.BytesIO()
    files = {"sentence_iterator": iter(lines), "model_writer": model}
    try:
        sentencepiece.SentencePieceTrainer.train(vocab_size=types, minloglevel=2, **files, **settings)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise ValueError(
            f"SentencePiece cannot learn {types:,} pieces ({reason}): use more text or another {option}"
        ) from None
    return model.getvalue()


def sample(text: Path) -> Iterator[str]:
    """Yields at most SENTENCES lines of a file, at equal distances."""
    with text.open("rb") as lines:
        count = sum(1 for _ in lines)
    yield from itertools.islice(read_lines(text), 0, None, -(-count // SENTENCES))


def load(data: Path) -> TextCodec:
    """Returns the codec of the prepared translation data in a folder.

    Raises:
        ValueError: If the data was not prepared for translation, or the codec's file is missing.
    """
    note = data / PREPARATION
    if not note.is_file():
        raise ValueError(
            f"{note} is missing: expected a folder that data_prep/prepare.sh prepared for translation"
        )
    facts = json.loads(note.read_text())
    if "bpe" not in facts:
        raise ValueError(f"{note} is not for translation: {data} was prepared for another task")
    codec = (Moses if facts["bpe"] == Moses.facts["bpe"] else SentencePiece)(data.parent)
    if not codec.path.is_file():
        problem = f"{codec.path}, which tokenizes text as in {data}, is missing"
        raise ValueError(f"{problem}: restore it or prepare the corpus again")
    return codec
