"""What preparations have in common; a corpus is a subclass in a file of its own, and a row in __main__."""

import os
import re
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from contextlib import ExitStack
from pathlib import Path

from data_prep import door
from fairseq_lrpe import layouts
from fairseq_lrpe.files import REPOSITORY, new_folder
from fairseq_lrpe.programs import a_path, at_least, one_sentence

OPTIONS = r"(, version [\w.]+)?((,| in) \d[\d ]*[a-z ]+)*(, with (vectors|word pieces) of .+)?$"
"""What a note may have after the path of the source, each a corpus's own."""


class Corpus:
    """The way of a corpus from its source to fairseq's binaries in OUT/bin.

    ``args`` are the command's options: ``source`` is what --from says, else the folder that an earlier run
    was given, else None; ``earlier`` is what that run's note says, if --from is not given.
    """

    published: str  # the name of what is taken without --from
    accepts: str  # what --from takes, for --help
    metavar = "FOLDER"  # of --from
    task = "language_modeling"  # fairseq's, for which the binaries are

    def __init__(self, name: str):
        self.name = name

    def add_options(self, parser: ArgumentParser) -> None:
        """Adds the options that other corpora do not have."""

    def parts(self, args: Namespace) -> list[Namespace]:
        """Returns the options of each part, for a corpus that is several with an ``out`` each."""
        return [args]

    def source(self, args: Namespace) -> str:
        """Returns the source, and the options that make other binaries of it: what their note says."""
        return str(args.source.resolve()) if args.source else self.published

    def check(self, args: Namespace) -> object:
        """Returns ``prepare``'s ``found``; raises ValueError if the source is of no use."""

    def write_text(self, args: Namespace, found: object, folder: Path) -> None:
        """Writes the plain text into ``folder``, for a corpus that keeps it."""
        raise NotImplementedError

    def text(self, args: Namespace, source: str, found: object) -> Path:
        """Returns OUT/text, which ``write_text`` fills if no earlier run did; it appears whole."""
        text = args.out / "text"
        if not text.is_dir():
            with door.noted_folder(text, source) as part:
                self.write_text(args, found, part)
        return text

    def prepare(self, args: Namespace, source: str, found: object) -> None:
        """Writes OUT/bin, which appears whole; steps that an earlier run finished are not done again."""
        raise NotImplementedError

    def vocabulary(self, data: Path) -> str:
        """Returns how the vocabulary of OUT/bin turned out, and nothing if there is none."""
        raise NotImplementedError

    def report(self, args: Namespace) -> None:
        """Prints the last lines: the vocabulary, and how to train."""
        shards = layouts.shards(args.out / "bin")
        if vocabulary := self.vocabulary(shards[0]):
            print(f"vocabulary: {vocabulary}")
        data = os.pathsep.join(map(str, shards))
        print(f"ready: fairseq-train {data} --task {self.task} --user-dir fairseq_lrpe ...")


def prepare(corpus: Corpus, arguments: list[str]) -> None:
    """Makes a corpus as the command's ``arguments`` say; what is finished is kept, the rest goes on."""
    parser = ArgumentParser(
        prog=f"prepare {corpus.name}",
        description=sys.modules[type(corpus).__module__].__doc__,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--from", dest="source", type=a_path, metavar=corpus.metavar, help=corpus.accepts)
    corpus.add_options(parser)
    out = REPOSITORY / "data" / corpus.name
    parser.add_argument("--out", type=a_path, default=out, help="default: %(default)s")
    parser.add_argument("--workers", type=at_least(1), default=os.cpu_count(), help="default: %(default)s")
    args = parser.parse_intermixed_args(arguments)
    with one_sentence(parser.prog), ExitStack() as folders:
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
                folders.enter_context(new_folder(part.out))
                unfinished.append((part, source, corpus.check(part)))
        for part, source, found in unfinished:
            corpus.prepare(part, source, found)
        for part in parts:
            try:
                corpus.report(part)
            except (FileNotFoundError, ValueError, LookupError, TypeError):
                raise ValueError(f"{part.out / 'bin'} is damaged: remove it, and run this again") from None


def source_of(corpus: Corpus, args: Namespace) -> str:
    """Returns the corpus's source, without --from an earlier run's.

    ValueError if there is something of another source in ``args.out``.
    """
    args.earlier = ""
    if args.source is None:
        args.earlier = door.read_note(args.out / "bin") or door.read_note(args.out / "text")
        given = Path(re.sub(OPTIONS, "", args.earlier))
        args.source = given if given.is_absolute() else None
    source = corpus.source(args)
    door.check_out(args.out, source)
    return source
