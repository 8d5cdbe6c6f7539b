"""Raw text to a translation model's tokens and back: what prepares a corpus also translates with it.

``load(OUT/bin)`` is the codec of a prepared corpus. ``decode(encode(line))`` is the line, but for its blanks
and for what the codec cannot keep:
Moses writes typographic quotes, dashes and dots as ASCII ("„" and "“" as '"', "–" as "-", "…" as "..."), puts
an English comma or full stop before a closing quote, and has to guess which blanks stood around quotes,
apostrophes and signs (those of currencies belong to what follows);
SentencePiece writes variants of a character as one (Unicode's NFKC).
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

from fairseq_lrpe.files import write_whole
from fairseq_lrpe.layouts import PREPARATION

SEPARATOR = "@@"  # at the end of each byte pair that does not end a word
WORDS = 500_000  # that subword-nmt remembers
SENTENCES = 2_000_000  # of each language from which SentencePiece learns: more do not fit into memory


@functools.cache
def moses(language: str) -> tuple:
    """Returns Moses's normalizer, tokenizer and detokenizer for a language, which take a while to make."""
    return MosesPunctNormalizer(language), MosesTokenizer(language), MosesDetokenizer(language)


class Moses:
    """Moses's words in subword-nmt's byte pairs, which both languages share: ``folder``/codes."""

    facts: ClassVar = {"tokenizer": "moses", "bpe": "subword_nmt"}
    unit = "merges of byte pairs"

    def __init__(self, folder: Path):
        self.path = folder / "codes"

    def words(self, language: str, line: str) -> str:
        """Returns the words of raw text."""
        normalizer, tokenizer, _ = moses(language)
        # As Moses's remove-non-printing-char: each such character is a blank.
        printable = regex.sub(r"\p{C}", " ", normalizer.normalize(line))
        return tokenizer.tokenize(printable, aggressive_dash_splits=True, return_str=True)

    def pieces(self, words: str) -> str:
        """Returns the byte pairs of words."""
        if len(self._merges.cache) > WORDS:
            self._merges.cache.clear()  # it has no bound of its own
        return " ".join(self._merges.segment_tokens(words.split()))

    def encode(self, language: str, line: str) -> str:
        """Returns the tokens of raw text."""
        return self.pieces(self.words(language, line))

    def join(self, tokens: str) -> str:
        """Returns the words that byte pairs are of."""
        return regex.sub(rf"{SEPARATOR}( |$)", "", tokens)

    def decode(self, language: str, tokens: str) -> str:
        """Returns the raw text that tokens stand for."""
        return moses(language)[2].detokenize(self.join(tokens).split())

    def learn(self, texts: Iterable[Path], types: int) -> None:
        """Writes the first ``types`` merges of the words in ``texts``, fewer if no pair is there twice."""
        counts = Counter()
        for text in texts:
            with text.open(encoding="utf-8", newline="\n") as lines:
                for line in tqdm(lines, desc=f"words of {text.name}", unit="lines", disable=None):
                    counts.update(line.split())
        if all(len(word) == 1 for word in counts):
            raise ValueError("the training text has no word of two letters: there are no byte pairs to learn")
        learn_bpe.tqdm = functools.partial(tqdm, desc=self.path.name, unit="merges", disable=None)
        merges = io.StringIO()
        learn_bpe.learn_bpe((f"{word} {n}" for word, n in counts.items()), merges, types, is_dict=True)
        write_whole(self.path, merges.getvalue())

    @functools.cached_property
    def _merges(self):
        with self.path.open(encoding="utf-8") as codes:
            return apply_bpe.BPE(codes, separator=SEPARATOR)


class SentencePiece:
    """SentencePiece's unigram pieces of raw text, shared as well: ``folder``/sentencepiece.model."""

    facts: ClassVar = {"tokenizer": None, "bpe": "sentencepiece"}
    unit = "sentence pieces"

    def __init__(self, folder: Path):
        self.path = folder / "sentencepiece.model"

    def words(self, language: str, line: str) -> str:
        """Returns raw text with single blanks."""
        return " ".join(line.split())  # no character in it ends a line

    def pieces(self, words: str) -> str:
        """Returns the pieces of raw text."""
        return " ".join(self._model.encode(words, out_type=str))

    def encode(self, language: str, line: str) -> str:
        """Returns the tokens of raw text."""
        return self.pieces(self.words(language, line))

    def join(self, tokens: str) -> str:
        """Returns the raw text that pieces are of."""
        return "".join(tokens.split()).replace("▁", " ").strip()

    def decode(self, language: str, tokens: str) -> str:
        """Returns the raw text that tokens stand for."""
        return self.join(tokens)

    def learn(self, texts: Iterable[Path], types: int) -> None:
        """Writes a model of ``types`` pieces, <unk>, <s> and </s> among them."""
        print(f"Learning {self.path}", flush=True)
        model = io.BytesIO()
        learn_pieces(
            types,
            "--bpe-types",
            sentence_iterator=itertools.chain.from_iterable(map(sample, texts)),
            model_writer=model,
            model_type="unigram",
            num_threads=16,  # always: their number changes the last digits of the pieces' scores
        )
        write_whole(self.path, model.getvalue())

    @functools.cached_property
    def _model(self):
        return sentencepiece.SentencePieceProcessor(model_file=str(self.path))


def learn_pieces(types: int, option: str, **settings) -> None:
    """Has SentencePiece learn so many pieces; if it cannot, ValueError names the ``option`` that says so."""
    try:
        sentencepiece.SentencePieceTrainer.train(vocab_size=types, minloglevel=2, **settings)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise ValueError(
            f"SentencePiece cannot make {types:,} pieces of the training text, try another {option}: {reason}"
        ) from None


def sample(text: Path) -> Iterator[str]:
    """Yields the lines of a file, evenly thinned out to ``SENTENCES`` at most."""
    with text.open("rb") as lines:
        count = sum(1 for _ in lines)
    with text.open(encoding="utf-8", newline="\n") as lines:
        for line in itertools.islice(lines, 0, None, -(-count // SENTENCES)):
            yield line.removesuffix("\n")


def load(data: Path) -> Moses | SentencePiece:
    """Returns the codec of the prepared corpus whose folder for fairseq, OUT/bin, is ``data``."""
    note = data / PREPARATION
    if not note.is_file():
        raise ValueError(
            f"{note} is missing: a folder that data_prep/prepare.sh made for translation is needed"
        )
    facts = json.loads(note.read_text())
    if "bpe" not in facts:
        raise ValueError(f"{note} is not of translation: {data} was prepared for something else")
    codec = (Moses if facts["bpe"] == Moses.facts["bpe"] else SentencePiece)(data.parent)
    if not codec.path.is_file():
        raise ValueError(f"{codec.path} is missing: it belongs to {data}")
    return codec
