"""Wikipedia in SentencePiece units, from the hub's rows or from a folder."""

import itertools
import sys

import sentencepiece
from small_corpora import error_of, prepare, sentences

from data_prep.corpora import wikipedia

PIECES = ["--sentencepiece", 40, "--workers", 2]


def test_articles_become_lines_and_are_split(datasets_package, in_process, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(wikipedia, "EVERY", 10)
    articles = [f"Article {100 + i} is it.\n\n\nHistory\n\nIt  was \u2028so\u00a0{i}.\n" for i in range(35)]
    datasets_package(articles)
    prepare("wikipedia", ["--out", tmp_path, *PIECES])
    assert "wikimedia/wikipedia has 35 rows, expected 6,407,814" in capsys.readouterr().out
    record = "wikimedia/wikipedia 20231101.en in 40 sentence pieces\n"
    assert (tmp_path / "bin" / "source.txt").read_text() == record
    splits = {"valid": [0, 10, 20, 30], "test": [1, 11, 21, 31]}
    splits["train"] = [i for i in range(35) if i % 10 > 1]
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "bin" / "spm.model"))
    for split, numbers in splits.items():
        lines = (tmp_path / "text" / f"{split}.txt").read_text().split("\n")
        expected = [(f"Article {100 + i} is it.", "History", f"It was so {i}.", "") for i in numbers]
        assert lines == [*itertools.chain.from_iterable(expected), ""]
        assert [model.decode(line.split()) for line in sentences(tmp_path, split)] == lines[:-1]


def test_a_missing_package_is_an_error_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    message = error_of("wikipedia", "--out", tmp_path / "out")
    assert "pip install datasets" in message and "a folder with train.txt, valid.txt and test.txt" in message
    assert not (tmp_path / "out").exists()


def test_text_from_a_folder(text_folder, in_process, tmp_path):
    prepare("wikipedia", ["--from", text_folder, "--out", tmp_path / "out", *PIECES])
    lines = (text_folder / "test.txt").read_text().splitlines()
    assert len(sentences(tmp_path / "out", "test")) == len(lines)
