"""Books from what a user gives to fairseq's binaries."""

import importlib.util
import itertools

import pytest
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from small_corpora import prepare, refused, sentences

from data_prep.corpora import books


def write_books(folder, names):
    folder.mkdir()
    for name in names:
        (folder / name).write_text(f"the book {name}\n\nits end")  # which lacks the end of its line
    return folder


def test_books_are_drawn_whole_and_always_alike(tmp_path):
    folder = write_books(tmp_path / "many", [f"book{i}.txt" for i in range(350)])
    parts = books.find_books(folder)
    assert {split: len(files) for split, files in parts.items()} == {"train": 344, "valid": 3, "test": 3}
    assert sorted(itertools.chain(*parts.values())) == sorted(folder.glob("*.txt"))
    assert books.split_books(sorted(folder.glob("*.txt"), reverse=True)) == parts
    few = books.find_books(write_books(tmp_path / "few", ["a.txt", "b.txt", "constrain.txt"]))
    assert all(len(files) == 1 for files in few.values())


def test_named_splits_are_kept(tmp_path):
    names = ["a.train.txt", "b-train.txt", "valid.txt", "x_test.txt", "README.txt"]
    parts = books.find_books(write_books(tmp_path / "named", names))
    assert {split: [path.name for path in files] for split, files in parts.items()} == {
        "train": ["a.train.txt", "b-train.txt"],
        "valid": ["valid.txt"],
        "test": ["x_test.txt"],
    }


def test_books_from_a_folder(tiny_bpe, tmp_path, capsys):
    source, out = write_books(tmp_path / "given", ["a.txt", "b.txt", "c.txt", "d.txt"]), tmp_path / "out"
    flags = ["--from", str(source), "--bpe", str(tiny_bpe), "--out", str(out), "--workers", "2"]
    prepare("books", flags)
    assert (
        f"vocabulary: {260 + 4} types; with the <mask> of fairseq's masked_lm 265, not the papers' 50,265"
        in capsys.readouterr().out
    )
    train = (out / "text" / "train.txt").read_text()
    assert train.count("the book") == 2 and train.endswith("its end\n")
    encoder = get_encoder(str(tiny_bpe / "encoder.json"), str(tiny_bpe / "vocab.bpe"))
    decoded = [encoder.decode(map(int, line.split())) for line in sentences(out, "train")]
    assert "".join(f"{line}\n" for line in decoded) == train
    prepare("books", flags)
    assert "already there" in capsys.readouterr().out

    for path in (out / "bin").iterdir():
        path.unlink()
    (out / "bin").rmdir()
    before = (out / "train.bpe").stat().st_mtime_ns
    (out / "valid.bpe").unlink()
    prepare("books", flags)  # goes on where the encoding stopped
    assert (out / "train.bpe").stat().st_mtime_ns == before and (out / "valid.bpe").exists()


def test_what_was_interrupted_goes_on_without_from_too(tiny_bpe, at_once, tmp_path, monkeypatch):
    source, out = write_books(tmp_path / "given", ["a.txt", "b.txt", "c.txt"]), tmp_path / "out"
    flags = ["--bpe", tiny_bpe, "--out", out, "--workers", 1]
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(books.Books, "write_bin", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        prepare("books", ["--from", source, *flags])
    before = (out / "train.bpe").stat().st_mtime_ns
    prepare("books", flags)
    assert (out / "bin" / "source.txt").read_text() == f"{source}\n"
    assert (out / "train.bpe").stat().st_mtime_ns == before


def test_books_that_cannot_be_used(tmp_path, capsys):
    out = tmp_path / "out"

    def message(source):
        return refused("books", "--from", source, "--out", out, "--bpe", tmp_path / "nobpe")

    assert "nowhere is not a folder" in message(tmp_path / "nowhere")
    assert "has 2 *.txt" in message(write_books(tmp_path / "two", ["a.txt", "b.txt"]))
    assert "no file that ends in valid.txt" in message(
        write_books(tmp_path / "part", ["train.txt", "test.txt"])
    )
    blank = write_books(tmp_path / "blank", ["a.txt", "b.txt", "c.txt"])
    (blank / "b.txt").write_text("\n")
    assert "b.txt is empty" in message(blank)
    (blank / "b.txt").write_bytes(b"\xff\xfe")
    assert "b.txt is not UTF-8" in message(blank)
    (blank / "b.txt").write_text("the")
    assert "encoder.json is missing" in message(blank)
    assert not out.exists()


def test_bookcorpus_needs_its_package(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    message = refused("books", "--out", tmp_path / "out")
    assert "pip install datasets" in message and not (tmp_path / "out").exists()


def test_bookcorpus_is_cut_at_its_end(hub_rows, tiny_bpe, tmp_path, monkeypatch, capsys):
    hub_rows([f"the line {i}" for i in range(1000)])
    monkeypatch.setattr(books.Books, "write_bin", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(SystemExit):
        prepare("books", ["--bpe", tiny_bpe, "--out", tmp_path, "--workers", 1])
    assert (tmp_path / "text" / "source.txt").read_text() == "bookcorpus/bookcorpus\n"
    text = {split: tmp_path / "text" / f"{split}.txt" for split in ("train", "valid", "test")}
    lines = {split: path.read_text().splitlines() for split, path in text.items()}
    assert list(itertools.chain(*lines.values())) == [f"the line {i}" for i in range(1000)]
    assert {split: len(part) for split, part in lines.items()} == {"train": 980, "valid": 10, "test": 10}
    assert "has 1,000 rows, expected 74,004,228" in capsys.readouterr().out

    monkeypatch.setitem(books.FACTS, "dataset", "gone")
    message = refused("books", "--bpe", tiny_bpe, "--out", tmp_path / "other")
    assert message.startswith("prepare books: gone could not be loaded (no hub): ")
    assert not (tmp_path / "other" / "text").exists()
