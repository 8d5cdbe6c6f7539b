"""Images in class folders, {train,valid,test}/CLASS/FILE, of which several corpora are made."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fairseq_lrpe.data.image_files import SUFFIXES, is_image
from fairseq_lrpe.utils.files import read_file, visible_entries, visible_files

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
        with self.path.open("rb") as file:
            file.seek(self.begin)
            return file.read(self.size)


ImageFiles = dict[str, list[ImageFile]]


def in_class_folders(folder: Path, source: Path) -> ImageFiles:
    """Returns {split: image files}, and prints what is ignored.

    The class is the folder in that of the split, as in torchvision's ImageFolder; it may have subfolders.
    Test images without class folders are ignored.

    Args:
        folder: Folder with the folders of the splits, at any depth that is the same for all of them.
        source: Name of the folder, or of its archive, for messages.

    Raises:
        ValueError: If there are no training images, or the split or class of images is not clear.
    """
    files = {path.relative_to(folder).parts: path for path in visible_files(folder)}
    images = {parts: path for parts, path in files.items() if is_image(parts[-1])}
    depths = (i for parts in images for i, part in enumerate(parts[:-1]) if split_of(part) == "train")
    if (depth := min(depths, default=None)) is None:
        expected = f"expected train/CLASS/*.jpg, or files that end in {', '.join(SUFFIXES[1:])}"
        raise ValueError(f"{source} has no training images: {expected}")
    found, places, outside, unlabelled = defaultdict(list), {}, [], []
    for parts, path in images.items():
        name, place, inside = "/".join(parts), "/".join(parts[: depth + 1]), parts[depth + 1 :]
        split = split_of(parts[depth]) if inside else None
        if split is None:
            outside.append(name)
        elif len(inside) > 1:
            found[split].append(ImageFile(inside[0], "/".join(inside[1:]), path))
            if places.setdefault(split, place) != place:
                both = f"{places[split]} and {place}"
                raise ValueError(f"{source} has {split} images in {both}: keep one of them")
        elif split == "test":
            unlabelled.append(name)
        else:
            advice = f"move them to {place}/CLASS"
            raise ValueError(f"{source} has {split} images without class folders, such as {name}: {advice}")
    if "valid" in found:
        count = f"{len(found['valid']):,} in {places['valid']}"
        print(f"validation images: {count}; no training images are held out")
    else:
        check_no_validation(folder / places["train"], source, outside)
    report_ignored(outside, "images outside of train, valid and test")
    report_ignored(unlabelled, "test images without class folders")
    report_ignored(["/".join(x) for x in files.keys() - images.keys()], "files with other endings")
    return found


def check_no_validation(train: Path, source: Path, outside: list[str]) -> None:
    """Raises ValueError if there might be validation images that were not recognized.

    Args:
        train: Folder of the training images.
        source: Name of the folder, or of its archive, for messages.
        outside: Images outside of the folders of the splits.
    """
    if outside:
        place = f"outside of train, valid and test, such as {outside[0]}"
        raise ValueError(f"{source} has images {place}: name the folder of the validation images valid")
    for entry in visible_entries(train.parent):
        if entry.is_dir() and split_of(entry.name) == "valid":
            advice = f"expected {', '.join(SUFFIXES)} files; or remove the folder"
            raise ValueError(f"{source} has no images in {entry.name}: {advice}")


def split_of(folder: str) -> str | None:
    """Returns the split to which the name of a folder refers, or None."""
    return SPLITS.get(folder.lower())


def report_ignored(names: list[str], what: str) -> None:
    """Prints the number of ignored files, if there are any, with an example."""
    if names:
        print(f"ignored: {len(names):,} {what}, such as {min(names)}")


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
