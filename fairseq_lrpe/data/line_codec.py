"""Tokenization of lines of text as in data_prep's corpora without labels, and detokenization.

:func:`load` returns the codec of a data folder. Encoding and then decoding a line restores it, except for
spaces and for symbols that are not in the dictionary. SentencePiece also normalizes characters (NFKC), such
as the ligature of f and i to "fi".
"""

import codecs
import functools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import check_regular, file_exists

END = "</s>"  # symbol that fairseq appends to each line
SENTENCEPIECE = "spm.model"  # SentencePiece model in a data folder
TOKENIZER = "tokenizer.json"  # tokenizer of the package tokenizers in a data folder
BYTE_PAIRS = "gpt2_bpe"  # folder with the files of GPT-2 BPE, next to a data folder or one of its parents
SPACE = "▁"
CACHED_WORDS = 500_000  # limit of the cache of GPT-2 BPE


class LineCodec:
    """Base class of codecs, which is also the codec of words that are separated by spaces."""

    def encode(self, line: str, start: bool = True) -> str:
        """Returns the symbols of a line, or of the rest of a line if not ``start``, separated by spaces."""
        return " ".join(line.split())

    def text(self, symbol: str) -> str:
        return f" {symbol}"

    def stream(self, symbols: Iterable[str], start: bool = True) -> Iterator[str]:
        """Yields the text of each symbol, without waiting for the next one; ``</s>`` ends a line."""
        for symbol in symbols:
            text = "\n" if symbol == END else self.text(symbol)
            yield text.removeprefix(" ") if start else text
            start = symbol == END

    def decode(self, symbols: str) -> str:
        return "".join(self.stream(symbols.split()))


class Characters(LineCodec):
    """Codec of characters, where ▁ represents a space and <unk> is one symbol."""

    def encode(self, line, start=True):
        words = []
        for word in line.split():
            words.append(word if word == "<unk>" else " ".join(word))
        symbols = f" {SPACE} ".join(words)
        if start or not line.startswith(" "):
            return symbols
        return f"{SPACE} {symbols}".rstrip()

    def text(self, symbol):
        return " " if symbol == SPACE else symbol


class SentencePieces(LineCodec):
    """Codec of SentencePiece units; ``model`` is the path of the SentencePiece model."""

    def __init__(self, model: Path):
        self.model = model

    def encode(self, line, start=True):
        return " ".join(_sentencepiece(self.model).encode(line.strip(), out_type=str))

    def text(self, symbol):
        return symbol.replace(SPACE, " ")


class BytePairs(LineCodec):
    """Codec of GPT-2 BPE; ``folder`` contains encoder.json and vocab.bpe.

    The symbols are those of fairseq's examples/roberta/multiprocessing_bpe_encoder.py with --keep-empty.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def encode(self, line, start=True):
        encoder = gpt2_encoder(self.folder)
        if len(encoder.cache) > CACHED_WORDS:
            encoder.cache.clear()  # fairseq does not limit its size
        return " ".join(map(str, encoder.encode(line.strip() if start else line.rstrip())))

    def stream(self, symbols, start=True):
        """Yields the text of each symbol; a character of several symbols is yielded with the last of them."""
        encoder = gpt2_encoder(self.folder)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for symbol in symbols:
            if symbol.isdecimal() and int(symbol) in encoder.decoder:
                pair = encoder.decoder[int(symbol)]
                yield decoder.decode(bytes(encoder.byte_decoder[character] for character in pair))
            else:
                yield decoder.decode(b"", True) + ("\n" if symbol == END else symbol)
        yield decoder.decode(b"", True)


class TokenizerFile(LineCodec):
    """Codec of a tokenizer of the package tokenizers, whose symbols are the numbers of its tokens.

    ``path`` is the tokenizer's file, such as tokenizer.json. Tokens that it would add to a text, such as
    [CLS], are left out.
    """

    def __init__(self, path: Path):
        self.path = path

    def encode(self, line, start=True):
        text = line.strip() if start else line.rstrip()
        tokens = load_tokenizer(self.path).encode(text, add_special_tokens=False).ids
        return " ".join(map(str, tokens))

    def stream(self, symbols, start=True):
        """Yields the text of each symbol; a character of several symbols is yielded with the last of them."""
        from tokenizers.decoders import DecodeStream

        tokenizer = load_tokenizer(self.path)
        decoder = DecodeStream(skip_special_tokens=False)
        waiting = []  # tokens that are not yet decoded
        for symbol in symbols:
            if symbol.isdecimal():
                waiting.append(int(symbol))
                text = decoder.step(tokenizer, waiting[-1])
                if text is not None:
                    waiting.clear()
                    yield text
            else:
                yield tokenizer.decode(waiting, skip_special_tokens=False)
                yield "\n" if symbol == END else symbol
                waiting.clear()
                decoder = DecodeStream(skip_special_tokens=False)
        yield tokenizer.decode(waiting, skip_special_tokens=False)


@functools.cache
def load_tokenizer(path: Path):
    """Returns the tokenizer in a file; raises a UserError if it cannot be read."""
    from tokenizers import Tokenizer

    if not file_exists(path):
        raise UserError(f"{path} is missing: pass the path of a tokenizer.json")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises only this class
        raise UserError(f"{path} is not a tokenizer of the package tokenizers ({error})") from None


@functools.cache
def _sentencepiece(model):
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=str(model))


@functools.cache
def gpt2_encoder(folder: Path):
    from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

    for name in ("encoder.json", "vocab.bpe"):
        check_regular(folder / name)
    return get_encoder(str(folder / "encoder.json"), str(folder / "vocab.bpe"))


def byte_pair_folder(data: Path) -> Path | None:
    """Returns the nearest folder with GPT-2 BPE in the parents of a data folder, or None."""
    for parent in data.parents:
        if file_exists(parent / BYTE_PAIRS / "encoder.json"):
            return parent / BYTE_PAIRS
    return None


def load(data: Path, symbols: Sequence[str]) -> LineCodec:
    """Returns the codec of a data folder, given the symbols of its dictionary."""
    if file_exists(data / SENTENCEPIECE):
        return SentencePieces(data / SENTENCEPIECE)
    if file_exists(data / TOKENIZER):
        return TokenizerFile(data / TOKENIZER)
    words = [symbol for symbol in symbols if not symbol.startswith(("madeupword", "<"))]
    if all(map(str.isdecimal, words)):
        folder = byte_pair_folder(data)
        if folder is None:
            missing = data.parent / BYTE_PAIRS / "encoder.json"
            raise UserError(f"{missing} is missing: restore it, or remove {data} and prepare it again")
        return BytePairs(folder)
    is_characters = SPACE in words and all(len(word) == 1 for word in words)
    return Characters() if is_characters else LineCodec()
