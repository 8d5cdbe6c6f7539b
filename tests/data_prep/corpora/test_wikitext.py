"""WikiText-103 and the small corpus out of it, in words and in byte pairs, to fairseq's binaries."""

import hashlib
import os
import zipfile
from argparse import Namespace
from pathlib import Path

import pytest
from fairseq import tasks
from fairseq.data import Dictionary
from local_server import Server
from small_corpora import decoded, prepare, refused, sentences, write_tokens

from data_prep import binarize
from data_prep.corpora import wikitext
from fairseq_lrpe.data import layout


def test_wikitext103_from_a_folder(tmp_path, capsys):
    source, out = write_tokens(tmp_path / "given"), tmp_path / "out"
    flags = ["--from", str(source), "--out", str(out), "--workers", "2"]
    prepare("wikitext103", flags)
    printed = capsys.readouterr().out
    size = len(Dictionary.load(str(out / "bin" / "dict.txt")))
    assert size % 8 == 0 and layout.vocabulary_size(out / "bin" / "dict.txt") == size
    assert (
        f"vocabulary: {size} types; the full training set has 267,744" in printed
        and f"{out / 'bin'} --task" in printed
    )
    lines = (source / "wiki.valid.tokens").read_text().splitlines()
    assert sentences(out, "train")[:4] == ["", "= train 0 =", "", "The train 0 is a <unk> thing ."]
    assert len(sentences(out, "valid")) == len(lines)

    before = (out / "bin" / "train.bin").stat().st_mtime_ns
    for again in (flags, flags[2:]):
        prepare("wikitext103", again)
        assert f"already there: {out / 'bin'}" in capsys.readouterr().out
    assert (out / "bin" / "train.bin").stat().st_mtime_ns == before
    other = write_tokens(tmp_path / "other")
    assert f"was made from {source}" in refused("wikitext103", "--from", other, "--out", out)


def test_an_interrupted_preparation_leaves_no_bin_and_goes_on(tmp_path, monkeypatch, capsys):
    source, out = write_tokens(tmp_path / "given"), tmp_path / "out"
    flags = ["--from", str(source), "--out", str(out), "--workers", "1"]

    def interrupted(command, *_):
        part = Path(command[command.index("--destdir") + 1])
        assert part == out / "bin.part"
        (part / "dict.txt").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(binarize, "run_command", interrupted)
        with pytest.raises(SystemExit) as ended:
            prepare("wikitext103", flags)
    assert ended.value.code == 130 and "run the same command to resume" in capsys.readouterr().err
    assert not (out / "bin").exists()
    prepare("wikitext103", flags)
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
            monkeypatch.setitem(wikitext.WikiText103.facts, key, value)
        yield server


def test_wikitext_mini_downloads_cuts_and_prepares(mirror, tmp_path, capsys):
    out = tmp_path / "out"
    prepare("wikitext_mini", ["--out", str(out)])
    whole = {x: (tmp_path / "zipped" / f"wiki.{x}.tokens").read_text() for x in ("valid", "test")}
    text = {x: (out / "text" / f"{x}.txt").read_text() for x in ("train", "valid", "test")}
    assert text["train"] == whole["test"] and text["valid"] + text["test"] == whole["valid"]
    assert text["test"].startswith(" = valid 4 = \n \n")  # the first title past the middle of the fourth
    words = {line.split()[0] for line in (out / "bin" / "dict.txt").read_text().splitlines()}
    assert "five" in words and "four" not in words
    assert sentences(out, "valid")[1] == "= <unk> <unk> ="

    prepare("wikitext_mini", ["--out", str(out)])
    assert "already there" in capsys.readouterr().out and len(mirror.asked) == 1


def test_the_small_corpus_split_characters(mirror, tmp_path, capsys):
    out = tmp_path / "out"
    prepare("wikitext_mini_chars", ["--out", str(out)])
    lines = (out / "text" / "test.txt").read_text().splitlines()
    for line, found in zip(lines, sentences(out, "test"), strict=True):
        for unit, character in zip(found.split(), wikitext.split_characters(line).split(), strict=True):
            assert unit in (character, "<unk>")
    assert sentences(out, "test")[0].startswith("= ▁ v a <unk> i <unk> ▁ ")  # l and d are rare
    assert "characters that occur five times or more in the training text" in capsys.readouterr().out
    assert wikitext.split_characters(" a <unk> b-c \n") == "a ▁ <unk> ▁ b - c"


def test_texts_that_are_cut_already(text_folder, tmp_path):
    prepare("wikitext_mini", ["--from", str(text_folder), "--out", str(tmp_path / "out")])
    assert len(sentences(tmp_path / "out", "test")) == 40 and not (tmp_path / "out" / "text").exists()


def test_wikitext_that_cannot_be_used(mirror, tmp_path, capsys):
    out = tmp_path / "out"
    both = ("wikitext103", "wikitext_mini")

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
    needed = "valid.txt is missing: all of train.txt, valid.txt and test.txt are needed"
    assert needed in message("wikitext_mini", tmp_path)
    flat = write_tokens(tmp_path / "flat")
    (flat / "wiki.valid.tokens").write_text("one line\n" * 10)
    assert "has no article's title" in message("wikitext_mini", flat)
    assert "page.zip is not a writable folder (File exists)" in refused(
        "wikitext_mini", "--out", tmp_path / "page.zip"
    )
    assert not list(out.rglob("*.txt")) and not (out / "bin").exists()


def stripped(path):
    return "".join(line.strip() + "\n" for line in path.read_text().splitlines())


def write_raw(folder):
    write_tokens(folder)
    for path in list(folder.iterdir()):
        path.rename(path.with_suffix(".raw"))
    return folder


def test_raw_wikitext103_from_a_folder(tiny_bpe, tmp_path, capsys):
    source, out = write_raw(tmp_path / "given"), tmp_path / "out"
    flags = ["--from", str(source), "--bpe", str(tiny_bpe), "--out", str(out), "--workers", "2"]
    prepare("wikitext103_bpe", flags)
    last = capsys.readouterr().out.splitlines()[-2:]
    mask = "with the <mask> of fairseq's masked_lm 265, not the papers' 50,265"
    assert last[0] == f"vocabulary: 264 types; {mask}"
    assert last[1] == f"ready: fairseq-train {out / 'bin'} --task masked_lm --user-dir fairseq_lrpe ..."
    for split in ("train", "valid", "test"):
        assert decoded(out / "bin", split) == stripped(source / f"wiki.{split}.raw")
    for again in (flags, ["--out", str(out)]):
        prepare("wikitext103_bpe", again)
        assert f"already there: {out / 'bin'}" in capsys.readouterr().out
    other = write_raw(tmp_path / "other")
    assert f"was made from {source}" in refused("wikitext103_bpe", "--from", other, "--out", out)


def test_raw_wikitext103_from_its_archive(tiny_bpe, tmp_path, monkeypatch, capsys):
    path, out = tmp_path / "archive.zip", tmp_path / "out"
    with zipfile.ZipFile(path, "w") as archive:
        for file in write_raw(tmp_path / "zipped").iterdir():
            archive.write(file, f"wikitext-103-raw/{file.name}")
    content = path.read_bytes()
    flags = ["--bpe", str(tiny_bpe), "--out", str(out), "--workers", "1"]
    with Server() as server:
        server.files["archive"] = content
        facts = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for key, value in {**facts, "mirrors": [server.url("gone"), server.url("archive")]}.items():
            monkeypatch.setitem(wikitext.RawBytePairs.facts, key, value)
        with monkeypatch.context() as patch:
            patch.setattr(
                wikitext.RawBytePairs, "write_bin", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
            )
            with pytest.raises(SystemExit) as ended:
                prepare("wikitext103_bpe", flags)
        assert ended.value.code == 130 and not (out / "bin").exists()
        asked, before = len(server.asked), (out / "train.bpe").stat().st_mtime_ns
        prepare("wikitext103_bpe", ["--from", str(path), *flags])
        assert len(server.asked) == asked and (out / "train.bpe").stat().st_mtime_ns == before
    assert decoded(out / "bin", "test") == stripped(tmp_path / "zipped" / "wiki.test.raw")


def test_the_small_corpus_in_byte_pairs(text_folder, tiny_bpe, tmp_path, monkeypatch):
    source, out = write_tokens(tmp_path / "wikitext-103"), tmp_path / "out"
    prepare(
        "wikitext_mini_bpe",
        [str(x) for x in ("--from", source, "--bpe", tiny_bpe, "--out", out, "--workers", 1)],
    )
    assert decoded(out / "bin", "train") == stripped(source / "wiki.test.tokens")
    assert decoded(out / "bin", "test").startswith("= valid 4 =\n")
    cut = tmp_path / "cut already"
    monkeypatch.setattr(
        wikitext.MiniBytePairs, "write_bin", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(SystemExit):
        prepare("wikitext_mini_bpe", ["--from", text_folder, "--bpe", tiny_bpe, "--out", cut, "--workers", 1])
    assert (cut / "text" / "source.txt").read_text() == f"{text_folder}\n"
    for split in ("train", "valid", "test"):
        name = f"{split}.txt"
        assert (cut / "text" / name).read_bytes() == (text_folder / name).read_bytes()


def test_wikitext_that_cannot_be_encoded(tiny_bpe, tmp_path, capsys):
    out = tmp_path / "out"

    def message(main, source, *flags):
        return refused(main, "--from", source, "--out", out, "--bpe", tiny_bpe, *flags)

    (tmp_path / "page.zip").write_text("<html>")
    for main, archive in (
        ("wikitext103_bpe", "wikitext-103-raw-v1.zip"),
        ("wikitext_mini_bpe", "wikitext-103-v1.zip"),
    ):
        assert "nowhere is missing: --from takes" in message(main, tmp_path / "nowhere")
        assert f"page.zip is not the published {archive}" in message(main, tmp_path / "page.zip")
    assert "wiki.train.raw is missing" in message("wikitext103_bpe", write_tokens(tmp_path / "tokens"))
    raw = write_raw(tmp_path / "raw")
    assert "tokens is missing" in message("wikitext_mini_bpe", raw)
    assert "encoder.json is missing" in message("wikitext103_bpe", raw, "--bpe", tmp_path)
    (raw / "wiki.test.raw").write_bytes(b"\xff")
    assert "wiki.test.raw is not UTF-8" in message("wikitext103_bpe", raw)
    (tmp_path / "train.txt").write_text("a")
    needed = "valid.txt is missing: all of train.txt, valid.txt and test.txt are needed"
    assert needed in message("wikitext_mini_bpe", tmp_path)
    assert not out.exists()


@pytest.mark.skipif("LRPE_DATA" not in os.environ, reason="LRPE_DATA names no folder of data")
def test_masked_lm_finds_the_papers_vocabulary(published, tmp_path, capsys):
    source, bpe = published / "wikitext-mini", published / "gpt2_bpe"
    prepare(
        "wikitext_mini_bpe",
        [str(x) for x in ("--from", source, "--bpe", bpe, "--out", tmp_path, "--workers", 2)],
    )
    mask = "with the <mask> of fairseq's masked_lm 50,265, as in the papers"
    assert f"vocabulary: 50,264 types; {mask}" in capsys.readouterr().out
    assert decoded(tmp_path / "bin", "valid") == stripped(source / "valid.txt")
    task = tasks.setup_task(
        Namespace(task="masked_lm", data=str(tmp_path / "bin"), tokens_per_sample=64, seed=1)
    )
    assert len(task.source_dictionary) == 50_265 and task.mask_idx == 50_264
    task.load_dataset("valid")
    item = task.datasets["valid"][0]
    assert task.mask_idx in item["net_input.src_tokens"]
    known = item["target"].ne(task.source_dictionary.pad())
    assert 0 < known.sum() < len(known)
