"""The base class of the corpora that fairseq_lrpe/data/corpora.py lists."""

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
from fairseq_lrpe.utils.files import PLUGIN, atomic_folder, display_path

UNPACKED = "unpacked.part"  # folder of unpacked archives; like every *.part, it belongs to the command
RECORD = "source.json"  # the path given by --from, or None, and the options that affect the data


def number(text: str, minimum: int = 1, **options) -> dict:
    """Returns the arguments of ``add_argument`` for an option with an integer of at least ``minimum``.

    ``text`` is the help text, and ``options`` are further arguments of ``add_argument``.
    """
    return {"type": min_int(minimum), "metavar": "N", "help": text, **options}


def compared(counts: dict[str, int], published: dict[str, int] | None) -> str:
    """Returns ``counts`` as text, followed by a comparison with the published counts if these are known."""
    text = counts_text(counts)
    if not published:
        return text
    return f"{text}, as published" if counts == published else f"{text}; published: {counts_text(published)}"


def counts_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


class Corpus:
    """Base class of corpora, whose binarized data is written to the folder OUT/bin (OUT: the value of --out).

    The ``args`` of all methods are the options of the command ``lrpe prepare``. ``args.source`` is the path
    given by --from, or None.

    Attributes:
        facts: the corpus's entry in sources.yaml.
        accepts: description of the files that --from accepts.
        task: the fairseq task that reads the binarized data.
        options: {option: arguments of argparse's ``add_argument``}.
        unrecorded: options that do not affect the data, and ``source``, which is recorded as "from".
    """

    accepts: str
    task = "language_modeling"
    options: dict[str, dict] = {}
    unrecorded = ("source", "out", "workers", "bpe")

    def __init__(self, name: str):
        self.name = name
        self.facts = SOURCES.get(name, {})

    def parts(self, args: Namespace) -> list[Namespace]:
        """Returns the options for each part that is prepared in a separate folder, such as a GLUE task."""
        return [args]

    def check(self, args: Namespace) -> None:
        """Raises UserError if the options cannot be used together, or with the given source."""

    def archive(self, args: Namespace) -> Path:
        """Returns a folder with the published files: the value of --from, or that of the unpacked archive.

        The archive, the value of --from or a download, is unpacked to OUT/unpacked.part.
        """
        source = args.source or fetch(args.out / self.facts["archive"], self.facts)
        return unpacked(source, args.out / UNPACKED)

    def write_text(self, args: Namespace, folder: Path) -> None:
        """Writes the corpus as plain text into ``folder``; only corpora that call :meth:`text` define it."""
        raise NotImplementedError

    def text(self, args: Namespace) -> Path:
        """Returns the folder OUT/text, which :meth:`write_text` fills if it does not exist."""
        text = args.out / "text"
        if not text.is_dir():
            with recorded_folder(text, self.record(args)) as part:
                self.write_text(args, part)
        return text

    def prepare(self, args: Namespace, folder: Path) -> None:
        """Writes the binarized data into ``folder``, which becomes OUT/bin."""
        raise NotImplementedError

    def record(self, args: Namespace) -> dict:
        """Returns {option: value} of the options that affect the data, and "from"; paths are absolute."""
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
        print(f"ready: fairseq-train {data} --task {self.task} --user-dir {display_path(PLUGIN)} ...")


@contextmanager
def recorded_folder(folder: Path, record: dict) -> Iterator[Path]:
    """Yields a temporary folder; without an error, adds the record to it and renames it to ``folder``."""
    print(f"Preparing {folder}", flush=True)
    with atomic_folder(folder) as part:
        yield part
        (part / RECORD).write_text(json.dumps(record) + "\n")


def check_record(folder: Path, record: dict) -> None:
    """Raises UserError if ``folder`` exists, but was not made by ``lrpe prepare`` with these options.

    ``record`` is the result of :meth:`Corpus.record`.
    """
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
