"""Base class of the corpora that fairseq_lrpe/data/corpora.py lists, and the command that prepares one."""

import inspect
import os
import shutil
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path
from typing import ClassVar

from data_prep.fetch import SOURCES, fetch, unpacked
from data_prep.validation import check_out, recorded_folder
from fairseq_lrpe.data import layout
from fairseq_lrpe.data.corpora import CORPORA
from fairseq_lrpe.utils.cli import exit_on_error, min_int, path_arg, resumable
from fairseq_lrpe.utils.files import REPOSITORY, output_folder


def number(text: str, minimum: int = 1, **options) -> dict:
    """Returns the arguments of add_argument for an integer of at least ``minimum``; ``text`` is its help."""
    return {"type": min_int(minimum), "metavar": "N", "help": text, **options}


class Corpus:
    """Base class of corpora; binarized data is written to the folder OUT/bin (OUT is the value of --out).

    The ``args`` of all methods are the command's options; ``args.source`` is the path given by --from, or
    None.

    Attributes:
        facts: The corpus's entry in sources.yaml.
        accepts: Description of what --from accepts.
        metavar: Name of the value of --from in --help; with "FOLDER", files are rejected.
        task: The fairseq task that reads the binarized data.
        options: {option: arguments of argparse's add_argument}.
        unrecorded: Options that do not affect the data.
    """

    accepts: str
    metavar = "FOLDER"
    task = "language_modeling"
    options: ClassVar[dict[str, dict]] = {}
    unrecorded = ("source", "out", "workers", "bpe")

    def __init__(self, name: str):
        self.name, self.facts = name, SOURCES.get(name, {})

    def parts(self, args: Namespace) -> list[Namespace]:
        """Returns the options of each separately prepared part, such as a GLUE task, with its own ``out``."""
        return [args]

    def check(self, args: Namespace) -> None:
        """Raises ValueError if the options cannot be used together, or with this source."""

    def archive(self, args: Namespace) -> Path:
        """Returns a folder: the one given by --from, or the content of the given or published archive."""
        source = args.source or fetch(args.out / self.facts["archive"], self.facts)
        return unpacked(source, args.out / "unpacked")

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
        """Returns {option: value} of all options that affect the data, with absolute paths."""
        values = {name: value for name, value in vars(args).items() if name not in self.unrecorded}
        paths = {name: os.path.realpath(x) for name, x in values.items() if isinstance(x, Path)}
        return {"from": args.source and os.path.realpath(args.source), **values, **paths}

    def vocabulary(self, data: Path) -> str:
        """Returns a description of the vocabulary of OUT/bin, or an empty string."""
        size = layout.vocabulary_size(data / "dict.txt")
        return f"{size:,} types, including fairseq's special tokens"

    def report(self, args: Namespace) -> None:
        """Prints the vocabulary and the beginning of a command that trains on the corpus."""
        shards = layout.shards(args.out / "bin")
        if vocabulary := self.vocabulary(shards[0]):
            print(f"vocabulary: {vocabulary}")
        data = os.pathsep.join(map(str, shards))
        print(f"ready: fairseq-train {data} --task {self.task} --user-dir fairseq_lrpe ...")


def prepare(corpus: Corpus, arguments: list[str]) -> None:
    """Runs ``lrpe prepare NAME`` with these arguments, reusing the steps that an earlier run completed."""
    parser = ArgumentParser(
        prog=f"lrpe prepare {corpus.name}",
        description=inspect.getdoc(corpus),
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--from", dest="source", type=path_arg, metavar=corpus.metavar, help=corpus.accepts)
    for name, options in corpus.options.items():
        parser.add_argument(name, **options)
    out = REPOSITORY / "data" / corpus.name
    parser.add_argument("--out", type=path_arg, default=out, help="output folder (default: %(default)s)")
    text = "number of processes (default: all CPUs, %(default)s)"
    parser.add_argument("--workers", type=min_int(1), default=os.cpu_count(), metavar="N", help=text)
    args = parser.parse_intermixed_args(arguments)
    with exit_on_error(f"prepare {corpus.name}"):
        check_source(corpus, args.source)
        parts = corpus.parts(args)
        for part in parts:
            corpus.check(part)
            check_out(part.out, corpus.record(part))
        for part in parts:
            with output_folder(part.out):
                prepare_part(corpus, part)
        for part in parts:
            corpus.report(part)


def check_source(corpus: Corpus, source: Path | None) -> None:
    """Raises ValueError if --from is required and not given, does not exist, or is not a folder."""
    if source is None and CORPORA[corpus.name].origin == "needs --from":
        page = f" (see {corpus.facts['page']})" if "page" in corpus.facts else ""
        raise ValueError(f"--from is missing: pass {corpus.accepts}{page}")
    if source and not source.exists():
        raise ValueError(f"{source} is missing: --from takes {corpus.accepts}")
    if source and corpus.metavar == "FOLDER" and not source.is_dir():
        raise ValueError(f"{source} is not a folder: --from takes {corpus.accepts}")


def prepare_part(corpus: Corpus, args: Namespace) -> None:
    """Writes OUT/bin atomically, unless it exists, and removes unpacked archives."""
    if (args.out / "bin").is_dir():
        print(f"already prepared: {args.out / 'bin'}")
        return
    try:
        with resumable(), recorded_folder(args.out / "bin", corpus.record(args)) as folder:
            corpus.prepare(args, folder)
    except ValueError:  # the source or an option is invalid
        shutil.rmtree(args.out / "text", ignore_errors=True)
        raise
    finally:
        shutil.rmtree(args.out / "unpacked", ignore_errors=True)
