"""Wikipedia and BookCorpus in GPT-2's byte pairs -> fairseq's binaries (``data_prep/wikibook.sh``).

Published ones (Wettig et al. 2022), which fairseq takes as they are: 22 GB, two passes over the text in 8
shards each, for an epoch each. Or a folder with text: documents, with a blank line after each, in train.txt,
valid.txt and perhaps test.txt.
"""

import argparse
import http.client
import json
import logging
import os
import re
import shutil
import urllib.request
from functools import partial
from pathlib import Path

from tqdm import tqdm

from data_prep import binarise, books, door, fetch, gpt2_bpe
from data_prep.binarise import DATA, SOURCES

SOURCE = SOURCES["wikibook"]
SHARD = r"bin-shard(\d+)-8"  # how the published folders are called
ACCEPTED = (
    "--from takes a folder with text, train.txt and valid.txt, or with fairseq's binaries, "
    "dict.txt and train.bin, as published"
)


def numbered(name, i):
    """The i-th ``name``; the first has no number."""
    return f"{name}{i or ''}"


def listing():
    """{path: its size and sha256} of the published binaries, as Hugging Face has them."""
    url = f"{SOURCE['host']}/api/datasets/{SOURCE['dataset']}/tree/{SOURCE['revision']}?recursive=true"
    request = urllib.request.Request(url, headers=fetch.HEADERS)
    try:
        with urllib.request.urlopen(request, timeout=fetch.TIMEOUT) as response:
            large = {x["path"]: x["lfs"] for x in json.load(response) if "lfs" in x}
        return {path: {"size": lfs["size"], "sha256": lfs["oid"]} for path, lfs in large.items()}
    except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError) as error:
        raise fetch.FetchError(
            f"{url} gives no list of files ({error}): try again later, or get a copy elsewhere for --from"
        ) from None


def download(out, source, workers):
    """The published folders as the shards of ``out``."""
    known = listing()
    fills = []
    for i in range(SOURCE["shards"]):
        files = {"dict.txt": gpt2_bpe.FILES["dict.txt"]}  # the list has no SHA-256 of it
        for name in ("train.bin", "train.idx", "valid.bin", "valid.idx"):
            path = f"bin-shard{i}-8/{name}"
            if path not in known:
                raise fetch.FetchError(f"{SOURCE['dataset']} has no {path} any more: --from takes a copy")
            files[name] = known[path]
        fills.append(partial(fetch_shard, f"bin-shard{i}-8", files))
    fill_shards(fills, out, source)


def fetch_shard(name, files, part):
    """The published folder ``name`` in ``part``."""
    base = f"{SOURCE['host']}/datasets/{SOURCE['dataset']}/resolve/{SOURCE['revision']}/{name}"
    for file, facts in files.items():
        fetch.fetch(part / file, [f"{base}/{file}"], facts["size"], facts["sha256"])


def copy(folders, out, source, workers):
    """``folders`` as the shards of ``out``."""
    dictionary = out / "gpt2_bpe" / "dict.txt"
    fill_shards([partial(copy_shard, folder, dictionary) for folder in folders], out, source)


def copy_shard(folder, dictionary, part):
    """``folder``'s binaries in ``part``: hard links, or copies on another disk."""
    shutil.copyfile(dictionary, part / "dict.txt")
    for path in (prefix.with_suffix(end) for prefix in find_prefixes(folder) for end in (".bin", ".idx")):
        (part / path.name).unlink(missing_ok=True)
        try:
            os.link(path.resolve(), part / path.name)
        except OSError:
            shutil.copyfile(path, part / path.name)


def fill_shards(fills, out, source):
    """The shards of ``out``, each filled by a function of its folder; they appear together."""
    folders = [out / numbered("bin", i) for i in range(len(fills))]
    for folder, fill in zip(folders, fills, strict=True):
        if not folder.is_dir():
            print(f"Preparing {folder}", flush=True)
            part = folder.with_name(f"{folder.name}.part")
            note = part / door.NOTE
            if not note.exists() or note.read_text().strip() != str(source):  # an earlier run's, of another
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir(parents=True)
                door.leave_note(part, source)
            fill(part)
    for folder in reversed(folders):  # the first last: once it is there, all are
        if not folder.is_dir():
            os.replace(folder.with_name(f"{folder.name}.part"), folder)


def encode(texts, count, out, source, workers):
    """``count`` shards of ``out`` from ``texts`` {split: path}; what an earlier run made is kept."""
    folder = out / "text"
    others = [split for split in texts if split != "train"]
    shards = [numbered("train", i) for i in range(count)]
    if not folder.is_dir():
        with door.whole_folder(folder, source) as part:
            cut(texts["train"], [part / f"{shard}.txt" for shard in shards])
            books.gather({split: [texts[split]] for split in others}, part)
    encoded = books.encode({name: folder / f"{name}.txt" for name in (*shards, *others)}, out, workers)
    for i, shard in reversed(list(enumerate(shards))):  # the first last, as above
        if not (out / numbered("bin", i)).is_dir():
            splits = {"train": encoded[shard], **({} if i else {split: encoded[split] for split in others})}
            books.binarise_bpe(splits, out, source, workers, numbered("bin", i))


def cut(text, paths):
    """``text`` in parts of about the same size, each to the end of a document."""
    size = text.stat().st_size
    bar = tqdm(total=size, unit="B", unit_scale=True, desc=text.name, disable=None)
    done = 0
    with text.open("rb") as lines, bar:
        for i, path in enumerate(paths, 1):
            empty = True
            with path.open("wb") as part:
                for line in lines:
                    part.write(line)
                    done += len(line)
                    bar.update(len(line))
                    if line.strip():
                        empty = False
                    elif not empty and done >= size * i / len(paths):
                        break
            if empty:
                raise door.BadInput(
                    f"{text} has too few documents, which blank lines end, for --shards {len(paths)}"
                )


def find_prefixes(folder):
    """The paths, without their ends, of fairseq's binaries in ``folder``, of all splits."""
    names = (re.fullmatch(r"((train|valid|test)\d*)\.(bin|idx)", path.name) for path in folder.iterdir())
    return sorted({folder / name[1] for name in names if name})


def find_shards(folder):
    """The folders with fairseq's binaries: ``folder`` itself, or those in it by their published numbers."""
    if (folder / "dict.txt").is_file():
        return [folder]
    numbers = {path: re.fullmatch(SHARD, path.name) for path in folder.iterdir()}
    return sorted((path for path, match in numbers.items() if match), key=lambda path: int(numbers[path][1]))


def check_shards(folders):
    """BadInput or FetchError unless ``folders`` have what fairseq needs, whole, with GPT-2's dictionary."""
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # its import tells of packages for speech
    from fairseq.data import data_utils

    for folder in folders:
        gpt2_bpe.published(folder / "dict.txt", gpt2_bpe.FILES["dict.txt"])
        needed = ("train", "valid") if folder == folders[0] else ("train",)
        for prefix in sorted({*find_prefixes(folder), *(folder / split for split in needed)}):
            for path in (prefix.with_suffix(".bin"), prefix.with_suffix(".idx")):
                if not path.is_file():
                    raise door.BadInput(f"{path} is missing: {ACCEPTED}")
            try:
                dataset = data_utils.load_indexed_dataset(str(prefix))
                dataset[len(dataset) - 1]
            except Exception:  # whatever fairseq trips over
                raise door.BadInput(
                    f"{prefix}.bin and .idx are not fairseq's binaries, or not whole: get them again "
                    "(git leaves short stand-ins of such files where git lfs is not installed)"
                ) from None


def check_source(source, shards):
    """(the source's name, the function that prepares it); BadInput if there is no usable one."""
    if shards < 1:
        raise door.BadInput(f"--shards must be at least 1, not {shards}")
    if source is not None and not source.is_dir():
        raise door.BadInput(f"{source} is not a folder: {ACCEPTED}")
    folders = find_shards(source) if source else []
    if shards > 1 and (folders or not source):
        raise door.BadInput("--shards is for a folder with text: binaries have their shards already")
    if source is None:
        return SOURCE["dataset"], download
    if folders:
        check_shards(folders)
        return source.resolve(), partial(copy, folders)
    texts = {split: source / f"{split}.txt" for split in binarise.SPLITS}
    if not texts["test"].exists():
        del texts["test"]
    for path in texts.values():
        if not path.is_file():
            raise door.BadInput(f"{path} is missing: {ACCEPTED}")
        door.check_text(path)
    name = f"{source.resolve()} in {shards} shards" if shards > 1 else source.resolve()
    return name, partial(encode, texts, shards)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="wikibook.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FOLDER",
        help="text, or a copy of the published folders or of one of them (default: download them)",
    )
    parser.add_argument(
        "--shards",
        type=int,
        default=1,
        help="equal parts of a folder's training text, fairseq reads one per epoch (default: 1)",
    )
    books.add_options(parser, DATA / "wikibook")
    args = parser.parse_args(arguments)
    with door.one_sentence("wikibook"):
        door.check_workers(args.workers)
        if args.source or not binarise.finished(args.out):
            name, prepare = check_source(args.source, args.shards)
            door.check_out(args.out, name)
        if binarise.finished(args.out):
            print(f"already there: {args.out / 'bin'}")
        else:
            gpt2_bpe.provide(args.out / "gpt2_bpe", args.bpe)
            prepare(args.out, name, args.workers)
        binarise.report_masked_lm(args.out)


if __name__ == "__main__":
    main()
