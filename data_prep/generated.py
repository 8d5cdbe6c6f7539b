"""Base class of synthetic corpora for the task ``classification``."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import closing
from itertools import islice

from data_prep.binarize import SPLITS
from data_prep.labelled import SPECIALS, Labelled, write_dictionary, write_split
from data_prep.validation import folder_with_source
from fairseq_lrpe.utils.cli import min_int


class Generated(Labelled):
    """A corpus that is generated or read from published files; ``inputs``: {split: rows} of the latter.

    The same options give the same bytes on every machine and with any number of processes.
    """

    published = "the generator"
    defaults = {"rows": [], "seed": [1]}  # {option: default values} of the generator
    types: list[str]
    labels: list[str]

    def add_options(self, parser: ArgumentParser) -> None:
        self.add_numbers(parser, "rows", 1, "number of rows", ("TRAIN", "VALID", "TEST"))
        self.add_numbers(parser, "seed", 0, "seed of the generator")

    def add_numbers(self, parser: ArgumentParser, name: str, smallest: int, text: str, metavar="N") -> None:
        """Adds an integer option with as many values as its default."""
        default = self.defaults[name]
        text = f"{text} (default: {' '.join(map(str, default))})"
        parser.add_argument(
            flag(name), type=min_int(smallest), nargs=len(default), metavar=metavar, help=text
        )

    def source(self, args):
        for name, default in self.defaults.items():
            if args.source and getattr(args, name):
                raise ValueError(f"{flag(name)} is for generated data: it cannot be combined with --from")
            setattr(args, name, getattr(args, name) or default)
        if args.source:
            return super().source(args)
        options = (" ".join(map(str, [flag(name), *getattr(args, name)])) for name in self.defaults)
        return f"{self.published} with {' '.join(options)}"

    def generated(self, args: Namespace) -> Iterator[tuple]:
        """Yields at least the requested number of rows (tokens, label)."""
        raise NotImplementedError

    def read(self, args: Namespace, rows: list) -> Iterator[tuple]:
        """Yields the rows (tokens, label) of a published split, from the result of ``check``."""
        raise NotImplementedError

    def metadata(self, args: Namespace) -> dict:
        """Returns further metadata for the task."""
        return {}

    def prepare(self, args, source, inputs):
        size, counts = SPECIALS + len(self.types), {}
        with folder_with_source(args.out / "bin", source) as part:
            if inputs:
                for split, rows in inputs.items():
                    with closing(self.read(args, rows)) as read:
                        counts[split] = write_split(part, split, read, size, len(rows))
            else:
                with closing(self.generated(args)) as rows:
                    for split, count in zip(SPLITS, args.rows, strict=True):
                        counts[split] = write_split(part, split, islice(rows, count), size, count)
            write_dictionary(part, self.types, self.labels, counts, **self.metadata(args))


def flag(name: str) -> str:
    """Returns the command-line flag of an option."""
    return f"--{name.replace('_', '-')}"
