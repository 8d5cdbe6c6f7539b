"""Labelled images such as ImageNet (Deng et al. 2009), for the task ``image_classification``.

ImageNet (ILSVRC 2012) is read from a folder with the published ILSVRC2012_img_train.tar,
ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz, which contains the validation labels. Other images
are read from a folder with {train,valid,test}/CLASS/*.jpg (or .JPEG, .jpeg, .png; valid may be named val), or
from an archive of such a folder. Without valid, the last tenth of the training images is used for validation.
--train-rows N uses the first N training images. In both cases, images are sorted by name and interleaved by
class first, so that all classes keep their shares.

Image files are stored unchanged, or with --shorter-side N as smaller JPEG files, which are decoded faster.
Each is decoded once; unreadable ones are skipped and listed in OUT/bin/unreadable.txt.
"""

import io
import os
import re
import shutil
import warnings
from argparse import Namespace
from collections import defaultdict
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from data_prep.corpora.lra_image import interleave
from data_prep.corpus import add_number
from data_prep.fetch import files_in, files_of_tar, unpack
from data_prep.labelled import Labelled, TrainRows, dataset_builder, write_metadata
from data_prep.parallel import ordered_map
from data_prep.progress import progress
from data_prep.validation import folder_with_source
from fairseq_lrpe.data.image_files import decode
from fairseq_lrpe.utils.files import check_size, read_file

IMAGES = re.compile(r"(?:^|/)(train|val|valid|test)/([^/]+)/([^/]+\.(?i:jpe?g|png))$")
TRAIN, VALID = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
TRUTH = r"data/(meta\.mat|ILSVRC2012_validation_ground_truth\.txt)$"
UNREADABLE = "unreadable.txt"
QUALITY = 95  # of resized JPEG files
BLOCK = 20  # images that a worker process decodes at a time


class ImageFile(NamedTuple):
    """A class and an image file: ``path`` or, if ``size`` >= 0, ``size`` bytes at ``begin`` of an archive."""

    label: str
    name: str
    path: Path
    begin: int = 0
    size: int = -1

    def read(self) -> bytes:
        """Returns the content of the image file."""
        if self.size < 0:
            return read_file(self.path)
        check_size(self.name, self.size)
        with self.path.open("rb") as file:
            file.seek(self.begin)
            return file.read(self.size)


ImageFiles = dict[str, list[ImageFile]]


class ClassFolders(TrainRows, Labelled):
    """Images in class folders; ``check`` returns {split: image files sorted by class and name}."""

    metavar = "FILE_OR_FOLDER"
    accepts = "a folder with {train,valid,test}/CLASS/*.jpg, .JPEG or .png, or an archive of such a folder"
    task = "image_classification"
    rows = {"train": 45_000, "valid": 5_000, "test": 10_000}

    def add_options(self, parser):
        super().add_options(parser)
        text = (
            "resize larger images to this shorter side in pixels and store them as JPEG (default: unchanged)"
        )
        add_number(parser, "--shorter-side", text)

    def source(self, args):
        return super().source(args) + (f", {args.shorter_side} pixels" if args.shorter_side else "")

    def published_rows(self, args):
        return self.rows

    def find(self, source: Path) -> ImageFiles:
        """Returns {split: image files} of a folder."""
        return in_class_folders(source)

    def check(self, args):
        if not (args.source.is_dir() or args.source.is_file()):
            raise ValueError(f"{args.source} is missing: --from takes {self.accepts}")
        folder = args.source
        if folder.is_file():
            folder = args.out / "unpacked"
            unpack(args.source, folder)
        return select(self.find(folder), args)

    def prepare(self, args, source, inputs):
        labels = sorted({image.label for image in inputs["train"]})
        rows, unreadable = {}, []
        with folder_with_source(args.out / "bin", source) as part:
            for split, images in inputs.items():
                options = args.workers, unreadable, args.shorter_side
                rows[split] = write_images(part, split, images, labels, *options)
            if unreadable:
                (part / UNREADABLE).write_text("".join(f"{line}\n" for line in unreadable))
            write_metadata(part, labels, rows, images=True)
        shutil.rmtree(args.out / "unpacked", ignore_errors=True)

    def vocabulary(self, data):
        return ""

    def report(self, args):
        file = args.out / "bin" / UNREADABLE
        if file.is_file():
            print(f"skipped: {len(file.read_text().splitlines()):,} unreadable images, see {file}")
        super().report(args)


class ImageNet(ClassFolders):
    """ImageNet from the archives of ILSVRC 2012, or images in class folders."""

    accepts = f"a folder with {TRAIN}, {VALID} and {DEVKIT}; or {ClassFolders.accepts}"
    rows = {"train": 1_281_167, "valid": 50_000}

    def find(self, source):
        names = (TRAIN, VALID, DEVKIT)
        missing = [name for name in names if not (source / name).is_file()]
        if len(missing) == len(names):
            return in_class_folders(source)
        if missing:
            raise ValueError(f"{source} lacks {', '.join(missing)}: expected {TRAIN}, {VALID} and {DEVKIT}")
        return {"train": ilsvrc_train(source / TRAIN), "valid": ilsvrc_valid(source / VALID, source / DEVKIT)}


def in_class_folders(folder: Path) -> ImageFiles:
    """Returns {split: image files} of a folder with {train,valid,test}/CLASS/*.jpg, .JPEG or .png."""
    images = defaultdict(list)
    for inside, _, files in os.walk(folder):
        for path in (Path(inside, file) for file in files):
            if match := IMAGES.search(path.relative_to(folder).as_posix()):
                split, label, file = match.groups()
                images["valid" if split == "val" else split].append(ImageFile(label, file, path))
    if not images["train"]:
        raise ValueError(f"{folder} has no training images: expected train/CLASS/*.jpg, .JPEG or .png")
    return dict(images)


def ilsvrc_train(archive: Path) -> list[ImageFile]:
    """Returns the images of an archive of one tar archive per class, as n01440764.tar/n01440764_18.JPEG."""
    images = []
    for name, begin, size in files_of_tar(archive):
        label, file = Path(name).parts[-2:] if "/" in name else ("", name)
        if not label.endswith(".tar"):
            raise ValueError(f"{archive} is not a tar archive of one tar archive per class: it has {name}")
        images.append(ImageFile(label.removesuffix(".tar"), file, archive, begin, size))
    return images


def ilsvrc_valid(archive: Path, devkit: Path) -> list[ImageFile]:
    """Returns the images of an archive; the devkit lists their classes in the order of their names."""
    from scipy.io import loadmat  # takes seconds to import

    files = {match[1]: content for match, content in files_in(devkit, TRUTH)}
    try:
        synsets = loadmat(io.BytesIO(files["meta.mat"]), squeeze_me=True)["synsets"]
        classes = dict(zip(synsets["ILSVRC2012_ID"].tolist(), synsets["WNID"].tolist(), strict=True))
        truth = files["ILSVRC2012_validation_ground_truth.txt"].split()
        labels = [classes[int(number)] for number in truth]
    except Exception as error:  # a malformed file can raise any exception
        raise ValueError(f"{devkit} is not the published file ({error!r}): download it again") from None
    images = sorted((Path(name).name, begin, size) for name, begin, size in files_of_tar(archive))
    if len(images) != len(labels):
        raise ValueError(f"{archive} has {len(images):,} images, but {devkit} has labels for {len(labels):,}")
    pairs = zip(labels, images, strict=True)
    return [ImageFile(label, name, archive, begin, size) for label, (name, begin, size) in pairs]


def select(images: ImageFiles, args: Namespace) -> ImageFiles:
    """Returns the images to use, sorted by class and name.

    Applies --train-rows, and uses training images for validation if ``images`` has no validation images.
    """
    classes = defaultdict(list)
    for image in images["train"]:
        classes[image.label].append((image.name, image))
    if len(classes) < 2:
        only = f"training images of only one class, {min(classes)}"
        raise ValueError(f"{args.source} has {only}: expected at least two classes")
    train = [image for image, _ in interleave(classes)]
    held_out = [] if images.get("valid") else train[len(train) - len(train) // 10 :]
    taken = {"train": train[: len(train) - len(held_out)][: args.train_rows]}
    taken["valid"] = images.get("valid") or held_out
    if not taken["valid"]:
        number = f"{len(train)} training images and no validation images"
        raise ValueError(f"{args.source} has {number}: expected at least 10 training images")
    if images.get("test"):
        taken["test"] = images["test"]
    known = {image.label for image in taken["train"]}
    for split, rows in taken.items():
        if unknown := {image.label for image in rows} - known:
            name = f"the class {min(unknown)}"
            raise ValueError(f"{args.source} has {split} images of {name}, which has no training images")
    return {split: sorted(rows) for split, rows in taken.items()}


def write_images(
    folder: Path,
    split: str,
    images: list[ImageFile],
    labels: list[str],
    workers: int,
    unreadable: list[str],
    shorter_side: int | None = None,
) -> int:
    """Writes a split, lists skipped images and reasons in ``unreadable``, and returns the number of rows.

    Images with a shorter side above ``shorter_side`` are resized.
    """
    prefix, numbers = folder / f"{split}.input0", {label: i for i, label in enumerate(labels)}
    bar = progress(None, f"writing {split}", "images", total=len(images))
    files, kept = dataset_builder(prefix, np.uint8), []
    blocks = [images[i : i + BLOCK] for i in range(0, len(images), BLOCK)]
    function = partial(read_checked, shorter_side=shorter_side)
    with closing(ordered_map(function, blocks, workers)) as read, bar:
        for block, contents in zip(blocks, read, strict=True):
            for image, (content, reason) in zip(block, contents, strict=True):
                if reason:
                    unreadable.append(f"{split}/{image.label}/{image.name}: {reason}")
                else:
                    files.add_item(torch.frombuffer(bytearray(content), dtype=torch.uint8))
                    kept.append(numbers[image.label])
            bar.update(len(block))
    if not kept:
        raise ValueError(f"no image of {split} is readable, for example {unreadable[-1]}")
    files.finalize(f"{prefix}.idx")
    np.save(folder / f"{split}.label.npy", np.array(kept, dtype=np.int64))
    return len(kept)


def read_checked(images: list[ImageFile], shorter_side: int | None = None) -> list[tuple[bytes, str]]:
    """Returns (content, "") for each image that can be decoded, and (b"", reason) for the others."""
    warnings.simplefilter("ignore")  # Pillow warns about defects that it tolerates
    return [_read_checked(image, shorter_side) for image in images]


def _read_checked(image, shorter_side):
    try:
        content = image.read()
        pixels = decode(content)
    except (ValueError, OSError) as error:
        return b"", str(error)
    if shorter_side and min(pixels.size) > shorter_side:
        content = resized(pixels, shorter_side)
    return content, ""


def resized(image: Image.Image, shorter_side: int) -> bytes:
    """Returns a JPEG file of the image, resized to a shorter side with the training's bicubic filter."""
    width, height = (round(side * shorter_side / min(image.size)) for side in image.size)
    out = io.BytesIO()
    image.resize((width, height), Image.Resampling.BICUBIC).save(out, "JPEG", quality=QUALITY)
    return out.getvalue()
