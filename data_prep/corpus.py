"""Base class of the corpora that fairseq_lrpe/data/corpora.py lists."""

import json
import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data_prep.fetch import SOURCES, fetch, unpacked
from fairseq_lrpe.data import layout
from fairseq_lrpe.utils.cli import min_int
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import atomic_folder

UNPACKED = "unpacked.part"  # folder of unpacked archives; like every *.part, it belongs to the command
RECORD = "source.json"  # the path given by --from, or None, and the options that affect the data


def number(text: str, minimum: int = 1, **options) -> dict:
    """Returns the arguments of add_argument for an integer of at least ``minimum``; ``text`` is its help."""
    return {"type": min_int(minimum), "metavar": "N", "help": text, **options}


def compared(counts: dict[str, int], published: dict[str, int] | None) -> str:
    """Returns the text of {name: count}, and of the published counts, if they are known and different."""
    text = counts_text(counts)
    if not published:
        return text
    return f"{text}, as published" if counts == published else f"{text}; published: {counts_text(published)}"


def counts_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


class Corpus:
    """Base class of corpora; binarized data is written to the folder OUT/bin (OUT is the value of --out).

    The ``args`` of all methods are the command's options; ``args.source`` is the path given by --from, or
    None.

    Attributes:
        facts: The corpus's entry in sources.yaml.
        accepts: Description of what --from accepts.
        task: The fairseq task that reads the binarized data.
        options: {option: arguments of argparse's add_argument}.
        unrecorded: Options that do not affect the data, and ``source``, which is recorded as "from".
    """

    accepts: str
    task = "language_modeling"
    options: dict[str, dict] = {}
    unrecorded = ("source", "out", "workers", "bpe")

    def __init__(self, name: str):
        self.name = name
        self.facts = SOURCES.get(name, {})

    def parts(self, args: Namespace) -> list[Namespace]:
        """Returns the options of each separately prepared part, such as a GLUE task, with its own ``out``."""
        return [args]

    def check(self, args: Namespace) -> None:
        """Raises UserError if the options cannot be used together, or with this source."""

    def archive(self, args: Namespace) -> Path:
        """Returns the folder given by --from, or OUT/unpacked.part with the given or downloaded archive."""
        source = args.source or fetch(args.out / self.facts["archive"], self.facts)
        return unpacked(source, args.out / UNPACKED)

    def write_text(self, args: Namespace, folder: Path) -> None:
        """Writes the corpus as plain text into ``folder``; needed only by corpora that call ``text``."""
        raise NotImplementedError

    def text(self, args: Namespace) -> Path:
        """Returns the folder OUT/text; if it does not exist, creates it with ``write_text``."""
        text = args.out / "text"
        if not text.is_dir():
            with recorded_folder(text, self.record(args)) as part:
                self.write_text(args, part)
        return text

    def prepare(self, args: Namespace, folder: Path) -> None:
        """Writes the binarized data into ``folder``, which becomes OUT/bin."""
        raise NotImplementedError

    def record(self, args: Namespace) -> dict:
        """Returns {option: value} of all options that affect the data, and "from", with absolute paths."""
        record = {"from": args.source and os.path.realpath(args.source)}
        for name, value in vars(args).items():
            if name not in self.unrecorded:
                record[name] = os.path.realpath(value) if isinstance(value, Path) else value
        return record

    def vocabulary(self, data: Path) -> str:
        sizes = {"types": layout.vocabulary_size(data / "dict.txt")}
        return compared(sizes, self.facts.get("vocabulary"))

    def report(self, args: Namespace) -> None:
        shards = layout.shards(args.out / "bin")
        if vocabulary := self.vocabulary(shards[0]):
            print(f"vocabulary: {vocabulary}")
        data = os.pathsep.join(map(str, shards))
        print(f"ready: fairseq-train {data} --task {self.task} --user-dir fairseq_lrpe ...")


@contextmanager
def recorded_folder(folder: Path, record: dict) -> Iterator[Path]:
    """Yields a temporary folder, and on success writes the record to it and renames it to ``folder``."""
    print(f"Preparing {folder}", flush=True)
    with atomic_folder(folder) as part:
        yield part
        (part / RECORD).write_text(json.dumps(record) + "\n")


def check_record(folder: Path, record: dict) -> None:
    """Raises UserError if ``folder`` exists, but was not made by this command with these options."""
    file = folder / RECORD
    if file.is_file():
        try:
            before = json.loads(file.read_text()).items()
        except (ValueError, AttributeError):
            raise UserError(f"{file} is damaged: remove {folder}, or change --out") from None
        for name, value in before:
            if value != record.get(name):
                option = f"--{name.replace('_', '-')}"
                used = f"without {option}" if value is None else f"with {option} {value}"
                remedy = f"use the same source and options, remove {folder.parent}, or change --out"
                raise UserError(f"{folder} was made {used}: {remedy}")
    elif folder.exists():
        raise UserError(f"{folder} was not created by this command: remove it, or change --out")
