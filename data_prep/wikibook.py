"""Wikipedia and BookCorpus in GPT-2's byte pairs -> fairseq's binaries.

Published ones (Wettig et al. 2022), which fairseq takes as they are: 22 GB, two passes over the text in 8
shards each, for an epoch each. Or a folder with text: documents, with a blank line after each, in train.txt,
valid.txt and perhaps test.txt.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from http.client import HTTPException
from pathlib import Path

from tqdm import tqdm

from data_prep import door, gpt2_bpe
from data_prep.binarise import join, texts_in
from data_prep.fetch import SOURCES, FetchError, fetch, open_url
from fairseq_lrpe import layouts
from fairseq_lrpe.programs import at_least

SOURCE = SOURCES["wikibook"]
SHARD = r"bin-shard(\d+)-8"  # how the published folders are called
ACCEPTED = (
    "--from takes a folder with text, train.txt and valid.txt, or with fairseq's binaries, "
    "dict.txt and train.bin, as published"
)


class WikiBook(gpt2_bpe.InBytePairs):
    """The published binaries, or text; ``found``: {split: text}, or the functions of fill_shards."""

    published = SOURCE["dataset"]
    accepts = "text, or a copy of the published folders or of one of them (default: download them)"

    def add_options(self, parser):
        parser.add_argument(
            "--shards",
            type=at_least(1),
            metavar="N",
            help="equal parts of a folder's training text, fairseq reads one per epoch (default: 1)",
        )
        super().add_options(parser)

    def source(self, args):
        if args.shards is None:
            noted = re.search(r" in (\d+) shards$", args.earlier)
            args.shards = int(noted[1]) if noted else 1
        return super().source(args) + (f" in {args.shards} shards" if args.shards > 1 else "")

    def check(self, args):
        folders = find_shards(args.source) if args.source else []
        if args.shards > 1 and (folders or not args.source):
            raise ValueError("--shards is for a folder with text: binaries have their shards already")
        if args.source is None:
            return published_shards()
        if folders:
            check_shards(folders)
            dictionary = args.out / "gpt2_bpe" / "dict.txt"
            return [partial(copy_shard, folder, dictionary) for folder in folders]
        texts = texts_in(args.source)
        if not texts["test"].exists():
            del texts["test"]
        for path in texts.values():
            door.check_text(path, ACCEPTED)
        return texts

    def prepare(self, args, source, found):
        gpt2_bpe.provide(args.out / "gpt2_bpe", args.bpe)
        if isinstance(found, list):
            return fill_shards(found, args.out, source)
        text = self.text(args, source, found)
        shards = [numbered("train", i) for i in range(args.shards)]
        others = [split for split in ("valid", "test") if (text / f"{split}.txt").exists()]
        encoded = self.encode(args, {name: text / f"{name}.txt" for name in (*shards, *others)})
        for i, shard in reversed(list(enumerate(shards))):  # the first last: once it is there, all are
            if not (args.out / numbered("bin", i)).is_dir():
                splits = {"train": encoded[shard], **{x: encoded[x] for x in others if i == 0}}
                self.write_bin(args, source, splits, numbered("bin", i))

    def write_text(self, args, found, folder):
        cut(found["train"], [folder / f"{numbered('train', i)}.txt" for i in range(args.shards)])
        for split in set(found) - {"train"}:
            join([found[split]], folder / f"{split}.txt")


def numbered(name: str, i: int) -> str:
    """Returns the i-th ``name``; the first has no number."""
    return f"{name}{i or ''}"


def listing() -> dict[str, dict]:
    """Returns {path: its size and sha256} of the published binaries, as Hugging Face has them."""
    url = f"{SOURCE['host']}/api/datasets/{SOURCE['dataset']}/tree/{SOURCE['revision']}?recursive=true"
    try:
        with open_url(url) as response:
            large = {x["path"]: x["lfs"] for x in json.load(response) if "lfs" in x}
        return {path: {"size": lfs["size"], "sha256": lfs["oid"]} for path, lfs in large.items()}
    except (OSError, HTTPException, ValueError, TypeError, KeyError) as error:
        raise FetchError(
            f"{url} gives no list of files ({error}): try again later, or get a copy elsewhere for --from"
        ) from None


def published_shards() -> list[Callable[[Path], None]]:
    """Returns for each published folder a function that fetches it into a folder."""
    known, fills = listing(), []
    for name in (f"bin-shard{i}-8" for i in range(SOURCE["shards"])):
        files = {"dict.txt": gpt2_bpe.FILES["dict.txt"]}  # the list has no SHA-256 of it
        for file in layouts.binaries(("train", "valid")):
            if f"{name}/{file}" not in known:
                raise FetchError(f"{SOURCE['dataset']} has no {name}/{file} any more: --from takes a copy")
            files[file] = known[f"{name}/{file}"]
        fills.append(partial(fetch_shard, name, files))
    return fills


def fetch_shard(name: str, files: dict[str, dict], part: Path) -> None:
    """Fetches the published folder ``name`` into ``part``."""
    mirror = f"{SOURCE['host']}/datasets/{SOURCE['dataset']}/resolve/{SOURCE['revision']}/{name}"
    for file, facts in files.items():
        fetch(part / file, {**facts, "mirrors": [mirror]})


def copy_shard(folder: Path, dictionary: Path, part: Path) -> None:
    """Puts the binaries of ``folder`` into ``part``: hard links, or copies on another disk."""
    shutil.copyfile(dictionary, part / "dict.txt")
    for path in (prefix.with_suffix(end) for prefix in find_prefixes(folder) for end in layouts.ENDS):
        (part / path.name).unlink(missing_ok=True)
        try:
            os.link(path.resolve(), part / path.name)
        except OSError:
            shutil.copyfile(path, part / path.name)


def fill_shards(fills: list[Callable[[Path], None]], out: Path, source: str) -> None:
    """Writes the shards of ``out``, each filled by a function of its folder; they appear together.

    Unlike folders made whole, what an interrupted run left of this source in a .part goes on being filled.
    """
    folders = [out / numbered("bin", i) for i in range(len(fills))]
    for folder, fill in zip(folders, fills, strict=True):
        if not folder.is_dir():
            print(f"Preparing {folder}", flush=True)
            part = folder.with_name(f"{folder.name}.part")
            if door.read_note(part) != source:
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir(parents=True)
                door.leave_note(part, source)
            fill(part)
    for folder in reversed(folders):  # the first last, as above
        if not folder.is_dir():
            os.replace(folder.with_name(f"{folder.name}.part"), folder)


def cut(text: Path, paths: list[Path]) -> None:
    """Writes ``text`` in parts of about the same size, each to the end of a document."""
    size = text.stat().st_size
    bar = tqdm(total=size, unit="B", unit_scale=True, desc=text.name, disable=None)
    with text.open("rb") as lines, bar:
        for i, path in enumerate(paths, 1):
            filled = False
            with path.open("wb") as part:
                for line in lines:
                    part.write(line)
                    bar.update(len(line))
                    filled = filled or not line.isspace()
                    if filled and line.isspace() and lines.tell() >= size * i / len(paths):
                        break
            if not filled:
                raise ValueError(
                    f"{text} has too few documents, which blank lines end, for --shards {len(paths)}"
                )


def find_prefixes(folder: Path) -> list[Path]:
    """Returns the paths, without their ends, of fairseq's binaries in ``folder``, of all splits."""
    names = (re.fullmatch(r"((train|valid|test)\d*)\.(bin|idx)", path.name) for path in folder.iterdir())
    return sorted({folder / name[1] for name in names if name})


def find_shards(folder: Path) -> list[Path]:
    """Returns the folders with fairseq's binaries: ``folder``, or those in it by their published numbers."""
    if (folder / "dict.txt").is_file():
        return [folder]
    numbers = {path: re.fullmatch(SHARD, path.name) for path in folder.iterdir()}
    return sorted((path for path, match in numbers.items() if match), key=lambda path: int(numbers[path][1]))


def check_shards(folders: list[Path]) -> None:
    """Raises ValueError unless ``folders`` are whole, with GPT-2's dictionary."""
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # its import tells of packages for speech
    from fairseq.data import data_utils

    for folder in folders:
        gpt2_bpe.published(folder / "dict.txt")
        needed = ("train", "valid") if folder == folders[0] else ("train",)
        for prefix in sorted({*find_prefixes(folder), *(folder / split for split in needed)}):
            for path in (prefix.with_suffix(end) for end in layouts.ENDS):
                if not path.is_file():
                    raise ValueError(f"{path} is missing: {ACCEPTED}")
            try:
                dataset = data_utils.load_indexed_dataset(str(prefix))
                dataset[len(dataset) - 1]
            except Exception:  # whatever fairseq trips over
                raise ValueError(
                    f"{prefix}.bin and .idx are not fairseq's binaries, or not whole: get them again "
                    "(git leaves short stand-ins of such files where git lfs is not installed)"
                ) from None
