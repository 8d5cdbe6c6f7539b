"""CIFAR-10 in grayscale, from the published batches or from images."""

import json
import os
import pickle

import numpy as np
from small_corpora import SPLITS, classified, error_of, prepare, run, write_files, write_tar
from support.image_files import encode_image

from data_prep.corpora import lra_image
from data_prep.corpora.image_folders import ImageFile, interleave

RNG = np.random.default_rng(1)
COLORS = RNG.integers(0, 256, (36, 32, 32, 3), dtype=np.uint8)
LABELS = [i % 10 for i in range(36)]
CLASSES = ["ant", "bee", "cow", "dog", "eel"]


def batch(rows):
    data = COLORS[rows].transpose(0, 3, 1, 2).reshape(-1, 3072)
    labels = [LABELS[i] for i in rows]
    return pickle.dumps({b"batch_label": b"made up", b"labels": labels, b"data": data}, 2)


def batches():
    """Thirty training images, in files that are not in their order, and six test images."""
    parts = {f"data_batch_{i + 1}": range(6 * i, 6 * i + 6) for i in (3, 0, 4, 1, 2)}
    parts["test_batch"] = range(30, 36)
    named = {f"cifar-10-batches-py/{name}": batch(list(rows)) for name, rows in parts.items()}
    return {**named, "cifar-10-batches-py/readme.html": b"-", "cifar-10-batches-py/batches.meta": b"-"}


def files():
    names = ("train", "0001"), ("train", "0002"), ("test", "0001")
    places = [f"some/{split}/{name}/{number}.png" for name in CLASSES for split, number in names]
    return {path: encode_image(colors, "PNG") for path, colors in zip(places, COLORS, strict=False)}


def grayscale(colors):
    """Returns the values of ITU-R 601."""
    return colors.astype(float) @ (0.299, 0.587, 0.114)


def values(row):
    return np.array(row[0].split(), dtype=int)


def test_published_batches(publish, tmp_path):
    archive = write_tar(tmp_path / "cifar.tar.gz", batches())
    publish(lra_image.Cifar10("lra_image").facts, archive.read_bytes())
    prepare("lra_image", ["--out", tmp_path / "out"])
    folder = tmp_path / "out" / "bin"
    rows = [row for split in SPLITS for row in classified(folder, split)]
    assert [len(classified(folder, split)) for split in SPLITS] == [27, 3, 6]
    assert [label for _, label in rows] == [lra_image.CLASSES[i] for i in LABELS]
    for row, colors in zip(rows, COLORS, strict=True):
        assert np.abs(values(row) - grayscale(colors).ravel()).max() <= 1
    about = json.loads((folder / "about.json").read_text())
    assert about["shape"] == [32, 32] and about["pixels"] == {"mean": 122.6, "std": 61.0}


def test_smaller_images_are_means_of_areas(tmp_path):
    folder = run("lra_image", write_files(tmp_path / "given", batches()), tmp_path / "out", "--size", 16)
    row = classified(folder, "train")[0]
    expected = grayscale(COLORS[0]).reshape(16, 2, 16, 2).mean((1, 3)).ravel()
    assert np.abs(values(row) - expected).max() <= 1.5
    assert json.loads((folder / "about.json").read_text())["shape"] == [16, 16]


def test_images_are_interleaved_by_class(tmp_path):
    """So the last tenth, held out for validation, has one image of each class."""
    contents = files()
    for path in [path for path in contents if "train" in path and "0002" in path]:
        contents |= {path.replace("0002", f"{i:04}"): contents[path] for i in range(3, 11)}
    folder = run("lra_image", write_files(tmp_path / "given", contents), tmp_path / "out")
    assert [label for _, label in classified(folder, "train")] == CLASSES * 9
    assert [label for _, label in classified(folder, "valid")] == CLASSES
    found = values(classified(folder, "train")[1])  # the first bee
    assert np.abs(found - grayscale(COLORS[3]).ravel()).max() <= 1


def test_unequal_classes_have_the_same_proportions_in_each_part():
    images = [
        ImageFile(label, f"{i:02}", None) for label, n in {"bee": 90, "ant": 10}.items() for i in range(n)
    ]
    found = [image.label for image in interleave(images)]
    assert [found[n : n + 10].count("ant") for n in range(0, 100, 10)] == [1] * 10


def test_copies_of_the_batches_are_errors(tmp_path):
    folder = write_files(tmp_path, {f"{name}/{path}": x for name in "ab" for path, x in batches().items()})
    message = error_of("lra_image", "--from", folder, "--out", tmp_path / "out")
    assert "--from has files in a/cifar-10-batches-py and b/cifar-10-batches-py, which may" in message


class Evil:
    def __reduce__(self):
        return (os.system, ("touch evil",))


def test_pickled_code_is_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evil = {"cifar-10-batches-py/data_batch_1": pickle.dumps({b"data": Evil()})}
    folder = write_files(tmp_path / "given", batches() | evil)
    error = error_of("lra_image", "--from", folder, "--out", tmp_path / "out")
    assert error.endswith(
        "data_batch_1 is not one of CIFAR-10's files (it refers to posix.system): download it again"
    )
    assert not (tmp_path / "out").exists() and not (tmp_path / "evil").exists()
