"""Images in class folders or in ImageNet's archives, which are stored unchanged or resized."""

import errno
import io
import json
import os
import re
import shutil
import tarfile
import unicodedata

import numpy as np
import pytest
from fairseq.data.indexed_dataset import MMapIndexedDataset
from PIL import Image
from scipy.io import savemat
from small_corpora import contents, error_of, run, write_files, write_tar, write_zip
from support.image_files import colored_image

from data_prep import labeled
from data_prep.corpora.image_folders import DEVKIT, TRAIN, VALID, ImageFile
from fairseq_lrpe.data.image_files import decode


def files(train=4, classes=("ant", "bee", "cow"), **more):
    """Returns {path: bytes} of class folders, half of the images PNG."""
    counts = {"train": train, **more}
    return {
        f"top/{split}/{name}/{i:02}.{kind}": colored_image(label, 100 * number + i, kind.upper())
        for number, (split, count) in enumerate(counts.items())
        for label, name in enumerate(classes)
        for i in range(count)
        for kind in [("jpeg", "png")[i % 2]]
    }


def prepared(folder, split):
    """Returns [(name of the label, file content)] of the images of a split."""
    about = json.loads((folder / "about.json").read_text())
    labels = np.load(folder / f"{split}.label.npy")
    rows = MMapIndexedDataset(str(folder / f"{split}.input0"))
    assert about["rows"][split] == len(rows) == len(labels)
    return [(about["labels"][label], bytes(rows[i].tolist())) for i, label in enumerate(labels)]


def given(found, split):
    """Returns the same of class folders, by class and name."""
    return [(path.split("/")[2], found[path]) for path in sorted(found) if f"/{split}/" in path]


def test_files_are_stored_unchanged_by_class_and_name(tmp_path):
    found = files(valid=1, test=2)
    folder = run("cifar10", write_files(tmp_path / "given", found), tmp_path / "out")
    for split in ("train", "valid", "test"):
        assert prepared(folder, split) == given(found, split)
    about = json.loads((folder / "about.json").read_text())
    assert about["images"] is True and about["labels"] == ["ant", "bee", "cow"] and about["inputs"] == 1
    assert not (folder / "dict.txt").exists() and not (folder / "unreadable.txt").exists()


def test_names_of_classes_may_be_composed_or_decomposed(tmp_path):
    """macOS decomposes accented characters of names, which other systems keep as they are."""
    train, valid = (files(1, (unicodedata.normalize(form, "épée"), "bee")) for form in ("NFD", "NFC"))
    valid = {path.replace("/train/", "/valid/"): content for path, content in valid.items()}
    folder = run("cifar10", write_files(tmp_path / "given", {**train, **valid}), tmp_path / "out")
    assert json.loads((folder / "about.json").read_text())["labels"] == [
        "bee",
        unicodedata.normalize("NFC", "épée"),
    ]


def test_larger_images_are_resized(tmp_path):
    """Images of 20 x 16 pixels with a shorter side of 8; images that are small enough stay unchanged."""
    found = files(valid=1)
    source = write_files(tmp_path / "given", found)
    folder = run("cifar10", source, tmp_path / "out", "--shorter-side", "8")
    pairs = zip(prepared(folder, "train"), given(found, "train"), strict=True)
    for (label, content), (name, original) in pairs:
        image = Image.open(io.BytesIO(content))
        assert label == name and (image.format, image.size) == ("JPEG", (10, 8))
        exact = np.asarray(decode(original).resize((10, 8), Image.Resampling.BICUBIC), float)
        assert np.abs(np.asarray(image) - exact).mean() < 12  # JPEG halves the resolution of colors
    same = run("cifar10", source, tmp_path / "same", "--shorter-side", "16")
    assert prepared(same, "train") == given(found, "train")


def test_validation_images_are_held_out_and_training_images_limited(tmp_path):
    """Interleaved by class: of 12 training images, the last one for validation and 7 of the others."""
    found = files(train=4, test=1)
    folder = run("cifar10", write_files(tmp_path / "given", found), tmp_path / "out", "--train-rows", "7")
    turns = sorted(given(found, "train"), key=lambda row: given(found, "train").index(row) % 4)
    assert [name for name, _ in turns[:4]] == ["ant", "bee", "cow", "ant"]
    assert prepared(folder, "train") == sorted(turns[:7], key=given(found, "train").index)
    assert prepared(folder, "valid") == turns[11:] and prepared(folder, "test") == given(found, "test")


def test_unreadable_images_are_skipped_and_listed(tmp_path, capsys):
    found, gif = files(valid=1), io.BytesIO()
    Image.new("L", (8, 8)).save(gif, "GIF")
    whole = found["top/train/cow/02.jpeg"]
    bad = {"ant/99.jpg": gif.getvalue(), "bee/00.jpeg": b"", "bee/01.png": b"a text"}
    bad["cow/02.jpeg"] = whole[: len(whole) * 9 // 10]
    kept = {path: content for path, content in found.items() if path[10:] not in bad}
    changed = {f"top/train/{name}": content for name, content in bad.items()}
    folder = run("cifar10", write_files(tmp_path / "given", found | changed), tmp_path / "out")
    lines = (folder / "unreadable.txt").read_text().splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"train/{name}" for name in bad]
    assert prepared(folder, "train") == given(kept, "train")
    assert f"skipped: 4 unreadable images, see {folder / 'unreadable.txt'}" in capsys.readouterr().out


@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O error"), PermissionError(errno.EACCES, "Denied")])
def test_errors_of_the_file_system_stop_the_preparation(error, tmp_path, monkeypatch):
    """With the path, in a worker process; the images are complete."""
    source, read = write_files(tmp_path / "given", files(valid=1)), ImageFile.read

    def failing(image):
        if image.name == "01.png" and image.label == "bee":
            raise error
        return read(image)

    monkeypatch.setattr(ImageFile, "read", failing)
    message = error_of("cifar10", "--from", source, "--out", tmp_path / "out", "--workers", 1)
    path = source / "top/train/bee/01.png"
    assert message.endswith(f"{path} cannot be read or written ({error.strerror})")
    assert not (tmp_path / "out").exists()


def write_imagenet(folder):
    """Writes archives of the classes n1, n2 and n3, and a class above them.

    Returns {class: {name: content}} of the training images, and the contents of the validation images.
    """
    pictures, inner = {}, {}
    folder.mkdir()
    for label, name in enumerate(("n2", "n3", "n1")):
        pictures[name] = {f"{name}_{i}.JPEG": colored_image(label, i) for i in range(3)}
        inner[f"{name}.tar"] = write_tar(folder / "inner", pictures[name], mode="w").read_bytes()
    valid = [colored_image(0, 50 + i) for i in range(6)]
    named = {f"ILSVRC2012_val_{i:08}.JPEG": valid[i] for i in reversed(range(6))}
    write_tar(folder / TRAIN, inner, mode="w")
    write_tar(folder / VALID, named, mode="w")
    kinds = [("ILSVRC2012_ID", object), ("WNID", object), ("num_children", object)]
    synsets = np.array([(1, "n3", 0), (2, "n1", 0), (3, "n2", 0), (4, "n9", 3)], kinds)
    meta = io.BytesIO()
    savemat(meta, {"synsets": synsets})
    texts = {"meta.mat": meta.getvalue(), "ILSVRC2012_validation_ground_truth.txt": b"1\n2\n3\n3\n2\n1\n"}
    write_tar(folder / DEVKIT, {f"ILSVRC2012_devkit_t12/data/{name}": text for name, text in texts.items()})
    return pictures, valid


def test_the_archives_of_imagenet(tmp_path):
    folder = tmp_path / "given"
    pictures, valid = write_imagenet(folder)
    data = run("imagenet", folder, tmp_path / "out")
    expected = [(name, content) for name in sorted(pictures) for content in pictures[name].values()]
    assert prepared(data, "train") == expected
    truth = zip(("n3", "n1", "n2", "n2", "n1", "n3"), valid, strict=True)
    assert sorted(prepared(data, "valid")) == sorted(truth)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["bin"]


def cut(archive):
    """Truncates an archive inside the header of its last member."""
    content = archive.read_bytes()
    with tarfile.open(archive) as opened:
        archive.write_bytes(content[: opened.getmembers()[-1].offset + 100])


def damage_the_last_class(archive):
    """Changes the name of the second image in the archive of the last class."""
    content = bytearray(archive.read_bytes())
    content[content.index(b"n1_1.JPEG")] += 1
    archive.write_bytes(content)


def halve(archive):
    archive.write_bytes(archive.read_bytes()[:200])


def with_files(*names):
    """Returns a function that replaces an archive by one with other files."""
    return lambda archive: write_tar(archive, dict.fromkeys(names, b"-"), mode="w")


@pytest.mark.parametrize("name, damage, message", [
    (TRAIN, cut, "is not a complete zip or tar archive (neither a file"),
    (TRAIN, damage_the_last_class, "is not a complete zip or tar archive (neither a file"),
    (TRAIN, with_files("0.JPEG"), "has 0.JPEG instead of an archive of each class"),
    (VALID, cut, "is not a complete zip or tar archive (neither a file"),
    (VALID, with_files("0.JPEG"), f"has 1 images, but {DEVKIT} has the classes of 6: download both"),
    (DEVKIT, halve, "is not a complete zip or tar archive ("),
    (DEVKIT, with_files(), "/ILSVRC2012_devkit_t12/data/meta.mat is missing"),
])  # fmt: skip
def test_damaged_archives_of_imagenet_are_errors(name, damage, message, tmp_path):
    folder = tmp_path / "given"
    write_imagenet(folder)
    damage(folder / name)
    assert message in error_of("imagenet", "--from", folder, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_archives_and_the_number_of_workers_make_no_difference(tmp_path, monkeypatch):
    monkeypatch.setattr(labeled, "BLOCK", 2)
    found = files(valid=1)
    first = contents(run("cifar10", write_files(tmp_path / "given", found), tmp_path / "one"))
    packed = write_tar(tmp_path / "given.tar.gz", dict(reversed(found.items())))
    other = contents(run("cifar10", packed, tmp_path / "two", "--workers", "3"))
    assert {**first, "source.json": None} == {**other, "source.json": None}
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["bin"]


INVALID = {
    "there are training images of only one class, ant": lambda path, x: x if "/ant/" in path else None,
    "images are unreadable, for example train/": lambda path, x: b"-",
    "--from has 3 training images and no validation images": lambda path, x: x if "/00." in path else None,
}


@pytest.mark.parametrize("message", INVALID)
def test_invalid_class_folders_are_errors(message, tmp_path):
    changed = {path: INVALID[message](path, content) for path, content in files(train=12).items()}
    source = write_files(tmp_path / "given", {path: x for path, x in changed.items() if x is not None})
    assert message in error_of("cifar10", "--from", source, "--out", tmp_path / "out", "--workers", 1)
    assert not (tmp_path / "out").exists()


def test_names_of_classes_with_tabs_are_errors(tmp_path):
    """Predictions are written in columns separated by tabs."""
    source = write_files(tmp_path / "given", files(valid=1, classes=("ant", "a\tbee")))
    message = error_of("cifar10", "--from", source, "--out", tmp_path / "out")
    assert r"the class 'a\tbee' has a tab or line break in its name: rename its folder" in message


VALID_SETS = {
    "val/{name}": "top/val/ant0.png may be an image: rename it",
    "val/{label}s/{name}": "there are valid images of the class ants",
    "val_images/{label}/{name}": "top/val_images/ant/ant0.png may be an image",
    "val/{label}/{name}.tga": "top/val/ant/ant0.png.tga may be an image",
    "val/{label}/images/{name}": None,
    "Validation/{label}/{name}.webp": None,
}


@pytest.mark.parametrize("place", VALID_SETS)
def test_training_images_are_held_out_only_if_there_are_no_validation_images(place, tmp_path):
    found, valid = files(train=8), {}
    for label, name in enumerate(("ant", "bee", "cow")):
        for i in range(2):
            path = "top/" + place.format(label=name, name=f"{name}{i}.png")
            valid[path] = colored_image(label, 100 + i, path.rpartition(".")[2].upper())
    source = write_files(tmp_path / "given", found | valid)
    if message := VALID_SETS[place]:
        assert message in error_of("imagenet", "--from", source, "--out", tmp_path / "out")
    else:
        folder = run("imagenet", source, tmp_path / "out")
        assert prepared(folder, "train") == given(found, "train")
        assert prepared(folder, "valid") == [(path.split("/")[2], x) for path, x in valid.items()]


@pytest.mark.parametrize(
    "folders",
    ["fold1/train fold2/val", "raw/train resized/train raw/val", "train val validation", "Train train val"],
)
def test_splits_that_are_not_side_by_side_are_errors(folders, tmp_path):
    """Some of their images may be the same."""
    found = {path.partition("/train/")[2]: content for path, content in files(train=12).items()}
    images = {f"{folder}/{path}": x for folder in folders.split() for path, x in found.items()}
    source = write_files(tmp_path / "given", images)
    message = error_of("cifar10", "--from", source, "--out", tmp_path / "out")
    named = re.search(r"has images in (\S+) and (\S+), which may be the same ones: pass a folder", message)
    assert set(named.groups()) <= set(folders.split())


def test_what_is_ignored_is_said(tmp_path, capsys):
    """Test images without labels, images in other folders, files with other endings; not hidden files."""
    hidden = [".DS_Store", "._train", "top/train/ant/._00.jpeg", "top/train/.ipynb_checkpoints/00.png"]
    hidden += ["__MACOSX/top/train/ant/._00.jpeg", "top/train/__MACOSX/a.png", "top/train/ant/Thumbs.db"]
    others = ["top/test/0.png", "top/figures/0.png", "top/train/ant/boxes.txt"]
    found = files(valid=1)
    more = {name: colored_image(0, 0, "PNG") for name in (*hidden, *others)}
    folder = run("cifar10", write_zip(tmp_path / "given.zip", found | more), tmp_path / "out")
    for split in ("train", "valid"):
        assert prepared(folder, split) == given(found, split)
    assert not (folder / "test.label.npy").exists()
    assert "ignored: 3 files, such as top/figures/0.png" in capsys.readouterr().out


@pytest.mark.parametrize("has_filter", [True, False])  # Python before 3.11.4 has no filter
def test_symbolic_links_are_followed(has_filter, tmp_path, monkeypatch):
    """To the folder of a split, of a class, and to an image; in a folder and in a tar archive."""
    if not has_filter:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    found = files(valid=1)
    write_files(tmp_path / "given", found)
    top = tmp_path / "given" / "top"
    (tmp_path / "given" / "away").mkdir()
    for path, name in {"valid": "pictures", "train/ant": "ant", "train/bee/00.jpeg": "0.jpeg"}.items():
        away = shutil.move(top / path, tmp_path / "given" / "away" / name)
        (top / path).symlink_to(os.path.relpath(away, (top / path).parent))
    shutil.make_archive(tmp_path / "given", "tar", tmp_path / "given")
    for source in (tmp_path / "given", tmp_path / "given.tar"):
        folder = run("cifar10", source, tmp_path / f"out{source.suffix}")
        assert prepared(folder, "train") == given(found, "train")
        assert prepared(folder, "valid") == given(found, "valid")
    (top / "train/bee/up").symlink_to("..")
    message = "given/top/train/bee/up is reached again by a symbolic link in this path: remove the link"
    assert message in error_of("cifar10", "--from", tmp_path / "given", "--out", tmp_path / "new")
