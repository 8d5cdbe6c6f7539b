"""Wikipedia and BookCorpus in GPT-2 BPE, for fairseq's masked_lm.

Without --from, the binarized data published by Wettig et al. (2022) is downloaded: 22 GB in 16 shards, which
contain the text twice. fairseq reads one shard per epoch. --from accepts a copy of this data, or a folder
with train.txt, valid.txt and optionally test.txt, in which a blank line ends a document.
"""

import logging
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from huggingface_hub import HfApi
from tqdm import tqdm

from data_prep import gpt2_bpe, validation
from data_prep.binarize import concatenate, skip_mark, split_files
from data_prep.corpus import add_number
from data_prep.fetch import FetchError, fetch
from fairseq_lrpe.data import layout

LATER = "try again later, or give a copy to --from"
SHARD = r"bin-shard(\d+)-8"  # pattern of the names of the published folders
ACCEPTED = (
    "--from takes a folder with train.txt, valid.txt and optionally test.txt, or with the published "
    "binarized data, dict.txt, train.bin and so on"
)


class WikiBook(gpt2_bpe.BytePairCorpus):
    """Wikipedia and BookCorpus; ``check`` returns {split: text}, or functions for ``fill_shards``."""

    accepts = (
        "a folder with train.txt, valid.txt and optionally test.txt, or a copy of the published folders "
        "or of one of them (default: download them)"
    )

    @property
    def published(self):
        return self.facts["dataset"]

    def add_options(self, parser):
        text = "number of equal shards of the training text, one per epoch (default: 1)"
        add_number(parser, "--shards", text)
        super().add_options(parser)

    def source(self, args):
        if args.shards is None:
            noted = re.search(r" in (\d+) shards$", args.earlier.removeprefix(args.earlier.path or ""))
            args.shards = int(noted[1]) if noted else 1
        return super().source(args) + (f" in {args.shards} shards" if args.shards > 1 else "")

    def check(self, args):
        folders = find_shards(args.source) if args.source else []
        if args.shards > 1 and (folders or not args.source):
            raise ValueError("--shards requires a folder with text: binarized data is already sharded")
        if args.bpe_types and (folders or not args.source):
            raise ValueError("--bpe-types requires a folder with text: binarized data has all types")
        if args.source is None:
            return published_shards(self.facts)
        if folders:
            check_shards(folders)
            dictionary = args.out / "gpt2_bpe" / "dict.txt"
            return [partial(copy_shard, folder, dictionary) for folder in folders]
        texts = split_files(args.source)
        if not texts["test"].exists():
            del texts["test"]
        for path in texts.values():
            validation.check_text(path, ACCEPTED)
        return texts

    def prepare(self, args, source, inputs):
        gpt2_bpe.provide(args.out / "gpt2_bpe", args.bpe, args.bpe_types)
        if isinstance(inputs, list):
            return fill_shards(inputs, args.out, source)
        text = self.text(args, source, inputs)
        shards = [numbered("train", i) for i in range(args.shards)]
        others = [split for split in ("valid", "test") if (text / f"{split}.txt").exists()]
        encoded = self.encode(args, {name: text / f"{name}.txt" for name in (*shards, *others)})
        for i, shard in reversed(list(enumerate(shards))):  # the first shard last: it marks completion
            if not (args.out / numbered("bin", i)).is_dir():
                splits = {"train": encoded[shard], **{x: encoded[x] for x in others if i == 0}}
                self.write_bin(args, source, splits, numbered("bin", i))

    def write_text(self, args, inputs, folder):
        split_documents(inputs["train"], [folder / f"{numbered('train', i)}.txt" for i in range(args.shards)])
        for split in set(inputs) - {"train"}:
            concatenate([inputs[split]], folder / f"{split}.txt")


def numbered(name: str, i: int) -> str:
    """Returns ``name`` for i = 0, otherwise ``name`` followed by i."""
    return f"{name}{i or ''}"


def published_shards(facts: dict) -> list[Callable[[Path], None]]:
    """Returns a function for each published shard that downloads it into a folder.

    Files are verified by size and SHA-256, which the hub lists; dict.txt must be the dictionary of GPT-2 BPE.
    """
    dataset, revision = facts["dataset"], facts["revision"]
    try:
        files = HfApi(facts["host"]).list_repo_tree(
            dataset, revision=revision, repo_type="dataset", recursive=True
        )
        known = {file.path: file.lfs for file in files if getattr(file, "lfs", None)}
    except Exception as error:  # any error of the network, hub or package
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise FetchError(f"cannot list the files of {dataset} ({reason}): {LATER}") from None
    fills = []
    for name in (f"bin-shard{i}-8" for i in range(facts["shards"])):
        mirrors = {"mirrors": [f"{facts['host']}/datasets/{dataset}/resolve/{revision}/{name}"]}
        files = {"dict.txt": {**gpt2_bpe.FILES["dict.txt"], **mirrors}}
        for file in layout.binarized(("train", "valid")):
            if f"{name}/{file}" not in known:
                raise FetchError(f"{dataset} does not contain {name}/{file}: {LATER}")
            lfs = known[f"{name}/{file}"]
            files[file] = {"size": lfs.size, "sha256": lfs.sha256, **mirrors}
        fills.append(partial(fetch_shard, files))
    return fills


def fetch_shard(files: dict[str, dict], part: Path) -> None:
    """Downloads the files {name: facts} into the folder ``part``."""
    for name, facts in files.items():
        fetch(part / name, facts)


def copy_shard(folder: Path, dictionary: Path, part: Path) -> None:
    """Hard-links the binarized data of ``folder`` into ``part``, or copies it from another disk."""
    shutil.copyfile(dictionary, part / "dict.txt")
    for path in (prefix.with_suffix(end) for prefix in find_prefixes(folder) for end in layout.SUFFIXES):
        (part / path.name).unlink(missing_ok=True)
        try:
            os.link(path.resolve(), part / path.name)
        except OSError:
            shutil.copyfile(path, part / path.name)


def fill_shards(fills: list[Callable[[Path], None]], out: Path, source: validation.Source) -> None:
    """Writes the shards ``out``/bin, ``out``/bin1 and so on, each with one of the functions ``fills``.

    All shards are written to .part folders first and renamed at the end. The .part folders of an interrupted
    run with the same source are completed.
    """
    folders = [out / numbered("bin", i) for i in range(len(fills))]
    for folder, fill in zip(folders, fills, strict=True):
        if not folder.is_dir():
            print(f"Preparing {folder}", flush=True)
            part = folder.with_name(f"{folder.name}.part")
            if validation.read_source(part) != source:
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir(parents=True)
                validation.write_source(part, source)
            fill(part)
    for folder in reversed(folders):  # the first shard last: it marks completion
        if not folder.is_dir():
            os.replace(folder.with_name(f"{folder.name}.part"), folder)


def split_documents(text: Path, paths: list[Path]) -> None:
    """Splits a text file after blank lines into files of similar size, none of which may be empty."""
    size = text.stat().st_size
    bar = tqdm(total=size, unit="B", unit_scale=True, desc=text.name, disable=None)
    with text.open("rb") as lines, bar:
        skip_mark(lines)
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
                few = f"too few documents, which blank lines separate, for --shards {len(paths)}"
                raise ValueError(f"{text} has {few}: reduce --shards")


def find_prefixes(folder: Path) -> list[Path]:
    """Returns the path prefixes of the binarized datasets in ``folder``, without .bin and .idx."""
    names = (re.fullmatch(r"((train|valid|test)\d*)\.(bin|idx)", path.name) for path in folder.iterdir())
    return sorted({folder / name[1] for name in names if name})


def find_shards(folder: Path) -> list[Path]:
    """Returns the folders with binarized data: ``folder`` itself, or its shards, sorted by number."""
    if (folder / "dict.txt").is_file():
        return [folder]
    numbers = {path: re.fullmatch(SHARD, path.name) for path in folder.iterdir()}
    return sorted((path for path, match in numbers.items() if match), key=lambda path: int(numbers[path][1]))


def check_shards(folders: list[Path]) -> None:
    """Raises ValueError unless all folders contain complete data and the dictionary of GPT-2 BPE."""
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # it logs missing speech packages on import
    from fairseq.data import data_utils

    for folder in folders:
        gpt2_bpe.published(folder / "dict.txt")
        needed = ("train", "valid") if folder == folders[0] else ("train",)
        for prefix in sorted({*find_prefixes(folder), *(folder / split for split in needed)}):
            try:
                dataset = data_utils.load_indexed_dataset(str(prefix))
                dataset[len(dataset) - 1]
            except Exception:  # fairseq raises various exceptions
                raise ValueError(
                    f"{prefix}.bin and .idx are incomplete or damaged: download them again "
                    "(without git lfs, git only creates small pointer files)"
                ) from None
