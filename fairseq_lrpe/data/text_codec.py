"""Tokenization and detokenization of translation data, for preparing corpora and for translating.

:func:`load` returns the codec of a prepared corpus: its tokenizer and detokenizer. Encoding and then
decoding a line restores it approximately. Spaces can change, and characters that cannot be printed become
spaces. Moses normalizes punctuation by the rules of the language: for example, Moses converts typographic
quotes, backticks, dashes and ellipses to ASCII, moves commas and full stops before closing quotes in English
and after them in German, and replaces a no-break space between digits by a separator of thousands. Moses
restores spaces around quotes, apostrophes and symbols heuristically.
"""

import functools
import io
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import regex
from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer
from subword_nmt import apply_bpe, learn_bpe
from tqdm import tqdm

from fairseq_lrpe.data.layout import CODES, PREPARATION, read_object
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import PREPARE, file_exists, read_lines, write_atomic

SEPARATOR = "@@"  # suffix of subwords that do not end a word
CACHED_WORDS = 500_000  # limit of subword-nmt's cache


@functools.cache
def moses(language: str) -> tuple:
    return MosesPunctNormalizer(language), MosesTokenizer(language), MosesDetokenizer(language)


class Moses:
    """Codec of Moses tokenization followed by subword-nmt's BPE, whose merges are in ``folder``/codes."""

    facts = {"tokenizer": "moses", "bpe": "subword_nmt"}  # settings that preparation.json records

    def __init__(self, folder: Path):
        self.path = folder / CODES

    def encode(self, language: str, line: str) -> str:
        return self.pieces(self.words(language, line))

    def words(self, language: str, line: str) -> str:
        normalizer, tokenizer, _ = moses(language)
        # Moses's remove-non-printing-char.perl also replaces each such character by a space.
        printable = regex.sub(r"\p{C}", " ", normalizer.normalize(line))
        return tokenizer.tokenize(printable, aggressive_dash_splits=True, return_str=True)

    def pieces(self, words: str) -> str:
        if len(self._merges.cache) > CACHED_WORDS:
            self._merges.cache.clear()  # subword-nmt does not limit its size
        return " ".join(self._merges.segment_tokens(words.split()))

    def join(self, tokens: str) -> str:
        return regex.sub(rf"{SEPARATOR}( |$)", "", tokens)

    def decode(self, language: str, tokens: str) -> str:
        return moses(language)[2].detokenize(self.join(tokens).split())

    def learn(self, texts: Iterable[Path], types: int) -> None:
        """Learns at most ``types`` BPE merges from files of words, and writes them to ``path``."""
        counts = Counter()
        for text in texts:
            for line in tqdm(read_lines(text), desc=f"words of {text.name}", unit="lines", disable=None):
                counts.update(line.split())
        learn_bpe.tqdm = functools.partial(tqdm, desc=self.path.name, unit="merges", disable=None)
        merges = io.StringIO()
        lines = [f"{word} {count}" for word, count in counts.items()]
        learn_bpe.learn_bpe(lines, merges, types, is_dict=True)
        write_atomic(self.path, merges.getvalue())

    @functools.cached_property
    def _merges(self):
        with self.path.open(encoding="utf-8") as codes:
            return apply_bpe.BPE(codes, separator=SEPARATOR)


def load(data: Path) -> Moses:
    """Returns the codec of the prepared translation data in a folder."""
    remedy = f"prepare a corpus for translation (see `{PREPARE}`)"
    read_object(data / PREPARATION, lambda found: found["bpe"] == Moses.facts["bpe"], remedy)
    codec = Moses(data.parent)
    if not file_exists(codec.path):
        raise UserError(f"{codec.path} is missing: restore it, or remove {data} and prepare it again")
    return codec
