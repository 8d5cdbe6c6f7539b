"""IMDB reviews by bytes, in words and as running text, from a folder, an archive or a download."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from small_corpora import SPLITS, classified, error_of, run, sentences, write_files, write_tar

from data_prep.corpora import imdb

REVIEWS = {
    f"aclImdb/{split}/{label}/{i}_{7 if label == 'pos' else 2}.txt": (
        f"A {'good' if label == 'pos' else 'bad'} film, isn't it?<br /><br />Ünlike the {split} film {i}."
    ).encode()
    for split, count in (("train", 20), ("test", 3))
    for label in ("pos", "neg")
    for i in range(count)
}
OTHERS = ("aclImdb/train/unsup/0_0.txt", "aclImdb/README", "aclImdb/train/urls.txt")


@pytest.fixture
def archive(tmp_path):
    return write_tar(tmp_path / "aclImdb.tar.gz", {**REVIEWS, **dict.fromkeys(OTHERS, b"not labeled")})


def by_bytes(folder, split):
    """Returns (review, label) of each row of a split that was prepared by bytes."""
    rows = classified(folder, split)
    return [(bytes(int(value, 16) for value in text.split()), label) for text, label in rows]


def test_reviews_by_bytes(archive, tmp_path):
    folder = run("lra_text", archive, tmp_path / "out")
    for split, source in (("train", "train"), ("valid", "test"), ("test", "test")):
        rows = by_bytes(folder, split)
        expected = {(text, path.split("/")[2]) for path, text in REVIEWS.items() if f"/{source}/" in path}
        assert set(rows) == expected and len(rows) == len(expected)
    assert len({label for _, label in by_bytes(folder, "train")[:8]}) == 2  # the classes are mixed


def test_marks_and_hidden_files_are_no_part_of_the_reviews(archive, tmp_path):
    marked = {path: b"\xef\xbb\xbf" + content for path, content in REVIEWS.items()}
    hidden = {f"{path.rpartition('/')[0]}/._{Path(path).name}": b"\0\5\x16\7" for path in REVIEWS}
    folder = write_files(tmp_path / "marked", {**marked, **hidden})
    one, two = run("lra_text", archive, tmp_path / "one"), run("lra_text", folder, tmp_path / "two")
    for split in SPLITS:
        assert classified(one, split) == classified(two, split)


def test_reviews_in_words(archive, tmp_path):
    data = run("imdb", archive, tmp_path / "out")
    rows = {split: classified(data, split) for split in SPLITS}
    assert {split: len(part) for split, part in rows.items()} == {"train": 36, "valid": 4, "test": 6}
    for part in rows.values():
        assert np.mean([label == "pos" for _, label in part]) == 0.5
        for text, label in part:
            word = "good" if label == "pos" else "bad"
            assert text.startswith(f"A {word} film , is n't it ? Ünlike the ")
    folder = tmp_path / "out" / "text"
    texts = {split: (folder / f"{split}.input0.txt").read_text().splitlines() for split in rows}
    assert not set(texts["train"]) & set(texts["valid"])
    assert "test" in texts["test"][0] and "train" in texts["valid"][0] and "<br" not in texts["test"][0]


def test_word_vectors_restrict_the_vocabulary(archive, tmp_path):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("film 1 2\ngood 3 4\nbad 5 6\ntest 7 8\n, 9 10\n")
    data = run("imdb", archive, tmp_path / "out", "--vectors", vectors)
    words = [line.split()[0] for line in (data / "dict.txt").read_text().splitlines()]
    assert sorted(words) == [",", "bad", "film", "good"]
    kept = (data / "vectors.txt").read_text().splitlines()
    assert kept == ["film 1 2", "good 3 4", "bad 5 6", ", 9 10"]
    text, label = classified(data, "test")[0]
    assert text.split()[:4] == ["<unk>", "good" if label == "pos" else "bad", "film", ","]


def test_reviews_as_running_text(in_process, tmp_path, monkeypatch):
    """Every distinct review is one line of one split; unlabeled reviews are in the training set, too."""
    monkeypatch.setattr(imdb, "EVERY", 5)
    unlabeled = {f"aclImdb/train/unsup/{i}_0.txt": f"Seen {i}<br />twice".encode() for i in range(8)}
    repeated = {
        "aclImdb/test/pos/99_9.txt": b"Seen 3 <br/> twice",
        "aclImdb/train/neg/98_1.txt": b"Seen  4 twice",
    }
    reviews = REVIEWS | unlabeled | repeated
    folder = write_files(tmp_path / "given", reviews)
    data = run("imdb_lm", folder, tmp_path / "out", "--sentencepiece", 60)
    texts = {split: (tmp_path / "out/text" / f"{split}.txt").read_text().splitlines() for split in SPLITS}
    expected = []
    for part in ("train", "test"):
        paths = [Path(path) for path in reviews if path.startswith(f"aclImdb/{part}/")]
        paths.sort(key=lambda path: hashlib.sha256("/".join(path.parts[-2:]).encode()).digest())
        for path in paths:
            line = " ".join(reviews[str(path)].decode().replace("<br />", " ").replace("<br/>", " ").split())
            expected += [line] * (line not in expected)
    assert texts["valid"] == expected[::5] and texts["test"] == expected[1::5]
    assert texts["train"] == [line for i, line in enumerate(expected) if i % 5 > 1]
    assert sum("Seen" in line for line in expected) == 8 and len(expected) == len(REVIEWS) + 8
    decoded = [line.replace(" ", "").replace("▁", " ").strip() for line in sentences(data.parent, "valid")]
    assert decoded == texts["valid"] and (data / "spm.model").exists()


def test_reviews_that_are_not_utf8_are_errors(tmp_path):
    source = write_files(tmp_path / "given", {**REVIEWS, "aclImdb/train/neg/0_2.txt": b"caf\xe9"})
    message = error_of("imdb", "--from", source, "--out", tmp_path / "out")
    assert "the review neg/0_2.txt is not UTF-8 text" in message and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["lra_text", "imdb", "imdb_lm"])
def test_copies_of_the_reviews_are_errors(name, tmp_path):
    copies = {f"{folder}/{path}": content for folder in "ab" for path, content in REVIEWS.items()}
    source = write_tar(tmp_path / "copies.tar", copies, mode="w")
    message = error_of(name, "--from", source, "--out", tmp_path / "out")
    assert "--from has files in a/aclImdb and b/aclImdb, which may be the same ones" in message
    assert not (tmp_path / "out").exists()
