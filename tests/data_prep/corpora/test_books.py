"""Books, from the user's files or BookCorpus, to fairseq's binaries."""

import itertools
import shutil
import sys

import pytest
from small_corpora import SPLITS, decoded, error_of, prepare

from data_prep.corpora import books


def write_books(folder, names):
    folder.mkdir()
    for name in names:
        (folder / name).write_text(f"the book {name}\n\nits end")  # without a final newline
    return folder


def test_whole_books_are_split_deterministically(tmp_path):
    folder = write_books(tmp_path / "many", [f"book{i}.txt" for i in range(350)])
    parts = books.find_books(folder)
    assert {split: len(files) for split, files in parts.items()} == {"train": 344, "valid": 3, "test": 3}
    assert sorted(itertools.chain(*parts.values())) == sorted(folder.glob("*.txt"))
    assert books.split_books(sorted(folder.glob("*.txt"), reverse=True)) == parts
    few = books.find_books(write_books(tmp_path / "few", ["a.txt", "b.txt", "constrain.txt"]))
    assert all(len(files) == 1 for files in few.values())


def test_splits_in_file_names_are_kept(tmp_path):
    names = ["a.train.txt", "b-train.txt", "valid.txt", "x_test.txt", "README.txt"]
    parts = books.find_books(write_books(tmp_path / "named", names))
    found = [[path.name for path in parts[split]] for split in SPLITS]
    assert found == [["a.train.txt", "b-train.txt"], ["valid.txt"], ["x_test.txt"]]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a.txt", "b.txt"], "has 2 *.txt files: train, valid and test need one each"),
        (["train.txt", "test.txt"], "has files for other splits, but none that ends in valid.txt"),
    ],
)
def test_missing_books_are_errors(names, message, tmp_path):
    source = write_books(tmp_path / "given", names)
    assert f"{source} {message}" in error_of("books", "--from", source, "--out", tmp_path / "out")


def test_books_from_a_folder(tiny_bpe, tmp_path, capsys, interrupt):
    """Also resumes an interrupted preparation without --from, and with missing files."""
    source, out = write_books(tmp_path / "given", ["a.txt", "b.txt", "c.txt", "d.txt"]), tmp_path / "out"
    flags = ["--bpe", tiny_bpe, "--out", out, "--workers", 2]
    with interrupt(books.Books, "write_bin"):
        prepare("books", ["--from", source, *flags])
    before = (out / "train.bpe").stat().st_mtime_ns
    (out / "valid.bpe").unlink()
    prepare("books", flags)
    assert (out / "train.bpe").stat().st_mtime_ns == before and (out / "valid.bpe").exists()
    mask = "with the <mask> of fairseq's masked_lm 265, not the papers' 50,265"
    assert f"vocabulary: 264 types; {mask}" in capsys.readouterr().out
    assert (out / "bin" / "source.txt").read_text() == f"{source}\n"
    train = (out / "text" / "train.txt").read_text()
    assert train.count("the book") == 2 and train.endswith("its end\n")
    assert decoded(out / "bin", "train") == train


def test_books_with_marks_hidden_files_and_links(tiny_bpe, in_process, tmp_path, capsys):
    """Without --from, the path is taken from the record, although it looks like a path with options."""
    source, out = tmp_path / "books in 2 volumes", tmp_path / "out"
    write_books(source, ["a.txt", "b.txt"])
    for name in "ab":
        path = source / f"{name}.txt"
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
        (source / f"._{name}.txt").write_bytes(b"\0\5\x16\7")
    (source / "c.txt").symlink_to(write_books(tmp_path / "elsewhere", ["c.txt"]) / "c.txt")
    flags = ["--bpe", tiny_bpe, "--out", out, "--workers", 1]
    prepare("books", ["--from", source, *flags])
    texts = {decoded(out / "bin", split) for split in SPLITS}
    assert texts == {f"the book {name}.txt\n\nits end\n" for name in "abc"}
    prepare("books", flags)
    assert f"already prepared: {out / 'bin'}" in capsys.readouterr().out
    (out / "bin" / "source.json").unlink()  # a record of an earlier version
    assert f"was made from {source}" in error_of("books", *flags)
    (out / "bin" / "source.txt").write_text(f"{tmp_path / 'elsewhere'}\n")
    shutil.rmtree(out / "text")
    prepare("books", flags)


def test_bookcorpus_requires_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install datasets" in error_of("books", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bookcorpus_is_split_by_lines(datasets_package, tiny_bpe, tmp_path, monkeypatch, interrupt, capsys):
    datasets_package([f"the line {i}" for i in range(1000)])
    with interrupt(books.Books, "write_bin"):
        prepare("books", ["--bpe", tiny_bpe, "--out", tmp_path, "--workers", 1])
    assert (tmp_path / "text" / "source.txt").read_text() == "bookcorpus/bookcorpus\n"
    lines = [(tmp_path / "text" / f"{split}.txt").read_text().splitlines() for split in SPLITS]
    assert [*itertools.chain(*lines)] == [f"the line {i}" for i in range(1000)]
    assert list(map(len, lines)) == [980, 10, 10]
    assert "has 1,000 rows, expected 74,004,228" in capsys.readouterr().out

    shutil.rmtree(tmp_path / "text")
    monkeypatch.setitem(books.Books("books").facts, "dataset", "unreachable")
    message = error_of("books", "--bpe", tiny_bpe, "--out", tmp_path)
    assert message.startswith("prepare books: unreachable could not be loaded (no hub): ")
    assert not (tmp_path / "text").exists()
