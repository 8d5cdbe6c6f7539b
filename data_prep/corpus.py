"""Base class of the corpora that fairseq_lrpe/data/corpora.py lists, and the command that prepares one."""

import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from contextlib import ExitStack
from pathlib import Path

from data_prep import validation
from data_prep.fetch import SOURCES, fetch
from fairseq_lrpe.data import layout
from fairseq_lrpe.utils.cli import exit_on_error, min_int, path_arg, resumable
from fairseq_lrpe.utils.files import REPOSITORY, output_folder


class Corpus:
    """Base class of corpora; binarized data is written to the folder OUT/bin (OUT is the value of --out).

    The ``args`` of all methods are the command's options. ``args.source`` is the path given by --from. If it
    is not given, it is the path that an earlier run recorded, or None. ``args.earlier`` is that record.

    Attributes:
        facts: The corpus's entry in sources.yaml.
        accepts: Description of what --from accepts.
        metavar: Name of the value of --from in --help; with "FOLDER", files are rejected.
        task: The fairseq task that reads the binarized data.
    """

    accepts: str
    metavar = "FOLDER"
    task = "language_modeling"

    def __init__(self, name: str):
        self.name, self.facts = name, SOURCES.get(name, {})

    @property
    def published(self) -> str | None:
        """Description of the source used without --from; None if --from is required."""
        return self.facts.get("archive")

    def add_options(self, parser: ArgumentParser) -> None:
        """Adds the options of this corpus to the command's parser."""

    def parts(self, args: Namespace) -> list[Namespace]:
        """Returns the options of each separately prepared part, such as a GLUE task, with its own ``out``."""
        return [args]

    def source(self, args: Namespace) -> str:
        """Returns a text that records the source and all options that affect the binarized data."""
        return os.path.realpath(args.source) if args.source else self.published

    def archive(self, args: Namespace) -> Path:
        """Returns the path given by --from, or that of the published archive, which is downloaded to OUT."""
        return args.source or fetch(args.out / self.facts["archive"], self.facts)

    def check(self, args: Namespace) -> object:
        """Validates the source, downloading it if necessary, and returns the ``inputs`` of ``prepare``.

        Raises:
            ValueError: If the source is unusable.
        """

    def write_text(self, args: Namespace, inputs: object, folder: Path) -> None:
        """Writes the corpus as plain text into ``folder``; needed only by corpora that call ``text``."""
        raise NotImplementedError

    def text(self, args: Namespace, source: validation.Source, inputs: object) -> Path:
        """Returns the folder OUT/text; if it does not exist, creates it with ``write_text``."""
        text = args.out / "text"
        if not text.is_dir():
            with validation.folder_with_source(text, source) as part:
                self.write_text(args, inputs, part)
        return text

    def prepare(self, args: Namespace, source: validation.Source, inputs: object) -> None:
        """Writes OUT/bin atomically, reusing the steps that an earlier run completed."""
        raise NotImplementedError

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


def add_number(parser: ArgumentParser, flag: str, text: str, minimum: int = 1, **options) -> None:
    """Adds an option that takes an integer of at least ``minimum``; ``text`` is its help."""
    parser.add_argument(flag, type=min_int(minimum), metavar="N", help=text, **options)


def prepare(corpus: Corpus, arguments: list[str]) -> None:
    """Runs ``lrpe prepare NAME`` with these arguments, reusing the steps that an earlier run completed."""
    parser = ArgumentParser(
        prog=f"lrpe prepare {corpus.name}",
        description=sys.modules[type(corpus).__module__].__doc__,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--from", dest="source", type=path_arg, metavar=corpus.metavar, help=corpus.accepts)
    corpus.add_options(parser)
    out = REPOSITORY / "data" / corpus.name
    parser.add_argument("--out", type=path_arg, default=out, help="output folder (default: %(default)s)")
    text = "number of processes (default: all CPUs, %(default)s)"
    parser.add_argument("--workers", type=min_int(1), default=os.cpu_count(), metavar="N", help=text)
    args = parser.parse_intermixed_args(arguments)
    with exit_on_error(f"prepare {corpus.name}"), ExitStack() as folders:
        parts = corpus.parts(args)
        sources = [source_of(corpus, part) for part in parts]
        unfinished = []
        for part, source in zip(parts, sources, strict=True):
            if (part.out / "bin").is_dir():
                print(f"already prepared: {part.out / 'bin'}")
            else:
                folder = part.source if corpus.metavar == "FOLDER" else None
                if folder and not folder.is_dir() and not (part.out / "text").is_dir():
                    raise ValueError(f"{folder} is not a folder: --from takes {corpus.accepts}")
                folders.enter_context(output_folder(part.out))
                unfinished.append((part, source, corpus.check(part)))
        with resumable():
            for part, source, inputs in unfinished:
                corpus.prepare(part, source, inputs)
        for part in parts:
            try:
                corpus.report(part)
            except (FileNotFoundError, ValueError, LookupError, TypeError):
                raise ValueError(f"{part.out / 'bin'} is damaged: remove it and prepare it again") from None


def source_of(corpus: Corpus, args: Namespace) -> validation.Source:
    """Sets ``args.source`` and ``args.earlier``, and returns the record of the source.

    Raises:
        ValueError: If --from is missing, or ``args.out`` contains data from another source.
    """
    args.earlier = validation.Source()
    if args.source is None:
        args.earlier = validation.read_source(args.out / "bin") or validation.read_source(args.out / "text")
        args.source = Path(args.earlier.path) if args.earlier.path else None
    if args.source is None and corpus.published is None:
        page = f" (see {corpus.facts['page']})" if "page" in corpus.facts else ""
        raise ValueError(f"--from is missing: pass {corpus.accepts}{page}")
    source, path = corpus.source(args), os.path.realpath(args.source or "")
    is_recorded = args.source and source.startswith(path)  # published archives are recorded by their names
    source = validation.Source.of(source, path if is_recorded else None)
    validation.check_out(args.out, source)
    return source
