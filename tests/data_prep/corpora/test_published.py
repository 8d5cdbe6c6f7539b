"""Preparation of the published data in the folder LRPE_DATA."""

import re

from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from small_corpora import prepare

from data_prep import gpt2_bpe


def vocabulary(out):
    return len(Dictionary.load(str(out / "bin" / "dict.txt")))


def token_counts(out):
    """{file name: tokens} that fairseq-preprocess reported."""
    log = (out / "preprocess.log").read_text()
    return {name: int(tokens) for name, tokens in re.findall(r"/([\w.]+): \d+ sents, (\d+) tokens", log)}


def test_wikitext103_has_the_published_number_of_tokens(published, tmp_path):
    for split in ("valid", "test"):
        (tmp_path / f"wiki.{split}.tokens").symlink_to(published / "wikitext-103" / f"wiki.{split}.tokens")
    (tmp_path / "wiki.train.tokens").symlink_to(published / "wikitext-103" / "wiki.valid.tokens")
    prepare("wikitext103", ["--from", str(tmp_path), "--out", str(tmp_path / "out"), "--workers", "1"])
    counts = token_counts(tmp_path / "out")
    assert counts["wiki.valid.tokens"] == 217_646 and counts["wiki.test.tokens"] == 245_569


def test_wikitext_mini_is_the_recorded_one(published, tmp_path):
    prepare("wikitext_mini", ["--from", str(published / "wikitext-103"), "--out", str(tmp_path)])
    for split in ("train", "valid", "test"):
        expected = (published / "wikitext-mini" / f"{split}.txt").read_bytes()
        assert (tmp_path / "text" / f"{split}.txt").read_bytes() == expected
    assert vocabulary(tmp_path) == 5384


def test_books_in_bpe_decode_to_the_text(published, tmp_path):
    arguments = ["--from", published / "books", "--bpe", published / "gpt2_bpe", "--out", tmp_path]
    prepare("books", [*map(str, arguments), "--workers", "2"])
    assert vocabulary(tmp_path) == 50_264 == gpt2_bpe.FACTS["vocabulary"]
    encoder = get_encoder(*(str(tmp_path / "gpt2_bpe" / name) for name in ("encoder.json", "vocab.bpe")))
    for split in ("train", "valid", "test"):
        text = (published / "books" / f"grimm.{split}.txt").read_text(encoding="utf-8")
        encoded = (tmp_path / f"{split}.bpe").read_text().splitlines()
        decoded = [encoder.decode(map(int, line.split())) for line in encoded]
        assert decoded == [line.strip() for line in text.splitlines()]
