"""Pictures in classes, such as ImageNet (Deng et al. 2009), as files for our task image_classification.

ImageNet is ILSVRC 2012's: a folder with ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar as they are, and
ILSVRC2012_devkit_t12.tar.gz, which has the classes of the validation set. Other pictures are a folder, or a
tar archive of one, with {train,valid,test}/CLASS/*.jpg (or .JPEG, .jpeg, .png; valid may be called val).
Where there is no valid, the last tenth of the training pictures is held out for it, and --train-rows takes
the first ones: for both the classes take turns, by name, each with its pictures in the order of their names.

A picture's file is kept byte by byte. Each is decoded once, and one that cannot be read to its end is left
out and named in OUT/bin/unreadable.txt.
"""

import io
import os
import re
import warnings
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from data_prep.classified import write_labels
from data_prep.door import noted_folder
from data_prep.fetch import files_in, files_of_tar, uncompressed_tar
from data_prep.labelled import Labelled, TrainRows
from data_prep.lra_image import in_turns
from data_prep.processes import in_order
from data_prep.progress import AFTER
from data_prep.tokens import builder
from fairseq_lrpe.images.files import decode

PICTURES = re.compile(r"(?:^|/)(train|val|valid|test)/([^/]+)/([^/]+\.(?i:jpe?g|png))$")
TRAIN, VALID = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
TRUTH = r"data/(meta\.mat|ILSVRC2012_validation_ground_truth\.txt)$"
UNREADABLE = "unreadable.txt"
BLOCK = 20  # pictures that a process takes at a time


class Place(NamedTuple):
    """Where the file of a picture stands: all of ``path``, or ``size`` bytes of it."""

    label: str
    name: str
    path: Path
    begin: int = 0
    size: int = -1

    def read(self) -> bytes:
        """Returns the file's content."""
        with self.path.open("rb") as file:
            file.seek(self.begin)
            return file.read(self.size)


Found = dict[str, list[Place]]


class Tree(TrainRows, Labelled):
    """Pictures in class folders; ``found``: {split: the places of its pictures, by class and name}."""

    needs_from = True
    published = "nothing"
    metavar = "FILE_OR_FOLDER"
    accepts = "{train,valid,test}/CLASS/*.jpg, .JPEG or .png, or a tar archive of it"
    task = "image_classification"
    rows = {"train": 45_000, "valid": 5_000, "test": 10_000}

    def published_rows(self, args):
        return self.rows

    def find(self, source: Path) -> Found:
        """Returns the places of all pictures."""
        return in_class_folders(source)

    def check(self, args):
        super().check(args)
        if not args.source.exists():
            raise ValueError(f"{args.source} is missing: --from takes a folder with {self.accepts}")
        return chosen(self.find(args.source), args)

    def prepare(self, args, source, found):
        labels = sorted({place.label for place in found["train"]})
        rows, unreadable = {}, []
        with noted_folder(args.out / "bin", source) as part:
            for split, places in readable(found, args):
                rows[split] = write_pictures(part, split, places, labels, args.workers, unreadable)
            if unreadable:
                (part / UNREADABLE).write_text("".join(f"{line}\n" for line in unreadable))
            write_labels(part, labels, rows, images=True)

    def vocabulary(self, data):
        return ""

    def report(self, args):
        file = args.out / "bin" / UNREADABLE
        if file.is_file():
            print(f"left out: {len(file.read_text().splitlines()):,} unreadable pictures, see {file}")
        super().report(args)


class ImageNet(Tree):
    """ILSVRC 2012's archives, or pictures in class folders."""

    accepts = f"{TRAIN}, {VALID} and {DEVKIT}, or with {Tree.accepts}"
    rows = {"train": 1_281_167, "valid": 50_000}

    def find(self, source):
        names = (TRAIN, VALID, DEVKIT)
        missing = [name for name in names if not (source / name).is_file()]
        if len(missing) == len(names):
            return in_class_folders(source)
        if missing:
            raise ValueError(f"{source} lacks {', '.join(missing)}: {TRAIN}, {VALID} and {DEVKIT} are needed")
        return {"train": ilsvrc_train(source / TRAIN), "valid": ilsvrc_valid(source / VALID, source / DEVKIT)}


def in_class_folders(source: Path) -> Found:
    """Returns the places of the pictures in a folder or a tar archive."""
    found = defaultdict(list)
    for name, place in places(source):
        if match := PICTURES.search(name):
            split, label, file = match.groups()
            found["valid" if split == "val" else split].append(Place(label, file, *place))
    if not found["train"]:
        raise ValueError(
            f"{source} has no pictures for training: train/CLASS/*.jpg, .JPEG or .png are needed"
        )
    return dict(found)


def places(source: Path) -> Iterator[tuple[str, tuple]]:
    """Yields (path inside, where it stands) of each file in a folder or a tar archive."""
    if source.is_dir():
        for folder, _, files in os.walk(source):
            inside = Path(folder).relative_to(source).as_posix()
            for file in files:
                yield f"{inside}/{file}", (Path(folder, file),)
    else:
        for name, begin, size in files_of_tar(source):
            yield name, (source, begin, size)


def ilsvrc_train(archive: Path) -> list[Place]:
    """Returns the places of the training pictures, n01440764.tar/n01440764_18.JPEG and so on."""
    found = []
    for name, begin, size in files_of_tar(archive):
        label, file = Path(name).parts[-2:] if "/" in name else ("", name)
        if not label.endswith(".tar"):
            raise ValueError(f"{archive} is no tar archive of a tar archive of each class: it has {name}")
        found.append(Place(label.removesuffix(".tar"), file, archive, begin, size))
    return found


def ilsvrc_valid(archive: Path, devkit: Path) -> list[Place]:
    """Returns the places of the validation pictures, whose n-th by name has the n-th class of the devkit."""

    from scipy.io import loadmat  # seconds

    files = {match[1]: content for match, content in files_in(devkit, TRUTH)}
    try:
        synsets = loadmat(io.BytesIO(files["meta.mat"]), squeeze_me=True)["synsets"]
        classes = dict(zip(synsets["ILSVRC2012_ID"].tolist(), synsets["WNID"].tolist(), strict=True))
        truth = files["ILSVRC2012_validation_ground_truth.txt"].split()
        labels = [classes[int(number)] for number in truth]
    except Exception as error:  # a file that somebody made can end in any
        raise ValueError(f"{devkit} is not the published one ({error!r}): get it again") from None
    found = sorted((Path(name).name, begin, size) for name, begin, size in files_of_tar(archive))
    if len(found) != len(labels):
        raise ValueError(
            f"{archive} has {len(found):,} pictures, and {devkit.name} has the classes of {len(labels):,}"
        )
    return [
        Place(label, name, archive, begin, size)
        for label, (name, begin, size) in zip(labels, found, strict=True)
    ]


def chosen(found: Found, args: Namespace) -> Found:
    """Returns the pictures that are taken, by class and name: perhaps fewer, perhaps some held out."""
    classes = defaultdict(list)
    for place in found["train"]:
        classes[place.label].append((place.name, place))
    if len(classes) < 2:
        raise ValueError(f"{args.source} has training pictures of {min(classes)} alone: two are needed")
    train = [place for place, _ in in_turns(classes)]
    held_out = [] if found.get("valid") else train[len(train) - len(train) // 10 :]
    taken = {"train": train[: len(train) - len(held_out)][: args.train_rows]}
    taken["valid"] = found.get("valid") or held_out
    if not taken["valid"]:
        raise ValueError(f"{args.source} has {len(train)} training pictures and none in valid: 10 are needed")
    if found.get("test"):
        taken["test"] = found["test"]
    known = {place.label for place in taken["train"]}
    for split, rows in taken.items():
        if unknown := {place.label for place in rows} - known:
            raise ValueError(f"{args.source} has {split} pictures of {min(unknown)}, and none for training")
    return {split: sorted(rows) for split, rows in taken.items()}


def readable(found: Found, args: Namespace) -> Iterator[tuple[str, list[Place]]]:
    """Yields the items of ``found`` while their files can be read at their places."""
    if args.source.is_dir():
        yield from found.items()
        return
    with uncompressed_tar(args.source, args.out / "pictures.tar.part") as archive:
        for split, rows in found.items():
            yield split, [place._replace(path=archive) for place in rows]


def write_pictures(
    folder: Path, split: str, found: list[Place], labels: list[str], workers: int, unreadable: list[str]
) -> int:
    """Writes the files of a split, adds to ``unreadable`` what is left out, and returns how many it has."""
    prefix, numbers = folder / f"{split}.input0", {label: i for i, label in enumerate(labels)}
    shown = {"desc": f"writing {split}", "unit": "pictures", "disable": None, "delay": AFTER, "leave": False}
    files, kept = builder(prefix, np.uint8), []
    blocks = [found[i : i + BLOCK] for i in range(0, len(found), BLOCK)]
    with closing(in_order(checked, blocks, workers)) as read, tqdm(total=len(found), **shown) as bar:
        for block, contents in zip(blocks, read, strict=True):
            for place, (content, reason) in zip(block, contents, strict=True):
                if reason:
                    unreadable.append(f"{split}/{place.label}/{place.name}: {reason}")
                else:
                    files.add_item(torch.frombuffer(bytearray(content), dtype=torch.uint8))
                    kept.append(numbers[place.label])
            bar.update(len(block))
    if not kept:
        raise ValueError(f"no picture of {split} can be read, such as {unreadable[-1]}")
    files.finalize(f"{prefix}.idx")
    np.save(folder / f"{split}.label.npy", np.array(kept, dtype=np.int64))
    return len(kept)


def checked(found: list[Place]) -> list[tuple[bytes, str]]:
    """Returns (content, "") of each file that is a whole picture, and (b"", why not) of another one."""
    warnings.simplefilter("ignore")  # Pillow's, of what it can do without
    return [_checked(place) for place in found]


def _checked(place):
    try:
        content = place.read()
        decode(content)
    except (ValueError, OSError) as error:
        return b"", str(error)
    return content, ""
