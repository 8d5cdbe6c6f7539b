"""Labelled images such as ImageNet (Deng et al. 2009), for the task ``image_classification``.

ImageNet (ILSVRC 2012) is read from a folder with the published ILSVRC2012_img_train.tar,
ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz, which contains the validation labels. Other images
are read from a folder with {train,valid,test}/CLASS/*.jpg or other images (valid may be named val or
validation), or from an archive of such a folder. The class is the folder in that of the split. Without valid,
the last tenth of the training images is used for validation.
--train-rows N uses the first N training images. In both cases, images are sorted by name and interleaved by
class first, so that all classes keep their shares.

Image files are stored unchanged, or with --shorter-side N as smaller JPEG files, which are decoded faster.
Each is decoded once; unreadable ones are skipped and listed in OUT/bin/unreadable.txt.
"""

import io
import shutil
import warnings
from argparse import Namespace
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from data_prep.class_folders import (
    ACCEPTS,
    ImageFile,
    ImageFiles,
    check_classes,
    in_class_folders,
    unpacked,
    with_validation,
)
from data_prep.corpus import add_number
from data_prep.fetch import files_in, files_of_tar
from data_prep.labelled import Labelled, TrainRows, check_readable, dataset_builder, write_metadata
from data_prep.parallel import ordered_map
from data_prep.progress import progress
from data_prep.validation import folder_with_source
from fairseq_lrpe.data.image_files import decode

TRAIN, VALID = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
TRUTH = r"data/(meta\.mat|ILSVRC2012_validation_ground_truth\.txt)$"
QUALITY = 95  # of resized JPEG files
BLOCK = 20  # images that a worker process decodes at a time


class ClassFolders(TrainRows, Labelled):
    """Images in class folders; ``check`` returns {split: image files sorted by class and name}."""

    metavar = "FILE_OR_FOLDER"
    accepts = ACCEPTS
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

    def find(self, folder: Path, source: Path) -> ImageFiles:
        """Returns {split: image files} of a folder, given also its name for messages."""
        return in_class_folders(folder, source)

    def check(self, args):
        try:
            return select(self.find(unpacked(args.source, args.out), args.source), args)
        except ValueError:
            shutil.rmtree(args.out / "unpacked", ignore_errors=True)
            raise

    def prepare(self, args, source, inputs):
        labels = sorted({image.label for image in inputs["train"]})
        rows = {}
        try:
            with folder_with_source(args.out / "bin", source) as part:
                for split, images in inputs.items():
                    options = args.workers, self.unreadable, args.shorter_side
                    rows[split] = write_images(part, split, images, labels, *options)
                self.write_unreadable(part)
                write_metadata(part, labels, rows, images=True)
        finally:
            shutil.rmtree(args.out / "unpacked", ignore_errors=True)

    def vocabulary(self, data):
        return ""


class ImageNet(ClassFolders):
    """ImageNet from the archives of ILSVRC 2012, or images in class folders."""

    accepts = f"a folder with {TRAIN}, {VALID} and {DEVKIT}; or {ClassFolders.accepts}"
    rows = {"train": 1_281_167, "valid": 50_000}

    def find(self, folder, source):
        names = (TRAIN, VALID, DEVKIT)
        missing = [name for name in names if not (folder / name).is_file()]
        if len(missing) == len(names):
            return in_class_folders(folder, source)
        if missing:
            raise ValueError(f"{source} lacks {', '.join(missing)}: expected {TRAIN}, {VALID} and {DEVKIT}")
        return {"train": ilsvrc_train(folder / TRAIN), "valid": ilsvrc_valid(folder / VALID, folder / DEVKIT)}


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
