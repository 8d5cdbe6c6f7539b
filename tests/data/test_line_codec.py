"""Tokenization of lines of text, and streamed detokenization."""

import pytest
from support.tiny import write_byte_pairs

from data_prep.text_corpus import learn_pieces
from fairseq_lrpe.data import classified_text, line_codec
from fairseq_lrpe.data.penn_treebank import tokenize_penn

TEXT = "the cat sees the other théâtre 🙂"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def check(codec, text=TEXT):
    symbols = codec.encode(text).split()
    assert codec.decode(" ".join(symbols)) == text
    assert codec.encode(f"  {text} ").split() == symbols
    two = [*symbols, "</s>", *symbols, "</s>"]
    assert "".join(codec.stream(two)) == f"{text}\n{text}\n"
    # A prompt and the text of the symbols after it are the whole text.
    for n in range(1, len(symbols)):
        prompt = codec.decode(" ".join(symbols[:n]))
        if "\ufffd" not in prompt:
            assert prompt + "".join(codec.stream(symbols[n:], start=False)) == text


def test_words(folder):
    codec = line_codec.load(folder, ["the", "▁", "cat"])
    assert type(codec) is line_codec.LineCodec
    check(codec)


def test_characters(folder):
    codec = line_codec.load(folder, ["t", "h", "▁", "<unk>", "madeupword0000"])
    assert isinstance(codec, line_codec.Characters)
    check(codec)
    assert codec.encode("a <unk> b") == "a ▁ <unk> ▁ b"


def test_sentence_pieces(folder):
    (folder / "text").write_text(f"{TEXT}\n" * 9)
    (folder / "spm.model").write_bytes(learn_pieces(60, folder / "text"))
    codec = line_codec.load(folder, ["1", "2"])
    assert isinstance(codec, line_codec.SentencePieces) and "▁the" in codec.encode(TEXT).split()
    check(codec)


def test_byte_pairs(folder):
    with pytest.raises(ValueError, match=r"gpt2_bpe/encoder.json is missing"):
        line_codec.load(folder, ["1", "2", "madeupword0000"])
    (folder.parent / "gpt2_bpe").mkdir()
    write_byte_pairs(folder.parent / "gpt2_bpe")
    codec = line_codec.load(folder, ["1", "2", "madeupword0000"])
    assert isinstance(codec, line_codec.BytePairs)
    check(codec)
    smile = codec.encode("🙂").split()
    assert len(smile) == 4 and [*codec.stream(smile)] == ["", "", "", "🙂", ""]
    assert [*codec.stream([smile[0], "<unk>"])] == ["", "\ufffd<unk>", ""]


def test_classified_text():
    encode = classified_text.encoder(classified_text.BYTES)
    assert encode("aé") == ["0x61", "0xc3", "0xa9"]
    encode = classified_text.encoder(["1", "[MIN", "]"])
    assert encode("( [MIN 1 2 ] )") == ["[MIN", "1", "2", "]"]
    encode = classified_text.encoder(["good"])
    assert encode("It isn't good.") == tokenize_penn("It isn't good.").split() == "It is n't good .".split()
