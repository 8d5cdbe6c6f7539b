"""Images in class folders, {train,valid,test}/CLASS/FILE, of which several corpora are made."""

import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from data_prep.fetch import unpack
from fairseq_lrpe.data.image_files import SUFFIXES, is_image
from fairseq_lrpe.utils.files import check_size, read_file, visible_entries, visible_files

ACCEPTS = "a folder with {train,valid,test}/CLASS/*.jpg, .png or other images, or an archive of such a folder"
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "val", "validation", "dev"), "valid"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""{name of a folder in lowercase: split}"""


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


def unpacked(source: Path, out: Path) -> Path:
    """Returns ``source``, or if it is an archive, the folder OUT/unpacked with its content."""
    if not (source.is_dir() or source.is_file()):
        raise ValueError(f"{source} is missing: --from takes {ACCEPTS}")
    if source.is_dir():
        return source
    shutil.rmtree(out / "unpacked", ignore_errors=True)  # of an archive that was rejected or has changed
    unpack(source, out / "unpacked")
    return out / "unpacked"


def in_class_folders(folder: Path, source: Path) -> ImageFiles:
    """Returns {split: image files}, and prints what is ignored.

    The class is the folder in that of the split, as in torchvision's ImageFolder. It may have subfolders if
    they are the same for all classes, such as CLASS/images. Test images without class folders are ignored.

    Args:
        folder: Folder with the folders of the splits, at any depth that is the same for all of them.
        source: Name of the folder, or of its archive, for messages.

    Raises:
        ValueError: If there are no training images, or the split or class of images is not clear.
    """
    files = {path.relative_to(folder).as_posix(): path for path in visible_files(folder)}
    images = [name.split("/") for name in files if is_image(name)]
    depths = (i for parts in images for i, part in enumerate(parts[:-1]) if split_of(part) == "train")
    if (depth := min(depths, default=None)) is None:
        expected = f"expected train/CLASS/*.jpg, or files that end in {', '.join(SUFFIXES[1:])}"
        raise ValueError(f"{source} has no training images: {expected}")
    found, places, outside = {}, {}, []
    for parts in images:
        name, path = "/".join(parts), files["/".join(parts)]
        if not (split := split_of(*parts[depth:-1][:1])):
            outside.append(name)
            continue
        place = "/".join(parts[: depth + 1])
        if place != places.setdefault(split, place):
            raise ValueError(f"{source} has {split} images in {places[split]} and {place}: keep one of them")
        *label, inside = parts[depth + 1 :]
        image = ImageFile("".join(label[:1]), "/".join([*label[1:], inside]), path)
        found.setdefault(split, []).append(image)
    if not any(image.label for image in found.get("test", [])):
        report_ignored([image.name for image in found.pop("test", [])], "test images without class folders")
    check_places(folder, source, places, {image.label for image in found["train"]})
    for split, rows in found.items():
        check_class_folders(rows, f"{source} has {split} images", places[split])
    if outside and "valid" not in found:
        place = f"outside of train, valid and test, such as {outside[0]}"
        raise ValueError(f"{source} has images {place}: name the folder of the validation images valid")
    if "valid" in found:
        place = f"{len(found['valid']):,} in {places['valid']}"
        print(f"validation images: {place}; no training images are held out")
    report_ignored(outside, "images outside of train, valid and test")
    report_ignored([name for name in files if not is_image(name)], "files with other endings")
    return found


def split_of(folder: str = "") -> str | None:
    """Returns the split to which the name of a folder refers, or None."""
    return SPLITS.get(folder.lower())


def report_ignored(names: list[str], what: str) -> None:
    """Prints the number of ignored files, if there are any, with an example."""
    if names:
        print(f"ignored: {len(names):,} {what}, such as {names[0]}")


def check_places(folder: Path, source: Path, places: dict[str, str], labels: set[str]) -> None:
    """Raises ValueError if a split's folder, or a class folder of the training images, has no images.

    Args:
        folder: Folder that contains all others.
        source: Its name for messages.
        places: {split: path of the folder with its images, relative to ``folder``}.
        labels: Names of the classes of the training images.
    """
    used = {folder / place for place in places.values()}
    beside = [entry for path in used for entry in visible_entries(path.parent) if split_of(entry.name)]
    classes = [entry for entry in visible_entries(folder / places["train"]) if entry.name not in labels]
    if empty := min((x for x in beside + classes if x.is_dir() and x not in used), default=None):
        advice = f"expected {', '.join(SUFFIXES)} files; or remove the folder"
        raise ValueError(f"{source} has no images in {empty.relative_to(folder).as_posix()}: {advice}")


def check_class_folders(images: list[ImageFile], what: str, place: str) -> None:
    """Raises ValueError for images of a split without class folders, or if the classes' subfolders differ.

    Args:
        images: Images of the split; those without class folders have an empty ``label``.
        what: Beginning of the message.
        place: Folder of the split.
    """
    subfolders = defaultdict(set)
    for image in images:
        if not image.label:
            found = f"{what} without class folders, such as {place}/{image.name}"
            raise ValueError(f"{found}: move them to {place}/CLASS")
        subfolders[image.label].add(image.name.rpartition("/")[0])
    first, *others = subfolders
    for label in others:
        if subfolders[label] != subfolders[first]:
            found = f"{what} in different subfolders of {place}/{first} and {place}/{label}"
            raise ValueError(f"{found}: expected {place}/CLASS/*.jpg or other images")


def interleave(images: Iterable[ImageFile]) -> list[ImageFile]:
    """Returns the images: each class's first by name, then each class's second, and so on."""
    count, turns = Counter(), []
    for image in sorted(images):
        turns.append((count[image.label], image))
        count[image.label] += 1
    return [image for _, image in sorted(turns)]


def with_validation(images: ImageFiles, source: Path) -> ImageFiles:
    """Returns the images of each split, interleaved by class.

    If there are no validation images, the last tenth of the training images is used. ``source`` is the name
    of their folder for messages.
    """
    train, valid, test = (interleave(images.get(split, [])) for split in ("train", "valid", "test"))
    if not valid:
        if not (held_out := len(train) // 10):
            number = f"{len(train)} training images and no validation images"
            raise ValueError(f"{source} has {number}: expected at least 10 training images")
        print(f"no validation images: the last tenth of the training images, {held_out:,}, is held out")
        train, valid = train[:-held_out], train[-held_out:]
    return {"train": train, "valid": valid} | ({"test": test} if test else {})


def check_classes(labels: dict[str, Iterable[str]], source: Path) -> None:
    """Raises ValueError unless there are two classes, and training images of the classes of every split.

    Args:
        labels: {split: labels}.
        source: Name of the data for messages.
    """
    found = {split: set(names) for split, names in labels.items()}
    known = found["train"]
    if len(known) < 2:
        only = f"training images of only one class, {min(known)}"
        raise ValueError(f"{source} has {only}: expected at least two classes")
    for split, names in found.items():
        if unknown := names - known:
            name = f"the class {min(unknown)}, which has no training images"
            raise ValueError(f"{source} has {split} images of {name}: rename or remove its folder")
        if missing := known - names:
            number = f"{len(missing):,} of {len(known):,} classes, such as {min(missing)}"
            print(f"{split}: no images of {number}")
