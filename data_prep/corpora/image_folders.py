"""Labelled images such as ImageNet (Deng et al. 2009) in class folders or the archives of ILSVRC 2012."""

import io
import tarfile
import warnings
from argparse import Namespace
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from PIL import Image

from data_prep.class_folders import (
    ACCEPTS,
    ImageFile,
    ImageFiles,
    check_classes,
    in_class_folders,
    with_validation,
)
from data_prep.corpus import number
from data_prep.fetch import files_of_tar
from data_prep.labelled import TRAIN_ROWS, Labelled, check_readable, dataset_builder, write_metadata
from data_prep.parallel import ordered_map
from data_prep.progress import progress
from fairseq_lrpe.data.image_files import decode

TRAIN, VALID = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
DEVKIT_FOLDER = "ILSVRC2012_devkit_t12/data"
QUALITY = 95  # of resized JPEG files
BLOCK = 20  # images that a worker process decodes at a time


class ClassFolders(Labelled):
    """Labelled images, for the task ``image_classification``.

    They are read from a folder with {train,valid,test}/CLASS/*.jpg or other images (valid may be named val or
    validation), or from an archive of such a folder. The class is the folder in that of the split. Without
    valid, the last tenth of the training images is used for validation. --train-rows N uses the first N
    training images. In both cases, images are sorted by name and interleaved by class first, so that all
    classes keep their shares.

    Image files are stored unchanged, or with --shorter-side N as smaller JPEG files, which are decoded
    faster. Each is decoded once; unreadable ones are skipped and listed in OUT/bin/unreadable.txt.
    """

    metavar = "FILE_OR_FOLDER"
    accepts = ACCEPTS
    task = "image_classification"
    options: ClassVar = {
        **TRAIN_ROWS,
        "--shorter-side": number(
            "resize larger images to this shorter side in pixels and store them as JPEG (default: unchanged)"
        ),
    }
    rows: ClassVar = {"train": 45_000, "valid": 5_000, "test": 10_000}

    def published_rows(self, args):
        return self.rows

    def find(self, args) -> ImageFiles:
        """Returns {split: image files}."""
        return in_class_folders(self.archive(args), args.source)

    def prepare(self, args, folder):
        found = select(self.find(args), args)
        labels = sorted({image.label for image in found["train"]})
        rows = {}
        for split, images in found.items():
            options = args.workers, self.unreadable, args.shorter_side
            rows[split] = write_images(folder, split, images, labels, *options)
        self.write_unreadable(folder)
        write_metadata(folder, labels, rows, images=True)

    def vocabulary(self, data):
        return ""


class ImageNet(ClassFolders):
    """ImageNet (Deng et al. 2009) or other labelled images, for the task ``image_classification``.

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


def ilsvrc_train(archive: Path) -> list[ImageFile]:
    """Returns the images of an archive of one tar archive per class, as n01440764.tar/n01440764_18.JPEG."""
    images = []
    for name, begin, size in files_of_tar(archive):
        label, file = Path(name).parts[-2:]
        images.append(ImageFile(label.removesuffix(".tar"), file, archive, begin, size))
    return images


def ilsvrc_valid(archive: Path, devkit: Path) -> list[ImageFile]:
    """Returns the images of an archive; the devkit lists their classes in the order of their names."""
    from scipy.io import loadmat  # takes seconds to import

    with tarfile.open(devkit) as opened:
        table = io.BytesIO(opened.extractfile(f"{DEVKIT_FOLDER}/meta.mat").read())
        truth = opened.extractfile(f"{DEVKIT_FOLDER}/ILSVRC2012_validation_ground_truth.txt").read().split()
    synsets = loadmat(table, squeeze_me=True)["synsets"]
    classes = dict(zip(synsets["ILSVRC2012_ID"].tolist(), synsets["WNID"].tolist(), strict=True))
    images = sorted((Path(name).name, begin, size) for name, begin, size in files_of_tar(archive))
    if len(images) != len(truth):
        raise ValueError(f"{archive} has {len(images):,} images, but {devkit} has labels for {len(truth):,}")
    pairs = zip(truth, images, strict=True)
    return [ImageFile(classes[int(x)], name, archive, begin, size) for x, (name, begin, size) in pairs]


def select(images: ImageFiles, args: Namespace) -> ImageFiles:
    """Returns the images to use, sorted by class and name."""
    taken = with_validation(images, args.source)
    check_classes({split: [image.label for image in rows] for split, rows in taken.items()}, args.source)
    classes = {image.label for image in taken["train"]}
    if args.train_rows and args.train_rows < len(classes):
        raise ValueError(f"--train-rows {args.train_rows} is less than the number of classes, {len(classes)}")
    taken["train"] = taken["train"][: args.train_rows]
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
    files, kept, skipped = dataset_builder(prefix, np.uint8), [], []
    blocks = [images[i : i + BLOCK] for i in range(0, len(images), BLOCK)]
    function = partial(read_checked, shorter_side=shorter_side)
    with closing(ordered_map(function, blocks, workers)) as read, bar:
        for block, contents in zip(blocks, read, strict=True):
            for image, (content, reason) in zip(block, contents, strict=True):
                if reason:
                    skipped.append(f"{split}/{image.label}/{image.name}: {reason}")
                else:
                    files.add_item(torch.frombuffer(bytearray(content), dtype=torch.uint8))
                    kept.append(numbers[image.label])
            bar.update(len(block))
    check_readable(skipped, len(images))
    if split == "train" and (lost := {*numbers.values()} - {*kept}):
        raise ValueError(f"no training image of the class {labels[min(lost)]} is readable: remove its folder")
    unreadable += skipped
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
