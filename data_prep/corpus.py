"""Base class of corpora, each of which is a row in fairseq_lrpe/data/corpora.py."""

import os
import re
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from contextlib import ExitStack
from pathlib import Path

from data_prep import validation
from data_prep.fetch import SOURCES, fetch
from fairseq_lrpe.data import layout
from fairseq_lrpe.utils.cli import exit_on_error, min_int, path_arg
from fairseq_lrpe.utils.files import REPOSITORY, output_folder

OPTIONS = r"(, version [\w.]+)?((,| in) \d[\d ]*[a-z ]+)*(, with (vectors|word pieces) of .+)?$"
"""Options that corpora append to the path in the recorded source."""


class Corpus:
    """Prepares a corpus: from its source to fairseq's binaries in OUT/bin.

    ``facts`` is the corpus's entry in sources.yaml. ``args`` are the command's options; ``args.source`` is
    --from, or by default the source recorded by an earlier run, or None; ``args.earlier`` is that record.
    """

    accepts: str  # what --from accepts, for --help
    metavar = "FOLDER"  # of --from
    task = "language_modeling"  # fairseq task that reads the binaries

    def __init__(self, name: str):
        self.name, self.facts = name, SOURCES.get(name, {})

    @property
    def published(self) -> str | None:
        """Description of the source used without --from; None if --from is required."""
        return self.facts.get("archive")

    def add_options(self, parser: ArgumentParser) -> None:
        """Adds the options of this corpus."""

    def parts(self, args: Namespace) -> list[Namespace]:
        """Returns the options of each part, if the corpus consists of several with an ``out`` each."""
        return [args]

    def source(self, args: Namespace) -> str:
        """Returns the record of the source and of all options that change the binaries."""
        return os.path.realpath(args.source) if args.source else self.published

    def archive(self, args: Namespace) -> Path:
        """Returns --from, or the published archive, downloaded to OUT."""
        return args.source or fetch(args.out / self.facts["archive"], self.facts)

    def check(self, args: Namespace) -> object:
        """Validates the source, downloading it if necessary, and returns the ``inputs`` of ``prepare``.

        Raises:
            ValueError: If the source is unusable.
        """

    def write_text(self, args: Namespace, inputs: object, folder: Path) -> None:
        """Writes the plain text into ``folder``, for corpora that keep it."""
        raise NotImplementedError

    def text(self, args: Namespace, source: str, inputs: object) -> Path:
        """Returns OUT/text, written atomically by ``write_text`` unless it exists."""
        text = args.out / "text"
        if not text.is_dir():
            with validation.folder_with_source(text, source) as part:
                self.write_text(args, inputs, part)
        return text

    def prepare(self, args: Namespace, source: str, inputs: object) -> None:
        """Writes OUT/bin atomically, reusing the steps that an earlier run completed."""
        raise NotImplementedError

    def vocabulary(self, data: Path) -> str:
        """Returns a description of the vocabulary of OUT/bin, or an empty string."""
        size = layout.vocabulary_size(data / "dict.txt")
        return f"{size:,} types, including fairseq's special tokens"

    def report(self, args: Namespace) -> None:
        """Prints the vocabulary and how to train."""
        shards = layout.shards(args.out / "bin")
        if vocabulary := self.vocabulary(shards[0]):
            print(f"vocabulary: {vocabulary}")
        data = os.pathsep.join(map(str, shards))
        print(f"ready: fairseq-train {data} --task {self.task} --user-dir fairseq_lrpe ...")


def add_number(parser: ArgumentParser, flag: str, text: str, minimum: int = 1, **options) -> None:
    """Adds an option that takes a whole number."""
    parser.add_argument(flag, type=min_int(minimum), metavar="N", help=text, **options)


def prepare(corpus: Corpus, arguments: list[str]) -> None:
    """Prepares a corpus with the command's ``arguments``, reusing what an earlier run completed."""
    parser = ArgumentParser(
        prog=f"prepare {corpus.name}",
        description=sys.modules[type(corpus).__module__].__doc__,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--from", dest="source", type=path_arg, metavar=corpus.metavar, help=corpus.accepts)
    corpus.add_options(parser)
    out = REPOSITORY / "data" / corpus.name
    parser.add_argument("--out", type=path_arg, default=out, help="default: %(default)s")
    parser.add_argument("--workers", type=min_int(1), default=os.cpu_count(), help="default: %(default)s")
    args = parser.parse_intermixed_args(arguments)
    with exit_on_error(parser.prog), ExitStack() as folders:
        parts = corpus.parts(args)
        sources = [source_of(corpus, part) for part in parts]
        unfinished = []
        for part, source in zip(parts, sources, strict=True):
            if (part.out / "bin").is_dir():
                print(f"already there: {part.out / 'bin'}")
            else:
                folder = part.source if corpus.metavar == "FOLDER" else None
                if folder and not folder.is_dir() and not (part.out / "text").is_dir():
                    raise ValueError(f"{folder} is not a folder: --from takes {corpus.accepts}")
                folders.enter_context(output_folder(part.out))
                unfinished.append((part, source, corpus.check(part)))
        for part, source, inputs in unfinished:
            corpus.prepare(part, source, inputs)
        for part in parts:
            try:
                corpus.report(part)
            except (FileNotFoundError, ValueError, LookupError, TypeError):
                raise ValueError(f"{part.out / 'bin'} is damaged: remove it, and run this again") from None


def source_of(corpus: Corpus, args: Namespace) -> str:
    """Returns the record of the source, by default that of an earlier run.

    Raises:
        ValueError: If --from is missing, or ``args.out`` contains data from another source.
    """
    args.earlier = ""
    if args.source is None:
        args.earlier = validation.read_source(args.out / "bin") or validation.read_source(args.out / "text")
        recorded = Path(re.sub(OPTIONS, "", args.earlier))
        args.source = recorded if recorded.is_absolute() else None
    if args.source is None and corpus.published is None:
        page = f" (see {corpus.facts['page']})" if "page" in corpus.facts else ""
        raise ValueError(f"--from is required: {corpus.accepts}{page}")
    source = corpus.source(args)
    validation.check_out(args.out, source)
    return source
