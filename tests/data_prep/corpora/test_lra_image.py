"""CIFAR-10 in grey, from the published batches or from pictures."""

import hashlib
import io
import json
import os
import pickle

import numpy as np
import pytest
from local_server import Server
from PIL import Image
from small_corpora import classified, prepare, refused, write_files, write_tar

from data_prep.corpora import lra_image

RNG = np.random.default_rng(1)
COLOURS = RNG.integers(0, 256, (36, 32, 32, 3), dtype=np.uint8)
LABELS = [i % 10 for i in range(36)]


def batch(rows, protocol=2):
    data = COLOURS[rows].transpose(0, 3, 1, 2).reshape(-1, 3072)
    labels = [LABELS[i] for i in rows]
    return pickle.dumps({b"batch_label": b"made up", b"labels": labels, b"data": data}, protocol)


def batches(protocol=2):
    """Thirty training images, in an order of files that is not theirs, and six of the test set."""
    parts = {f"data_batch_{i + 1}": range(6 * i, 6 * i + 6) for i in (3, 0, 4, 1, 2)}
    parts["test_batch"] = range(30, 36)
    named = {f"cifar-10-batches-py/{name}": batch(list(rows), protocol) for name, rows in parts.items()}
    return {**named, "cifar-10-batches-py/readme.html": b"-", "cifar-10-batches-py/batches.meta": b"-"}


def picture(values, kind="PNG"):
    out = io.BytesIO()
    Image.fromarray(values).save(out, kind)
    return out.getvalue()


def files():
    names = ("train", "0001"), ("train", "0002"), ("test", "0001")
    classes = ("ant", "bee", "cow", "dog", "eel")
    places = [(split, name, number) for name in classes for split, number in names]
    return {
        f"some/{split}/{name}/{number}.png": picture(COLOURS[i])
        for i, (split, name, number) in enumerate(places)
    }


def grey(colours):
    """By ITU-R 601."""
    return colours.astype(float) @ (0.299, 0.587, 0.114)


def values(row):
    return np.array(row[0].split(), dtype=int)


def run(source, out, *more):
    prepare("lra_image", ["--from", source, "--out", out, *more])
    return out / "bin"


@pytest.mark.parametrize("protocol", [2, 4])
def test_the_published_batches(protocol, tmp_path, capsys):
    folder = run(write_tar(tmp_path / "cifar.tar.gz", batches(protocol)), tmp_path / "out")
    rows = [row for split in ("train", "valid", "test") for row in classified(folder, split)]
    assert [len(classified(folder, split)) for split in ("train", "valid", "test")] == [27, 3, 6]
    assert [label for _, label in rows] == [lra_image.CLASSES[i] for i in LABELS]
    for row, colours in zip(rows, COLOURS, strict=True):
        assert np.abs(values(row) - grey(colours).ravel()).max() <= 1
    about = json.loads((folder / "about.json").read_text())
    assert about["shape"] == [32, 32] and about["pixels"] == {"mean": 122.6, "std": 61.0}
    printed = capsys.readouterr().out
    assert "published: train 45,000, valid 5,000, test 10,000" in printed and "260 types" in printed


def test_all_256_values(tmp_path):
    ramp = np.arange(3072, dtype=np.uint8).reshape(1, 3072)
    ramp[:] = np.tile(np.arange(1024) % 256, 3)
    every = pickle.dumps({b"labels": [0], b"data": ramp}, 2)
    folder = write_files(tmp_path / "given", {**batches(), "test_batch": every})
    (folder / "cifar-10-batches-py" / "test_batch").unlink()
    row = classified(run(folder, tmp_path / "out"), "test")[0]
    assert values(row).tolist() == list(range(256)) * 4


def test_smaller_pictures_are_means_of_areas(tmp_path):
    folder = run(write_files(tmp_path / "given", batches()), tmp_path / "out", "--size", "16")
    row = classified(folder, "train")[0]
    expected = grey(COLOURS[0]).reshape(16, 2, 16, 2).mean((1, 3)).ravel()
    assert np.abs(values(row) - expected).max() <= 1.5
    assert json.loads((folder / "about.json").read_text())["shape"] == [16, 16]
    assert (folder / "source.txt").read_text().endswith("given in 16 pixels\n")


def test_pictures(tmp_path):
    contents = files()
    # Eight more of each class: the classes take turns, so the last tenth has one of each.
    for path in [path for path in contents if "train" in path and "0002" in path]:
        contents |= {path.replace("0002", f"{i:04}"): contents[path] for i in range(3, 11)}
    folder = run(write_files(tmp_path / "given", contents), tmp_path / "out")
    classes = ["ant", "bee", "cow", "dog", "eel"]
    assert [label for _, label in classified(folder, "train")] == classes * 9
    assert [label for _, label in classified(folder, "valid")] == classes
    found = values(classified(folder, "train")[1])  # the first bee
    assert np.abs(found - grey(COLOURS[3]).ravel()).max() <= 1
    again = run(write_tar(tmp_path / "given.tar.gz", contents), tmp_path / "again")
    assert classified(again, "train") == classified(folder, "train")


class Evil:
    def __reduce__(self):
        return (os.system, ("touch evil",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({b"data": Evil()}), "data_batch_1 is no batch of CIFAR-10 (it refers to posix.system)"),
        (b"", "data_batch_1 is no batch of CIFAR-10 ("),
        (b"a text", "data_batch_1 is no batch of CIFAR-10 ("),
        (pickle.dumps({b"labels": [0]}), "data_batch_1 is no batch of CIFAR-10 (b'data')"),
        (pickle.dumps({b"labels": [0], b"data": np.zeros((1, 9))}), "data_batch_1 is no batch of CIFAR-10 ("),
        (
            pickle.dumps({b"labels": [11], b"data": np.zeros((1, 3072))}),
            "data_batch_1 is no batch of CIFAR-10",
        ),
    ],
)
def test_a_bad_batch(content, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write_files(tmp_path / "given", {"data_batch_1": content, "test_batch": batch([0])})
    sentence = refused("lra_image", "--from", folder, "--out", tmp_path / "out")
    assert sentence.startswith(f"prepare lra_image: {folder}: {message}")
    assert not (tmp_path / "out").exists() and not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no picture", "is no image: download it again"),
        (picture(COLOURS[0])[:900], "is no complete image ("),
        (picture(COLOURS[0], "JPEG")[:500], "is no complete image ("),
        (picture(COLOURS[0][:16]), "has 32 x 16 pixels instead of 32 x 32"),
        (None, "images of cow, and none for training"),
    ],
)
def test_bad_pictures(content, message, tmp_path):
    contents = {**files(), "some/train/cow/0001.png": content}
    if content is None:
        contents = {path: kept for path, kept in files().items() if "/train/cow" not in path}
        contents |= {path.replace("0001", "0003"): kept for path, kept in contents.items() if "train" in path}
    folder = write_files(tmp_path / "given", contents)
    sentence = refused("lra_image", "--from", folder, "--out", tmp_path / "out")
    where = f"{folder}: train/cow/0001.png" if content else f"{folder} has test"
    assert sentence.startswith(f"prepare lra_image: {where} ") and message in sentence
    assert not (tmp_path / "out").exists()


def test_too_few_pictures_and_too_many_pixels(tmp_path):
    folder = write_files(tmp_path / "given", {x: y for x, y in files().items() if "/test/" not in x})
    out = ["--out", tmp_path / "out"]
    assert "has 10 training images and 0 for test: download it again" in refused(
        "lra_image", "--from", folder, *out
    )
    assert "--size 33 is more than the 32 pixels" in refused("lra_image", "--size", 33, *out)


def test_the_archive_is_downloaded(tmp_path, monkeypatch):
    content = write_tar(tmp_path / "cifar.tar.gz", batches()).read_bytes()
    with Server() as server:
        server.files["cifar"] = content
        facts = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for key, value in {**facts, "mirrors": [server.url("cifar")]}.items():
            monkeypatch.setitem(lra_image.FACTS, key, value)
        prepare("lra_image", ["--out", tmp_path / "out"])
    assert len(classified(tmp_path / "out" / "bin", "train")) == 27


@pytest.mark.skipif("LRPE_DATA" not in os.environ, reason="LRPE_DATA names no folder of data")
def test_the_pictures_are_whole(published, tmp_path, capsys):
    archive = published / "cifar10" / "cifar10-jpeg.tar.gz"
    prepare("lra_image", ["--from", archive, "--out", tmp_path, "--size", "16"])
    assert "rows: train 45,000, valid 5,000, test 10,000, as published" in capsys.readouterr().out
    for split, count in (("train", 4500), ("valid", 500), ("test", 1000)):
        assert np.bincount(np.load(tmp_path / "bin" / f"{split}.label.npy")).tolist() == [count] * 10
