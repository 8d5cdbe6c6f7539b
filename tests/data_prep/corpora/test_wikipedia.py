"""Wikipedia in SentencePiece's pieces: from the hub's rows, and from a folder."""

import importlib.util
import itertools

import sentencepiece
from small_corpora import prepare, refused, sentences

from data_prep.corpora import wikipedia

PIECES = ["--sentencepiece", 40, "--workers", 2]


def test_articles_become_lines_and_one_of_each_hold_out(hub_rows, at_once, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(wikipedia, "EVERY", 10)
    articles = [f"Article {100 + i} is it.\n\n\nHistory\n\nIt  was \u2028so\u00a0{i}.\n" for i in range(35)]
    hub_rows(articles)
    prepare("wikipedia", ["--out", tmp_path, *PIECES])
    told = capsys.readouterr().out
    assert "wikimedia/wikipedia has 35 rows, expected 6,407,814" in told
    note = "wikimedia/wikipedia 20231101.en in 40 sentence pieces\n"
    assert (tmp_path / "bin" / "source.txt").read_text() == note
    held = {"valid": [0, 10, 20, 30], "test": [1, 11, 21, 31]}
    held["train"] = [i for i in range(35) if i % 10 > 1]
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "bin" / "spm.model"))
    for split, numbers in held.items():
        lines = (tmp_path / "text" / f"{split}.txt").read_text().split("\n")
        expected = [(f"Article {100 + i} is it.", "History", "It was", f"so {i}.", "") for i in numbers]
        assert lines == [*itertools.chain.from_iterable(expected), ""]
        assert [model.decode(line.split()) for line in sentences(tmp_path, split)] == lines[:-1]


def test_without_the_package_it_says_what_would_do(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    message = refused("wikipedia", "--out", tmp_path / "out")
    assert "pip install datasets" in message and "a folder with train.txt, valid.txt and test.txt" in message
    assert not (tmp_path / "out").exists()


def test_an_extract_of_ones_own(text_folder, at_once, tmp_path):
    prepare("wikipedia", ["--from", text_folder, "--out", tmp_path / "out", *PIECES])
    lines = (text_folder / "test.txt").read_text().splitlines()
    assert len(sentences(tmp_path / "out", "test")) == len(lines)
