"""One's own text: formats, splits, tokenizers, and files that cannot be used."""

import csv
import gzip
import json
import sys

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
import zstandard
from fairseq.data import Dictionary
from small_corpora import SPLITS, error_of, prepare, run, sentences
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from data_prep.corpora import own_text
from fairseq_lrpe.data import line_codec

DOCUMENTS = [f"Title {i}\n\nThe  document {i}, with “quotes”,\tcommas and words.\n" for i in range(40)]


def lines_of(documents):
    """Returns the text that is written for documents: lines with single spaces, then a blank line."""
    text = ""
    for document in documents:
        for line in document.split("\n"):
            if line.split():
                text += " ".join(line.split()) + "\n"
        text += "\n"
    return text


def write_text_files(folder, documents):
    folder.mkdir(parents=True)
    for i, document in enumerate(documents):
        (folder / f"{i:03}.txt").write_text(document)
    return folder


def write_json_lines(path, documents):
    rows = [json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(documents)]
    path.write_text("".join(rows))
    return path


def write_separated(path, documents, delimiter=","):
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["id", "text"])
        writer.writerows(enumerate(documents))
    return path


def table(documents):
    return pyarrow.table({"id": range(len(documents)), "text": documents})


def write_parquet(path, documents):
    pyarrow.parquet.write_table(table(documents), path, row_group_size=7)
    return path


def write_dataset(folder, documents):
    """Writes the files of the package datasets' ``Dataset.save_to_disk``."""
    folder.mkdir(parents=True)
    half = len(documents) // 2
    for i, part in enumerate((documents[:half], documents[half:])):
        path = folder / f"data-{i:05}-of-00002.arrow"
        rows = table(part)
        with pyarrow.ipc.new_stream(str(path), rows.schema) as stream:
            stream.write_table(rows, max_chunksize=7)
    (folder / "state.json").write_text("{}")
    (folder / "dataset_info.json").write_text("{}")
    return folder


def compress(path, module, suffix):
    target = path.with_name(path.name + suffix)
    target.write_bytes(module.compress(path.read_bytes()))
    path.unlink()
    return target


SOURCES = {
    "text files": lambda folder: write_text_files(folder / "texts", DOCUMENTS),
    "JSON Lines": lambda folder: write_json_lines(folder / "x.jsonl", DOCUMENTS),
    "CSV": lambda folder: write_separated(folder / "x.csv", DOCUMENTS),
    "TSV": lambda folder: write_separated(folder / "X.TSV", DOCUMENTS, "\t"),
    "Parquet": lambda folder: write_parquet(folder / "x.parquet", DOCUMENTS),
    "dataset": lambda folder: write_dataset(folder / "saved", DOCUMENTS),
    "gzip": lambda folder: compress(write_json_lines(folder / "x.jsonl", DOCUMENTS), gzip, ".gz"),
    "zstandard": lambda folder: compress(write_separated(folder / "x.csv", DOCUMENTS), zstandard, ".zst"),
}


def texts(out):
    return {split: (out / "text" / f"{split}.txt").read_text() for split in SPLITS}


def write_only(monkeypatch):
    """Makes a preparation end after the text, because binarizing takes seconds."""
    monkeypatch.setattr(own_text.OwnText, "prepare", lambda self, args, folder: self.text(args))
    monkeypatch.setattr(own_text.TextCorpus, "report", lambda self, args: None)


def test_formats_of_the_same_documents(monkeypatch, tmp_path, capsys):
    """All formats give the same text, with each document once, and the source record says how."""
    write_only(monkeypatch)
    found = {}
    for number, (name, write) in enumerate(SOURCES.items()):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        source = write(folder)
        run("text", source, folder / "out", "--valid", 0.2, "--test", 0.1, "--seed", 3)
        found[name] = texts(folder / "out")
        record = json.loads((folder / "out/text/source.json").read_text())
        assert record["from"] == str(source) and record["valid"] == 0.2 and record["column"] == "text"
        counts = json.loads((folder / "out/text/documents.json").read_text())
        assert sum(counts.values()) == 40
        assert f"documents: train {counts['train']}, valid {counts['valid']}" in capsys.readouterr().out
    first = found.pop("text files")
    assert all(other == first for other in found.values())
    blocks = []
    for text in first.values():
        blocks += text.split("\n\n")[:-1]
    assert sorted(blocks) == sorted(lines_of([document]).strip() for document in DOCUMENTS)
    assert all(first.values())


def test_blank_lines_separate_documents_of_a_single_text(monkeypatch, tmp_path):
    write_only(monkeypatch)
    source = tmp_path / "input.txt"
    source.write_text("\n\n".join(f"a {i}\nb {i}" for i in range(30)))
    run("text", source, tmp_path / "out", "--valid", 0.2, "--test", 0.2)
    written = texts(tmp_path / "out")
    for text in written.values():
        for block in text.split("\n\n")[:-1]:
            first, second = block.split("\n")
            assert first.replace("a", "b") == second
    assert sum(text.count("a ") for text in written.values()) == 30


def test_names_state_splits(monkeypatch, tmp_path, capsys):
    """Of files and of folders; a split that no name states is drawn from the training files."""
    write_only(monkeypatch)
    source = tmp_path / "source"
    write_dataset(source / "train", DOCUMENTS[:30])
    write_parquet(source / "x-validation-00000-of-00001.parquet", DOCUMENTS[30:35])
    write_json_lines(source / "more.jsonl", DOCUMENTS[35:])
    run("text", source, tmp_path / "out", "--test", 0.2)
    written = texts(tmp_path / "out")
    assert written["valid"] == lines_of(DOCUMENTS[30:35])
    both = written["train"] + written["test"]
    assert sorted(both.split("\n\n")) == sorted(lines_of(DOCUMENTS[:30]).split("\n\n"))
    assert "ignored 1 files whose names state no split" in capsys.readouterr().out


def test_empty_documents_and_broken_rows_are_left_out(monkeypatch, tmp_path, capsys):
    write_only(monkeypatch)
    source = tmp_path / "x.jsonl"
    rows = [json.dumps({"body": text}) for text in [*DOCUMENTS, " \n", ""]]
    rows += ["", "{", "[1]", '{"body": null}', '{"other": 1}', '{"body": "\\ud83d"}']
    source.write_text("\n".join(rows))
    run("text", source, tmp_path / "out", "--column", "body", "--valid", 0.2, "--test", 0.1)
    printed = capsys.readouterr().out
    assert "left out 2 empty documents" in printed
    assert "x.jsonl: left out 5 of 47 rows: line 43 is not JSON" in printed
    assert "; line 44 is not a JSON object; line 45 has None instead of a text; " in printed


DAMAGED = bytearray(gzip.compress(bytes(range(256)) * 4, mtime=0))
DAMAGED[10:14] = b"\xff" * 4


@pytest.mark.parametrize("name, content, options, message", [
    ("x.jsonl", b'{"body": "a", "id": 1}', [], "has no column 'text', only body, id: pass another --column"),
    ("x.csv", b"id,body\n1,a\n", [], "x.csv has no column 'text', only id, body: pass another --column"),
    ("x.csv", b"", [], "x.csv has no column 'text', only none: pass another --column"),
    ("x.csv", b'text\n"a', [], "x.csv cannot be read (line 1: unexpected end of data): correct its quotes"),
    ("x.csv", b"text\n\xff", [], "x.csv is not UTF-8 text (invalid start byte): convert it to UTF-8"),
    ("x.jsonl", b"[1]", [], "x.jsonl line 1 is not a JSON object; 1 broken lines in total"),
    ("x.jsonl", b'{"text": 3}', [], "x.jsonl line 1 has 3 instead of a text"),
    ("x.jsonl", b"", [], "x.jsonl has no rows: expected at least one"),
    ("x.txt", b" \n\n", [], "has documents with text: 0, none of them in train: pass more"),
    ("x.txt", b"a\n\nb\n\nc\n", [], "has documents with text: 3, none of them in valid: pass a"),
    ("x.txt", b"a\xff", [], "x.txt is not UTF-8 text (line 1: invalid start byte)"),
    ("x.txt.gz", b"no archive", [], "x.txt.gz is damaged (Not a gzipped file"),
    ("x.txt.gz", gzip.compress(b"a\n" * 999, mtime=0)[:20], [], "x.txt.gz is damaged (Compressed file ended"),
    ("x.txt.gz", DAMAGED, [], "x.txt.gz is damaged (Error -3 while decompressing data"),
    ("x.txt.zst", b"no archive", [], "x.txt.zst is damaged ("),
    ("x.parquet", b"PAR1", [], "x.parquet is damaged ("),
    ("x.arrow", b"none", [], "x.arrow is damaged ("),
    ("x.pdf", b"", [], "has no files with documents: expected .txt, .jsonl, .csv, .tsv, "),
    ("x.txt", b"a", ["--valid", 0.5, "--test", 0.5], "--valid and --test leave nothing for training"),
    ("x.txt", b"a", ["--bpe-types", 300], "--bpe and --bpe-types belong to --tokenizer gpt2: omit them"),
])  # fmt: skip
def test_wrong_sources(name, content, options, message, tmp_path):
    """One line, and nothing that looks finished."""
    (tmp_path / name).write_bytes(content)
    found = error_of("text", "--from", tmp_path / name, "--out", tmp_path / "out", *options)
    assert message in found
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize("options, message", [
    (["--tokenizer", "spm"], "unknown tokenizer 'spm': choose from sentencepiece, words, characters, "),
    (["--valid", 1], "expected a number above 0 and below 1, not '1'"),
    (["--test", "x"], "expected a number above 0 and below 1, not 'x'"),
])  # fmt: skip
def test_wrong_options(options, message, capsys):
    with pytest.raises(SystemExit):
        prepare("text", options)
    assert message in " ".join(capsys.readouterr().err.split())


def test_column_of_a_wrong_type(tmp_path):
    source = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": [1, 2]}), source)
    message = error_of("text", "--from", source, "--out", tmp_path / "out")
    assert "x.parquet line 1 has 1 instead of a text; 2 broken lines in total" in message


@pytest.mark.parametrize("name, package", [
    ("x.parquet", "pyarrow"), ("x.arrow", "pyarrow"), ("x.txt.zst", "zstandard"),
])  # fmt: skip
def test_missing_packages_are_named(name, package, monkeypatch, tmp_path):
    for module in (package, f"{package}.parquet", f"{package}.ipc"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / name).write_bytes(b"x")
    message = error_of("text", "--from", tmp_path / name, "--out", tmp_path / "out")
    assert f"{name} requires the package {package}: run `pip install {package}`" in message


def train_tokenizer(path):
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["[UNK]"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(DOCUMENTS, trainer)
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize("name", [*own_text.TOKENIZERS, "tokenizer.json"])
def test_tokenizers(name, tiny_bpe, in_process, tmp_path):
    """A prepared text is decoded to itself, also one symbol at a time, and new text is encoded alike."""
    options = {"gpt2": ["--bpe", tiny_bpe], "sentencepiece": ["--sentencepiece", 100]}.get(name, [])
    value = train_tokenizer(tmp_path / name) if name == "tokenizer.json" else name
    source = write_json_lines(tmp_path / "x.jsonl", DOCUMENTS)
    data = run(
        "text", source, tmp_path / "out", "--valid", 0.1, "--test", 0.1, "--tokenizer", value, *options
    )
    dictionary = Dictionary.load(str(data / "dict.txt"))
    codec = line_codec.load(data, dictionary.symbols)
    lines = (tmp_path / "out/text/train.txt").read_text().splitlines()
    prepared = sentences(tmp_path / "out", "train")
    for line, symbols in zip(lines, prepared, strict=True):
        assert codec.encode(line) == symbols
        assert codec.decode(symbols) == line
        assert "".join(codec.stream([*symbols.split(), "</s>"])) == f"{line}\n"
    if name in ("bytes", "tokenizer.json"):
        size = 256 if name == "bytes" else 300
        assert len(dictionary) == size + dictionary.nspecial
        assert codec.decode(codec.encode("naïve 🙂")) == "naïve 🙂"


def test_tokens_whose_numbers_have_gaps(in_process, tmp_path):
    """No token becomes <unk> because of its number."""
    vocabulary = {"[UNK]": 0, "a": 3, "b": 17}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    source = write_json_lines(tmp_path / "x.jsonl", ["a b", "b a c"] * 20)
    options = ["--tokenizer", tmp_path / "tokenizer.json", "--valid", 0.1, "--test", 0.1]
    run("text", source, tmp_path / "out", *options)
    assert set(sentences(tmp_path / "out", "train")) == {"3 17", "17 3 0", ""}


def test_a_damaged_tokenizer_is_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    options = ["--tokenizer", path, "--out", tmp_path / "out"]
    assert "tokenizer.json is not a tokenizer of the package tokenizers" in error_of("text", *options)
