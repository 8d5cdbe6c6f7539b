"""Labeled images such as ImageNet (Deng et al. 2009) in class folders or the archives of ILSVRC 2012."""

import io
import tarfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from PIL import Image

from data_prep.corpus import number
from data_prep.fetch import files_of_tar
from data_prep.labelled import TRAIN_ROWS, Labelled, dataset_builder, write_labels, write_metadata
from data_prep.parallel import ordered_map, progress
from fairseq_lrpe.data.image_files import SUFFIXES, decode, is_image
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import read_file, visible_files

ACCEPTS = "a folder with {train,valid,test}/CLASS/*.jpg, .png or other images, or an archive of such a folder"
SPLITS = {  # {name of a folder in lowercase: split}
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "val", "validation", "dev"), "valid"),
    **dict.fromkeys(("test", "testing"), "test"),
}
TRAIN, VALID = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
DEVKIT_FOLDER = "ILSVRC2012_devkit_t12/data"
QUALITY = 95  # of resized JPEG files
BLOCK = 20  # images that a worker process decodes at a time


class ImageFile(NamedTuple):
    """An image and its class: a file or, if ``size`` >= 0, ``size`` bytes at ``begin`` of an archive."""

    label: str
    name: str
    path: Path
    begin: int = 0
    size: int = -1

    def read(self) -> bytes:
        if self.size < 0:
            return read_file(self.path)
        with self.path.open("rb") as file:
            file.seek(self.begin)
            return file.read(self.size)


ImageFiles = dict[str, list[ImageFile]]


class ClassFolders(Labelled):
    """Labeled images, for the task ``image_classification``.

    They are read from a folder with {train,valid,test}/CLASS/*.jpg or other images (valid may be named val,
    validation or dev), or from an archive of such a folder. The class is the name of the folder inside the
    split's folder. Without valid, the last tenth of the training images is used for validation. --train-rows
    N uses the first N training images. For both purposes, images are first sorted by name and interleaved by
    class, so that both parts have the proportions of the classes.

    Image files are stored unchanged; with --shorter-side N, larger ones are stored as smaller JPEG files,
    which are decoded faster. Unreadable ones are skipped and listed in OUT/bin/unreadable.txt.
    """

    metavar = "FILE_OR_FOLDER"
    accepts = ACCEPTS
    task = "image_classification"
    options: ClassVar = {
        **TRAIN_ROWS,
        "--shorter-side": number(
            "maximum shorter side in pixels; larger images are resized and stored as JPEG (default: no limit)"
        ),
    }
    rows: ClassVar = {"train": 45_000, "valid": 5_000, "test": 10_000}

    def published_rows(self, args):
        return self.rows

    def find(self, args) -> ImageFiles:
        return in_class_folders(self.archive(args))

    def prepare(self, args, folder):
        found = with_validation(self.find(args))
        found["train"] = found["train"][: args.train_rows]
        check_classes({split: [image.label for image in images] for split, images in found.items()})
        labels = sorted({image.label for image in found["train"]})
        rows = {}
        for split, images in found.items():
            rows[split] = self.write_images(folder, split, sorted(images), labels, args)
        self.write_unreadable(folder)
        write_metadata(folder, labels, rows, images=True)

    def write_images(self, folder: Path, split: str, images: list[ImageFile], labels: list[str], args) -> int:
        prefix = folder / f"{split}.input0"
        files, kept = dataset_builder(prefix, np.uint8), []
        numbers = {label: i for i, label in enumerate(labels)}
        checked = partial(read_checked, split=split, shorter_side=args.shorter_side)
        with closing(ordered_map(checked, images, args.workers, BLOCK)) as read:
            bar = progress(read, f"writing {split}", "images", total=len(images))
            for label, content in self.readable(bar, len(images)):
                files.add_item(torch.frombuffer(bytearray(content), dtype=torch.uint8))
                kept.append(numbers[label])
        if split == "train" and (lost := {*numbers.values()} - {*kept}):
            name = labels[min(lost)]
            raise UserError(f"no training image of the class {name} is readable: remove its folder")
        files.finalize(f"{prefix}.idx")
        write_labels(folder, split, kept)
        return len(kept)

    def vocabulary(self, data):
        return ""


class ImageNet(ClassFolders):
    """ImageNet (Deng et al. 2009) or other labeled images, for the task ``image_classification``.

    ImageNet (ILSVRC 2012) is read from a folder with the published ILSVRC2012_img_train.tar,
    ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz, which contains the validation labels. Other
    images are read as for the corpus cifar10.
    """

    accepts = f"a folder with {TRAIN}, {VALID} and {DEVKIT}; or {ClassFolders.accepts}"
    rows: ClassVar = {"train": 1_281_167, "valid": 50_000}

    def find(self, args):
        train, valid, devkit = (args.source / name for name in (TRAIN, VALID, DEVKIT))
        if not train.is_file():
            return super().find(args)
        return {"train": ilsvrc_train(train), "valid": ilsvrc_valid(valid, devkit)}


def in_class_folders(folder: Path) -> ImageFiles:
    """Returns {split: image files} of a folder; prints the numbers of validation images and ignored files.

    The class is the name of the folder inside the split's folder, as in torchvision's ImageFolder; subfolders
    are allowed. The folders of the splits may be at any depth that is the same for all of them. Test images
    without class folders are ignored.

    Raises:
        UserError: If there are no training images, one of them is not in a class folder, or no validation
            images are found but an ignored file may be one.
    """
    files = {path.relative_to(folder).parts: path for path in visible_files(folder)}
    images = {parts for parts in files if is_image(parts[-1])}
    depths = [i for parts in images for i, part in enumerate(parts[:-1]) if split_of(part) == "train"]
    if not depths:
        expected = f"expected files train/CLASS/NAME that end in {', '.join(SUFFIXES)}"
        raise UserError(f"--from has no training images: {expected}")
    depth, found, ignored, unclear = min(depths), defaultdict(list), [], []
    for parts, path in files.items():
        split, inside = split_of(parts[depth]) if len(parts) > depth + 1 else None, parts[depth + 1 :]
        if parts in images and split and len(inside) > 1:
            found[split].append(ImageFile(inside[0], "/".join(inside[1:]), path))
            continue
        ignored.append("/".join(parts))
        if split == "valid" or (parts in images and split is None):
            unclear.append(ignored[-1])
        elif parts in images and split == "train":
            remedy = f"move it to {parts[depth]}/CLASS/{parts[-1]}"
            raise UserError(f"{ignored[-1]} is not in a class folder: {remedy}")
    if "valid" in found:
        print(f"validation images: {len(found['valid']):,}; no training images are held out")
    elif unclear:
        expected = f"name them valid/CLASS/NAME, with the ending {', '.join(SUFFIXES)}"
        raise UserError(f"there may be validation images, such as {unclear[0]}: {expected}, or remove them")
    if ignored:
        print(f"ignored: {len(ignored):,} files, such as {min(ignored)}")
    return found


def split_of(folder: str) -> str | None:
    return SPLITS.get(folder.lower())


def interleave(images: Iterable[ImageFile]) -> list[ImageFile]:
    """Returns the images in an order in which each part has about the same proportions of the classes.

    The images of a class are ordered by name. If all classes are equally large, the first image of each class
    is followed by the second of each class, and so on.
    """
    images, count, turns = sorted(images), Counter(), []
    sizes = Counter(image.label for image in images)
    for image in images:
        turns.append(((count[image.label] + 0.5) / sizes[image.label], image))
        count[image.label] += 1
    return [image for _, image in sorted(turns)]


def with_validation(images: ImageFiles) -> ImageFiles:
    """Returns the images of each split, interleaved by class.

    If there are no validation images, the last tenth of the training images is used for validation only.
    """
    train, valid, test = (interleave(images.get(split, [])) for split in ("train", "valid", "test"))
    if not valid:
        if not (held_out := len(train) // 10):
            number = f"{len(train)} training images and no validation images"
            raise UserError(f"--from has {number}: expected at least 10 training images")
        print(f"no validation images: the last tenth of the training images, {held_out:,}, is held out")
        train, valid = train[:-held_out], train[-held_out:]
    return {"train": train, "valid": valid} | ({"test": test} if test else {})


def check_classes(labels: dict[str, Iterable[str]]) -> None:
    """Raises UserError if {split: labels} has only one training class, or a class without training images."""
    known = set(labels["train"])
    if len(known) < 2:
        raise UserError(f"there are training images of only one class, {min(known)}: expected two or more")
    for split, names in labels.items():
        if unknown := set(names) - known:
            name = f"the class {min(unknown)}, which has no training images"
            remedy = "rename or remove its folder, or use more training images"
            raise UserError(f"there are {split} images of {name}: {remedy}")


def ilsvrc_train(archive: Path) -> list[ImageFile]:
    """Returns ILSVRC's training images; the archive has one tar archive per class, such as n01440764.tar."""
    images = []
    for name, begin, size in files_of_tar(archive):
        label, file = Path(name).parts[-2:]
        images.append(ImageFile(label.removesuffix(".tar"), file, archive, begin, size))
    return images


def ilsvrc_valid(archive: Path, devkit: Path) -> list[ImageFile]:
    """Returns ILSVRC's validation images; the devkit lists their classes in the order of their file names."""
    from scipy.io import loadmat  # takes seconds to import

    with tarfile.open(devkit) as opened:
        table = io.BytesIO(opened.extractfile(f"{DEVKIT_FOLDER}/meta.mat").read())
        truth = opened.extractfile(f"{DEVKIT_FOLDER}/ILSVRC2012_validation_ground_truth.txt").read().split()
    synsets = loadmat(table, squeeze_me=True)["synsets"]
    classes = dict(zip(synsets["ILSVRC2012_ID"].tolist(), synsets["WNID"].tolist(), strict=True))
    images = sorted((Path(name).name, begin, size) for name, begin, size in files_of_tar(archive))
    if len(images) != len(truth):
        counts = f"has {len(images):,} images, but {devkit} has {len(truth):,} labels"
        raise UserError(f"{archive} {counts}: pass the published files")
    pairs = zip(truth, images, strict=True)
    return [ImageFile(classes[int(x)], name, archive, begin, size) for x, (name, begin, size) in pairs]


def read_checked(image: ImageFile, split: str, shorter_side: int | None) -> tuple[tuple[str, bytes], str]:
    """Returns ((class, content), "") of an image, or ((class, b""), error) if it cannot be decoded.

    If the shorter side exceeds ``shorter_side``, the content is that of a JPEG file with this shorter side.
    """
    warnings.simplefilter("ignore")  # Pillow warns about defects that it tolerates
    try:
        content = image.read()
        pixels = decode(content)
    except (ValueError, OSError) as error:
        return (image.label, b""), f"{split}/{image.label}/{image.name}: {error}"
    if shorter_side and min(pixels.size) > shorter_side:
        size = [round(side * shorter_side / min(pixels.size)) for side in pixels.size]
        out = io.BytesIO()
        pixels.resize(size, Image.Resampling.BICUBIC).save(out, "JPEG", quality=QUALITY)
        content = out.getvalue()
    return (image.label, content), ""
