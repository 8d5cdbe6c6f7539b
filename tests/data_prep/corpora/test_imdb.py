"""IMDB's reviews by bytes and in words, from a folder, an archive or a download."""

import hashlib
import os

import numpy as np
import pytest
from local_server import Server
from small_corpora import classified, prepare, refused, write_files, write_tar

from data_prep.corpora import imdb

REVIEWS = {
    f"aclImdb/{split}/{label}/{i}_{7 if label == 'pos' else 2}.txt": (
        f"A {'good' if label == 'pos' else 'bad'} film, isn't it?<br /><br />Ünlike the {split} film {i}."
    ).encode()
    for split, count in (("train", 20), ("test", 3))
    for label in ("pos", "neg")
    for i in range(count)
}
OTHERS = {
    "aclImdb/train/unsup/0_0.txt": b"not labelled",
    "aclImdb/README": b"",
    "aclImdb/train/urls.txt": b"",
}


@pytest.fixture
def archive(tmp_path):
    return write_tar(tmp_path / "aclImdb.tar.gz", {**REVIEWS, **OTHERS})


@pytest.mark.parametrize("name", ["imdb", "lra_text"])
def test_a_review_that_is_too_large(name, tmp_path):
    large = {"aclImdb/train/pos/99_9.txt": b"a" * (imdb.MAX_BYTES + 1)}
    for source in (
        write_tar(tmp_path / "aclImdb.tar.gz", {**REVIEWS, **large}),
        write_files(tmp_path / "folder", {**REVIEWS, **large}),
    ):
        sentence = refused(name, "--from", source, "--out", tmp_path / "out")
        assert "aclImdb/train/pos/99_9.txt exceeds the limit of 16,777,216 bytes" in sentence


def by_bytes(folder, split):
    """The (review, label) of a split that was prepared by bytes."""
    rows = classified(folder, split)
    return [(bytes(int(value, 16) for value in text.split()), label) for text, label in rows]


def given(split):
    return {(content, path.split("/")[2]) for path, content in REVIEWS.items() if f"/{split}/" in path}


def test_reviews_by_bytes(archive, tmp_path, capsys):
    out = tmp_path / "out"
    prepare("lra_text", ["--from", archive, "--out", out])
    for split, source in (("train", "train"), ("valid", "test"), ("test", "test")):
        rows = by_bytes(out / "bin", split)
        assert set(rows) == given(source) and len(rows) == len(given(source))
    # Good and bad ones are mixed.
    assert len({label for _, label in by_bytes(out / "bin", "train")[:8]}) == 2
    printed = capsys.readouterr().out
    assert "rows: train 40, valid 6, test 6; published: train 25,000, valid 25,000, test 25,000" in printed
    assert "labels: neg, pos" in printed and "vocabulary: 260 types" in printed
    assert f"ready: fairseq-train {out / 'bin'} --task classification" in printed

    prepare("lra_text", ["--from", write_files(tmp_path / "folder", REVIEWS), "--out", tmp_path / "again"])
    for name in ("train.input0.bin", "test.label.npy", "dict.txt"):
        assert (tmp_path / "again" / "bin" / name).read_bytes() == (out / "bin" / name).read_bytes()


def test_every_byte_has_its_type(tmp_path):
    every = bytes(range(256))
    contents = {path: every + content for path, content in REVIEWS.items()}
    prepare("lra_text", ["--from", write_files(tmp_path / "folder", contents), "--out", tmp_path / "out"])
    assert all(text.startswith(every) for text, _ in by_bytes(tmp_path / "out" / "bin", "test"))


def test_reviews_in_words(archive, tmp_path, capsys):
    out = tmp_path / "out"
    prepare("imdb", ["--from", archive, "--out", out, "--workers", "1"])
    rows = {split: classified(out / "bin", split) for split in ("train", "valid", "test")}
    assert {split: len(part) for split, part in rows.items()} == {"train": 36, "valid": 4, "test": 6}
    for part in rows.values():
        assert np.mean([label == "pos" for _, label in part]) == 0.5
        for text, label in part:
            word = "good" if label == "pos" else "bad"
            assert text.startswith(f"A {word} film , is n't it ? Ünlike the ")
    texts = {split: (out / "text" / f"{split}.input0.txt").read_text().splitlines() for split in rows}
    assert not set(texts["train"]) & set(texts["valid"])
    assert "test" in texts["test"][0] and "train" in texts["valid"][0] and "<br" not in texts["test"][0]
    # Numbers of the reviews are there twice, so <unk>; "train" is often, "test" never.
    assert {text.split()[10] for text, _ in rows["train"]} == {"train"}
    assert {text.split()[10] for text, _ in rows["test"]} == {"<unk>"}
    assert (
        "types, words that occur 4 times or more in the training set; without --vectors"
        in capsys.readouterr().out
    )
    prepare("imdb", ["--from", archive, "--out", tmp_path / "few", "--workers", "1", "--train-rows", "10"])
    assert classified(tmp_path / "few" / "bin", "train")[0][1] in ("neg", "pos")
    few = (tmp_path / "few" / "text" / "train.input0.txt").read_text().splitlines()
    assert few == texts["train"][:10]


def test_a_vocabulary_with_vectors(archive, tmp_path, capsys):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("film 1 2\ngood 3 4\nbad 5 6\ntest 7 8\n, 9 10\n")
    words = ["--from", archive, "--out", tmp_path / "out", "--workers", "1"]
    prepare("imdb", [*words, "--vectors", vectors])
    folder = tmp_path / "out" / "bin"
    assert {line.split()[0] for line in (folder / "dict.txt").read_text().splitlines()} == {
        "film", "good", "bad", ","
    }  # fmt: skip
    assert (folder / "vectors.txt").read_text().splitlines() == ["film 1 2", "good 3 4", "bad 5 6", ", 9 10"]
    text, label = classified(folder, "test")[0]
    assert text.split()[:4] == ["<unk>", "good" if label == "pos" else "bad", "film", ","]
    assert "and have a 2-dimensional vector" in capsys.readouterr().out
    assert (folder / "source.txt").read_text() == f"{archive}, with vectors of {vectors}\n"
    assert f"was made from {archive}, with vectors of {vectors}:" in refused(
        "imdb", "--out", tmp_path / "out"
    )
    prepare("imdb", ["--out", tmp_path / "out", "--vectors", vectors])
    assert "already there" in capsys.readouterr().out

    out = tmp_path / "other"
    vectors.write_text("Film 1 2\nbad 1\n")
    words[3] = out
    assert "line 2 has 1 fields" in refused("imdb", *words, "--vectors", vectors) and not out.exists()


def test_an_interrupted_preparation_goes_on(archive, tmp_path, monkeypatch, capsys):
    from data_prep import labelled_words

    def interrupted(*_):
        raise KeyboardInterrupt

    words = ["--from", archive, "--out", tmp_path / "out", "--workers", "1"]
    with monkeypatch.context() as patch:
        patch.setattr(labelled_words, "write_bin", interrupted)
        with pytest.raises(SystemExit) as ended:
            prepare("imdb", words)
    assert ended.value.code == 130 and sorted(path.name for path in (tmp_path / "out").iterdir()) == ["text"]
    monkeypatch.setattr(labelled_words, "map_lines", interrupted)  # that is done
    monkeypatch.setattr(imdb, "reviews", interrupted)
    prepare("imdb", words)
    assert len(classified(tmp_path / "out" / "bin", "test")) == 6


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("aclImdb/test/pos/0_7.txt", b" \n", "has an empty review, test/pos/0_7.txt"),
        ("aclImdb/train/neg/0_2.txt", b"caf\xe9", "the review neg/0_2.txt is not UTF-8 text"),
    ],
)
def test_bad_reviews(path, content, message, tmp_path):
    folder = write_files(tmp_path / "folder", {**REVIEWS, path: content})
    assert message in refused("imdb", "--from", folder, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_kind_is_missing(tmp_path):
    folder = write_files(tmp_path / "folder", {x: y for x, y in REVIEWS.items() if "/test/neg/" not in x})
    message = refused("lra_text", "--from", folder, "--out", tmp_path / "out")
    assert f"{folder} has fewer than two test/neg/*.txt: both classes are needed" in message


def test_the_archive_is_downloaded(archive, tmp_path, monkeypatch):
    content = archive.read_bytes()
    with Server() as server:
        server.files["imdb"] = content
        facts = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for key, value in {**facts, "mirrors": [server.url("imdb")]}.items():
            monkeypatch.setitem(imdb.FACTS, key, value)
        for name in ("lra_text", "imdb"):
            prepare(name, ["--out", tmp_path / name, "--workers", "1"])
            assert len(classified(tmp_path / name / "bin", "test")) == 6
        prepare("lra_text", ["--out", tmp_path / "lra_text"])
    assert [path for path, _ in server.asked] == ["/imdb/aclImdb_v1.tar.gz"] * 2


@pytest.mark.skipif("LRPE_DATA" not in os.environ, reason="LRPE_DATA names no folder of data")
def test_the_reviews_are_whole(published, tmp_path, capsys):
    archive = published / "imdb" / "aclImdb.tar.gz"
    prepare("lra_text", ["--from", archive, "--out", tmp_path])
    assert "rows: train 25,000, valid 25,000, test 25,000, as published" in capsys.readouterr().out
    for split in ("train", "test"):
        assert np.load(tmp_path / "bin" / f"{split}.label.npy").sum() == 12_500
