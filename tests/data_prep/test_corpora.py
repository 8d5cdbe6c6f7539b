"""The preparations from what a user gives them to fairseq's binaries, on small texts."""

import hashlib
import itertools
import zipfile

import pytest
from fairseq.data import Dictionary, data_utils
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from local_server import Server
from tiny import run_command

from data_prep import binarise, books, wikitext103, wikitext_mini

# With headings and a line that looks like a title, none of them one.
ARTICLE = (
    " \n = {0} = \n \n The {0} is a <unk> thing . \n \n"
    " = = History = = \n \n It was \n = so = \n a thing . \n \n"
    " = = Now = = \n \n It goes on . \n \n"
)


def write_tokens(folder, splits=("train", "valid", "test")):
    folder.mkdir(parents=True)
    for split in splits:
        articles = [ARTICLE.format(f"{split} {i}") for i in range(7)]
        (folder / f"wiki.{split}.tokens").write_text("".join(articles) + " four" * 4 + " five" * 5 + " \n")
    return folder


def sentences(out, split):
    """The lines of a prepared split, as fairseq reads them."""
    dictionary = Dictionary.load(str(out / "bin" / "dict.txt"))
    dataset = data_utils.load_indexed_dataset(str(out / "bin" / split), dictionary)
    return [
        dictionary.string(dataset[i], extra_symbols_to_ignore={dictionary.pad()}) for i in range(len(dataset))
    ]


def refused(main, *arguments):
    """The one sentence on stderr with which ``main`` ends."""
    with pytest.raises(SystemExit) as ended:
        main([str(x) for x in arguments])
    assert ended.value.code not in (None, 0) and "\n" not in str(ended.value.code)
    return str(ended.value.code)


def test_wikitext103_from_a_folder(tmp_path, capsys):
    source, out = write_tokens(tmp_path / "given"), tmp_path / "out"
    flags = ["--from", str(source), "--out", str(out), "--workers", "2"]
    wikitext103.main(flags)
    printed = capsys.readouterr().out
    size = len(Dictionary.load(str(out / "bin" / "dict.txt")))
    assert size % 8 == 0 and binarise.vocabulary_size(out / "bin") == size
    assert (
        f"vocabulary: {size} types; the papers' 267,744 is of" in printed
        and f"{out / 'bin'} --task" in printed
    )
    lines = (source / "wiki.valid.tokens").read_text().splitlines()
    assert sentences(out, "train")[:4] == ["", "= train 0 =", "", "The train 0 is a <unk> thing ."]
    assert len(sentences(out, "valid")) == len(lines)

    before = (out / "bin" / "train.bin").stat().st_mtime_ns
    for again in (flags, flags[2:]):
        wikitext103.main(again)
        assert f"already there: {out / 'bin'}" in capsys.readouterr().out
    assert (out / "bin" / "train.bin").stat().st_mtime_ns == before
    other = write_tokens(tmp_path / "other")
    assert f"was made from {source}" in refused(wikitext103.main, "--from", other, "--out", out)


def test_an_interrupted_preparation_leaves_no_bin_and_goes_on(tmp_path, monkeypatch, capsys):
    source, out = write_tokens(tmp_path / "given"), tmp_path / "out"
    flags = ["--from", str(source), "--out", str(out), "--workers", "1"]

    def interrupted(_, arguments, *__, **___):
        part = arguments[arguments.index("--destdir") + 1]
        part.mkdir(parents=True)
        (part / "dict.txt").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(binarise, "run", interrupted)
        with pytest.raises(SystemExit) as ended:
            wikitext103.main(flags)
    assert ended.value.code == 130 and "goes on from here" in capsys.readouterr().err
    assert not (out / "bin").exists()
    wikitext103.main(flags)
    assert (out / "bin" / "test.idx").exists() and not (out / "bin.part").exists()


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A server with the archive, and the facts to know it by."""
    path = tmp_path / "archive.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in write_tokens(tmp_path / "zipped").iterdir():
            archive.write(file, f"wikitext-103/{file.name}")
    content = path.read_bytes()
    with Server() as server:
        server.files["archive"] = content
        facts = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for key, value in {**facts, "mirrors": [server.url("archive")]}.items():
            monkeypatch.setitem(wikitext103.SOURCE, key, value)
        yield server


def test_wikitext_mini_downloads_cuts_and_prepares(mirror, tmp_path, capsys):
    out = tmp_path / "out"
    wikitext_mini.main(["--out", str(out)])
    whole = {x: (tmp_path / "zipped" / f"wiki.{x}.tokens").read_text() for x in ("valid", "test")}
    text = {x: (out / "text" / f"{x}.txt").read_text() for x in ("train", "valid", "test")}
    assert text["train"] == whole["test"] and text["valid"] + text["test"] == whole["valid"]
    assert text["test"].startswith(" = valid 4 = \n \n")  # the first title past the middle of the fourth
    words = {line.split()[0] for line in (out / "bin" / "dict.txt").read_text().splitlines()}
    assert "five" in words and "four" not in words
    assert sentences(out, "valid")[1] == "= <unk> <unk> ="

    wikitext_mini.main(["--out", str(out)])
    assert "already there" in capsys.readouterr().out and len(mirror.asked) == 1


def test_texts_that_are_cut_already(text_folder, tmp_path):
    wikitext_mini.main(["--from", str(text_folder), "--out", str(tmp_path / "out")])
    assert len(sentences(tmp_path / "out", "test")) == 40 and not (tmp_path / "out" / "text").exists()


def test_wikitext_that_cannot_be_used(mirror, tmp_path, capsys):
    out = tmp_path / "out"
    both = (wikitext103.main, wikitext_mini.main)

    def message(main, source):
        return refused(main, "--from", source, "--out", out)

    for main in both:
        assert "nowhere is missing: --from takes" in message(main, tmp_path / "nowhere")
        (tmp_path / "page.zip").write_text("<html>")
        assert "page.zip is not the published wikitext-103-v1.zip: it has 6 bytes" in message(
            main, tmp_path / "page.zip"
        )
        assert "wiki." in message(main, tmp_path) and "tokens is missing" in message(main, tmp_path)
    empty = write_tokens(tmp_path / "empty")
    (empty / "wiki.test.tokens").write_text(" \n\n")
    latin = write_tokens(tmp_path / "latin")
    (latin / "wiki.test.tokens").write_bytes(b"word\n" * 9999 + b"caf\xe9\n")
    for main in both:
        assert "wiki.test.tokens is empty" in message(main, empty)
        assert "wiki.test.tokens is not UTF-8 text" in message(main, latin)
    (tmp_path / "train.txt").write_text("a")
    assert "needs all of train.txt, valid.txt and test.txt" in message(wikitext_mini.main, tmp_path)
    flat = write_tokens(tmp_path / "flat")
    (flat / "wiki.valid.tokens").write_text("one line\n" * 10)
    assert "has no article's title" in message(wikitext_mini.main, flat)
    assert "page.zip is a file" in refused(wikitext_mini.main, "--out", tmp_path / "page.zip")
    assert "--workers must be at least 1" in refused(wikitext103.main, "--workers", 0, "--out", out)
    assert not list(out.rglob("*.txt")) and not (out / "bin").exists()


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
    assert books.draw(sorted(folder.glob("*.txt"), reverse=True)) == parts
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
    books.main(flags)
    assert f"vocabulary: {260 + 4} types; not GPT-2's 50,264" in capsys.readouterr().out
    train = (out / "text" / "train.txt").read_text()
    assert train.count("the book") == 2 and train.endswith("its end\n")
    encoder = get_encoder(str(tiny_bpe / "encoder.json"), str(tiny_bpe / "vocab.bpe"))
    decoded = [encoder.decode(map(int, line.split())) for line in sentences(out, "train")]
    assert "".join(f"{line}\n" for line in decoded) == train
    books.main(flags)
    assert "already there" in capsys.readouterr().out

    for path in (out / "bin").iterdir():
        path.unlink()
    (out / "bin").rmdir()
    before = (out / "train.bpe").stat().st_mtime_ns
    (out / "valid.bpe").unlink()
    books.main(flags)  # goes on where the encoding stopped
    assert (out / "train.bpe").stat().st_mtime_ns == before and (out / "valid.bpe").exists()


def test_books_that_cannot_be_used(tmp_path, capsys):
    out = tmp_path / "out"

    def message(source):
        return refused(books.main, "--from", source, "--out", out, "--bpe", tmp_path / "nobpe")

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
    monkeypatch.setattr(books.bookcorpus.importlib.util, "find_spec", lambda _: None)
    message = refused(books.main, "--out", tmp_path / "out")
    assert "pip install datasets" in message and not (tmp_path / "out").exists()


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    """A package ``datasets`` that has 1,000 lines of the corpus asked for."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "datasets.py").write_text(
        "class Lines(list):\n"
        "    def __getitem__(self, span):\n"
        "        return {'text': list.__getitem__(self, span)}\n"
        "def load_dataset(name, revision, split):\n"
        "    if name != 'bookcorpus/bookcorpus': raise ConnectionError('no hub\\nmore')\n"
        "    return Lines(f'the line {i}' for i in range(1000))\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "packages")


def test_bookcorpus_is_cut_at_its_end(datasets, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(books.bookcorpus, "ROWS", 7)
    text = books.write_text(None, tmp_path / "text", "bookcorpus/bookcorpus")
    lines = {split: path.read_text().splitlines() for split, path in text.items()}
    assert list(itertools.chain(*lines.values())) == [f"the line {i}" for i in range(1000)]
    assert {split: len(part) for split, part in lines.items()} == {"train": 980, "valid": 10, "test": 10}
    assert "has 1,000 lines now, not the 74,004,228" in capsys.readouterr().out

    monkeypatch.setitem(books.bookcorpus.SOURCE, "dataset", "gone")
    with pytest.raises(books.door.BadInput, match=r"^gone could not be loaded \(no hub\): "):
        books.write_text(None, tmp_path / "other", "gone")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["wikitext103", "wikitext_mini", "books", "gpt2_bpe"])
def test_help(name):
    done = run_command("python", "-m", f"data_prep.{name}", "--help")
    assert done.returncode == 0 and "--" in done.stdout and not done.stderr
