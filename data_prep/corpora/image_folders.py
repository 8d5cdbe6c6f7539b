"""Labeled images such as ImageNet (Deng et al. 2009) in class folders or the archives of ILSVRC 2012."""

import io
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import combinations, groupby
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
TRAIN, VALID = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
DEVKIT_FOLDER = "ILSVRC2012_devkit_t12/data"
QUALITY = 95  # of resized JPEG files


class ImageFile(NamedTuple):
    """An image and its class: a file, or ``size`` bytes at ``begin`` of an archive."""

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

    They are read from a folder with {train,valid,test}/CLASS/*.jpg or other images (valid may be named val,
    validation or dev), or from an archive of such a folder. The class is the name of the folder inside the
    split's folder. Without valid, the last tenth of the training images is used for validation. --train-rows
    N uses the first N training images. For both purposes, images are first sorted by name and interleaved by
    class, so that both parts have the proportions of the classes.

    Image files are stored unchanged; with --shorter-side N, larger ones are stored as smaller JPEG files,
    which are decoded faster. Unreadable ones are skipped and listed in OUT/bin/unreadable.txt.
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
        found = with_validation(self.find(args))
        found["train"] = found["train"][: args.train_rows]
        read = partial(read_image, shorter_side=args.shorter_side)
        return self.rows({split: sorted(images) for split, images in found.items()}, read, args.workers)

    def rows(self, splits: ImageFiles, read: Callable[[ImageFile], np.ndarray], workers: int) -> Iterator:
        """Yields (split, rows, number of images); ``read`` returns the values of an image."""
        check_classes(splits)
        self.labels = sorted({image.label for image in splits["train"]})
        for split, images in splits.items():
            named = [(f"{split}/{image.label}/{image.name}", image) for image in images]
            found = self.readable(read, named, workers)
            yield split, ((values, self.labels.index(image.label)) for image, values in found), len(images)

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
        train, valid, devkit = (args.source / name for name in (TRAIN, VALID, DEVKIT))
        if not file_exists(train):
            return super().find(args)
        devkit = unpacked(devkit, args.out / UNPACKED) / DEVKIT_FOLDER
        return {"train": ilsvrc_train(train), "valid": ilsvrc_valid(valid, devkit)}


def in_class_folders(folder: Path) -> ImageFiles:
    """Returns {split: image files} of a folder; prints the numbers of validation images and ignored files.

    The class is the name of the folder inside the split's folder, as in torchvision's ImageFolder; subfolders
    are allowed. Each split has one folder; all of them are in the same folder, at any depth. Test images
    without class folders are ignored, and so are images outside of the splits if there are validation images.

    Raises:
        UserError: If there are no training images, the split or the class of an image is unclear, or the
            folders of the splits are not side by side.
    """
    files = {path.relative_to(folder).parts: path for path in visible_files(folder)}
    images = {parts for parts in files if is_image(parts[-1])}
    depths = [i for parts in images for i, part in enumerate(parts[:-1]) if split_of(part) == "train"]
    if not depths:
        expected = f"expected files train/CLASS/NAME that end in {', '.join(SUFFIXES)}"
        raise UserError(f"--from has no training images: {expected}")
    depth, found, ignored, unclear = min(depths), defaultdict(list), [], defaultdict(list)
    folders = set()
    for parts, path in files.items():
        split, inside = split_of(parts[depth]) if len(parts) > depth + 1 else None, parts[depth + 1 :]
        if parts in images and split and len(inside) > 1:
            label = unicodedata.normalize("NFC", inside[0])  # macOS decomposes accented characters
            found[split].append(ImageFile(label, "/".join(inside[1:]), path))
            folders.add(parts[: depth + 1])
            continue
        ignored.append("/".join(parts))
        if parts in images and split != "test":
            unclear[split].append(ignored[-1])
        elif split == "valid":  # perhaps an image of an unknown format
            unclear[None].append(ignored[-1])
    if wrong := [*unclear["train"], *unclear["valid"], *(() if "valid" in found else unclear[None])]:
        expected = f"{{train,valid,test}}/CLASS/NAME, with the ending {', '.join(SUFFIXES)}"
        raise UserError(f"{wrong[0]} may be an image: rename it to {expected}, or remove it")
    for one, other in combinations(sorted(folders), 2):
        if one[:-1] != other[:-1] or split_of(one[-1]) == split_of(other[-1]):
            wrong = f"{'/'.join(one)} and {'/'.join(other)}"
            expected = "pass a folder with one folder for each split, all of them in the same folder"
            raise UserError(f"--from has images in {wrong}, which may be the same ones: {expected}")
    if "valid" in found:
        print(f"validation images: {len(found['valid']):,}; no training images are held out")
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
    turns = []
    for _, group in groupby(sorted(images), key=lambda image: image.label):
        of_class = list(group)
        turns += [((i + 0.5) / len(of_class), image) for i, image in enumerate(of_class)]
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


def check_classes(found: ImageFiles) -> None:
    """Raises UserError if there is only one training class, or a class without training images."""
    labels = {split: {image.label for image in images} for split, images in found.items()}
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
    """Returns ILSVRC's training images; the archive has one tar archive per class, such as n01440764.tar."""
    images = []
    for name, begin, size in files_of_tar(archive):
        if len(parts := Path(name).parts) < 2:
            raise UserError(f"{archive} has {name} instead of an archive of each class: download it again")
        images.append(ImageFile(parts[-2].removesuffix(".tar"), parts[-1], archive, begin, size))
    return images


def ilsvrc_valid(archive: Path, devkit: Path) -> list[ImageFile]:
    """Returns ILSVRC's validation images; the devkit's data lists their classes in the order of the names."""
    from scipy.io import loadmat  # takes seconds to import

    table = io.BytesIO(read_file(devkit / "meta.mat"))
    truth = read_file(devkit / "ILSVRC2012_validation_ground_truth.txt").split()
    synsets = loadmat(table, squeeze_me=True)["synsets"]
    classes = dict(zip(synsets["ILSVRC2012_ID"].tolist(), synsets["WNID"].tolist(), strict=True))
    images = sorted((Path(name).name, begin, size) for name, begin, size in files_of_tar(archive))
    if len(images) != len(truth):
        wrong = f"{archive} has {len(images):,} images, but {DEVKIT} has the classes of {len(truth):,}"
        raise UserError(f"{wrong}: download both again")
    pairs = zip(truth, images, strict=True)
    return [ImageFile(classes[int(x)], name, archive, begin, size) for x, (name, begin, size) in pairs]


def read_image(image: ImageFile, shorter_side: int | None) -> np.ndarray:
    """Returns the bytes of an image file that can be decoded.

    If the shorter side exceeds ``shorter_side``, they are those of a JPEG file with this shorter side.
    """
    content = image.read()
    pixels = decode(content)
    if shorter_side and min(pixels.size) > shorter_side:
        size = [round(side * shorter_side / min(pixels.size)) for side in pixels.size]
        out = io.BytesIO()
        pixels.resize(size, Image.Resampling.BICUBIC).save(out, "JPEG", quality=QUALITY)
        content = out.getvalue()
    return np.frombuffer(content, np.uint8)
