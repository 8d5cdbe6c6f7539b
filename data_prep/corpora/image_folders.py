"""Labeled images such as ImageNet (Deng et al. 2009) in class folders or the archives of ILSVRC 2012."""

import io
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import combinations, groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from data_prep.corpus import UNPACKED, number
from data_prep.fetch import files_of_tar, unpacked
from data_prep.labeled import TRAIN_ROWS, Labeled
from fairseq_lrpe.data.image_files import SUFFIXES, decode, is_image
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import file_exists, read_file, visible_files

SPLITS = {  # {name of a folder in lowercase: split}
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "val", "validation", "dev"), "valid"),
    **dict.fromkeys(("test", "testing"), "test"),
}
TRAIN = "ILSVRC2012_img_train.tar"
VALID = "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
DEVKIT_FOLDER = "ILSVRC2012_devkit_t12/data"
QUALITY = 95  # of resized JPEG files


class ImageFile(NamedTuple):
    """An image and its class. The image is a file, or ``size`` bytes from ``begin`` on in an archive."""

    label: str
    name: str
    path: Path
    begin: int = 0
    size: int = -1

    def read(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.begin)
            return file.read(self.size)


ImageFiles = dict[str, list[ImageFile]]


class ClassFolders(Labeled):
    """Labeled images, for the task ``image_classification``.

    The images are read from a folder with {train,valid,test}/CLASS/*.jpg or other images (valid may be named
    val, validation or dev), or from an archive of such a folder. The class is the name of the folder inside
    the split's folder. Without valid, the last tenth of the training images is used for validation.
    --train-rows N uses the first N training images. For both purposes, images are first sorted by name and
    interleaved by class, so that each part has about the proportions of the classes.

    Image files are stored unchanged; with --shorter-side N, larger images are stored as smaller JPEG files,
    which are decoded faster. Unreadable images are skipped and listed in OUT/bin/unreadable.txt.
    """

    accepts = (
        "a folder with {train,valid,test}/CLASS/*.jpg, .png or other images, or an archive of such a folder"
    )
    task = "image_classification"
    options = {
        **TRAIN_ROWS,
        "--shorter-side": number(
            "maximum shorter side in pixels; larger images are resized and stored as JPEG (default: no limit)"
        ),
    }
    types = ()

    def find(self, args) -> ImageFiles:
        return in_class_folders(self.archive(args))

    def splits(self, args):
        splits = with_validation(self.find(args))
        splits["train"] = splits["train"][: args.train_rows]
        for images in splits.values():
            images.sort()
        read = partial(read_image, shorter_side=args.shorter_side)
        return self.rows(splits, read, args.workers)

    def rows(self, splits: ImageFiles, read: Callable[[ImageFile], np.ndarray], workers: int) -> Iterator:
        """Yields (split, rows, number of images) of each split; ``read`` returns the values of an image."""
        check_classes(splits)
        self.labels = sorted(set(map(attrgetter("label"), splits["train"])))
        for split, images in splits.items():
            yield split, self.split_rows(split, images, read, workers), len(images)

    def split_rows(
        self, split: str, images: list[ImageFile], read: Callable[[ImageFile], np.ndarray], workers: int
    ) -> Iterator[tuple[np.ndarray, int]]:
        """Yields (values, index of the class) of the readable images of a split."""
        named = []
        for image in images:
            named.append((f"{split}/{image.label}/{image.name}", image))
        for image, values in self.readable(read, named, workers):
            yield values, self.labels.index(image.label)

    def metadata(self, args):
        return {"images": True}


class ImageNet(ClassFolders):
    """ImageNet (Deng et al. 2009) or other labeled images, for the task ``image_classification``.

    ImageNet (ILSVRC 2012) is read from a folder with the published ILSVRC2012_img_train.tar,
    ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz, which contains the validation labels. Other
    images are read as described by `prepare cifar10 --help`.
    """

    accepts = f"a folder with {TRAIN}, {VALID} and {DEVKIT}; or {ClassFolders.accepts}"

    def find(self, args):
        train = args.source / TRAIN
        if not file_exists(train):
            return super().find(args)
        devkit = unpacked(args.source / DEVKIT, args.out / UNPACKED) / DEVKIT_FOLDER
        return {"train": ilsvrc_train(train), "valid": ilsvrc_valid(args.source / VALID, devkit)}


def in_class_folders(folder: Path) -> ImageFiles:
    """Returns {split: image files} of a folder; prints the numbers of validation images and ignored files.

    The class is the name of the folder inside the split's folder, as in torchvision's ImageFolder; subfolders
    are allowed. Each split has one folder. The folders of all splits are in the same folder, at any depth.
    Test images without class folders are ignored; if there are validation images, so are all images outside
    of the splits.

    Raises:
        UserError: if there are no training images, the split or the class of an image is unclear, or the
            folders of the splits are not side by side.
    """
    files = {path.relative_to(folder).parts: path for path in visible_files(folder)}
    depth = depth_of_splits(files)
    images = defaultdict(list)
    folders = set()
    ignored = []
    unclear = defaultdict(list)  # {split: files that may be images}
    for parts, path in files.items():
        split = split_of(parts[depth]) if len(parts) > depth + 1 else None
        inside = parts[depth + 1 :]
        if is_image(parts[-1]) and split and len(inside) > 1:
            label = unicodedata.normalize("NFC", inside[0])  # macOS decomposes accented characters
            images[split].append(ImageFile(label, "/".join(inside[1:]), path))
            folders.add(parts[: depth + 1])
            continue
        ignored.append("/".join(parts))
        if is_image(parts[-1]) and split != "test":
            unclear[split].append(ignored[-1])
        elif split == "valid":  # perhaps an image of an unknown format
            unclear[None].append(ignored[-1])
    wrong = unclear["train"] + unclear["valid"]
    if "valid" not in images:
        wrong += unclear[None]
    if wrong:
        expected = f"{{train,valid,test}}/CLASS/NAME, with the ending {', '.join(SUFFIXES)}"
        raise UserError(f"{wrong[0]} may be an image: rename it to {expected}, or remove it")
    check_side_by_side(folders)
    if "valid" in images:
        print(f"validation images: {len(images['valid']):,}; no training images are held out")
    if ignored:
        print(f"ignored: {len(ignored):,} files, such as {min(ignored)}")
    return images


def depth_of_splits(files: Iterable[tuple[str, ...]]) -> int:
    """Returns the smallest depth of a training folder with an image; ``files`` are the parts of paths."""
    depths = []
    for parts in files:
        for depth, folder in enumerate(parts[:-1]):
            if split_of(folder) == "train" and is_image(parts[-1]):
                depths.append(depth)
    if not depths:
        expected = f"expected files train/CLASS/NAME that end in {', '.join(SUFFIXES)}"
        raise UserError(f"--from has no training images: {expected}")
    return min(depths)


def check_side_by_side(folders: Iterable[tuple[str, ...]]) -> None:
    """Raises UserError if two of the ``folders`` are of the same split, or not in the same folder."""
    for first, second in combinations(sorted(folders), 2):
        if first[:-1] != second[:-1] or split_of(first[-1]) == split_of(second[-1]):
            wrong = f"{'/'.join(first)} and {'/'.join(second)}"
            expected = "pass a folder with one folder for each split, all of them in the same folder"
            raise UserError(f"--from has images in {wrong}, which may be the same ones: {expected}")


def split_of(folder: str) -> str | None:
    return SPLITS.get(folder.lower())


def interleave(images: Iterable[ImageFile]) -> list[ImageFile]:
    """Returns the images in an order in which all parts contain the classes in about the same proportions.

    The images of a class are sorted by name. If all classes are equally large, the first images of all
    classes are followed by the second images of all classes, and so on.
    """
    turns = []
    for _, group in groupby(sorted(images), key=attrgetter("label")):
        members = list(group)
        for index, image in enumerate(members):
            turns.append(((index + 0.5) / len(members), image))
    return [image for _, image in sorted(turns)]


def with_validation(images: ImageFiles) -> ImageFiles:
    """Returns {split: images}, interleaved by class.

    If there are no validation images, the last tenth of the training images is used for validation only.
    """
    train = interleave(images.get("train", []))
    valid = interleave(images.get("valid", []))
    test = interleave(images.get("test", []))
    if not valid:
        held_out = len(train) // 10
        if not held_out:
            number = f"{len(train)} training images and no validation images"
            raise UserError(f"--from has {number}: expected at least 10 training images")
        print(f"no validation images: the last tenth of the training images, {held_out:,}, is held out")
        valid = train[-held_out:]
        train = train[:-held_out]
    splits = {"train": train, "valid": valid}
    if test:
        splits["test"] = test
    return splits


def check_classes(splits: ImageFiles) -> None:
    """Raises UserError for a single training class, a class without training images, or a bad name."""
    labels = {}
    for split, images in splits.items():
        labels[split] = set(map(attrgetter("label"), images))
    known = labels["train"]
    for label in sorted(known):
        if set(label) & set("\t\r\n"):  # separators in files of predictions
            raise UserError(f"the class {label!r} has a tab or line break in its name: rename its folder")
    if len(known) < 2:
        raise UserError(f"there are training images of only one class, {min(known)}: expected two or more")
    for split, names in labels.items():
        if unknown := names - known:
            name = f"the class {min(unknown)}, which has no training images"
            remedy = "rename or remove its folder, or use more training images"
            raise UserError(f"there are {split} images of {name}: {remedy}")


def ilsvrc_train(archive: Path) -> list[ImageFile]:
    """Returns ILSVRC's training images in an archive that contains a tar archive per class."""
    images = []
    for name, begin, size in files_of_tar(archive):
        parts = Path(name).parts
        if len(parts) < 2:
            raise UserError(f"{archive} has {name} instead of an archive of each class: download it again")
        images.append(ImageFile(parts[-2].removesuffix(".tar"), parts[-1], archive, begin, size))
    return images


def ilsvrc_valid(archive: Path, devkit: Path) -> list[ImageFile]:
    """Returns ILSVRC's validation images in an archive; ``devkit`` has the files that list their classes."""
    from scipy.io import loadmat

    table = io.BytesIO(read_file(devkit / "meta.mat"))
    truth = read_file(devkit / "ILSVRC2012_validation_ground_truth.txt").split()
    synsets = loadmat(table, squeeze_me=True)["synsets"]
    classes = dict(zip(synsets["ILSVRC2012_ID"].tolist(), synsets["WNID"].tolist(), strict=True))
    files = []
    for name, begin, size in files_of_tar(archive):
        files.append((Path(name).name, begin, size))
    files.sort()
    if len(files) != len(truth):
        wrong = f"{archive} has {len(files):,} images, but {DEVKIT} has the classes of {len(truth):,}"
        raise UserError(f"{wrong}: download both again")
    images = []
    for class_number, (name, begin, size) in zip(truth, files, strict=True):
        images.append(ImageFile(classes[int(class_number)], name, archive, begin, size))
    return images


def read_image(image: ImageFile, shorter_side: int | None) -> np.ndarray:
    """Returns the bytes (n,) of an image file; raises ValueError if it cannot be decoded.

    An image whose shorter side exceeds ``shorter_side`` pixels is resized and encoded as JPEG.
    """
    content = image.read()
    pixels = decode(content)
    if shorter_side and min(pixels.size) > shorter_side:
        size = [round(side * shorter_side / min(pixels.size)) for side in pixels.size]
        out = io.BytesIO()
        pixels.resize(size, Image.Resampling.BICUBIC).save(out, "JPEG", quality=QUALITY)
        content = out.getvalue()
    return np.frombuffer(content, np.uint8)
