"""Base class of synthetic corpora for the task ``classification``."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import closing
from itertools import islice

from data_prep.binarize import SPLITS
from data_prep.labelled import Labelled
from fairseq_lrpe.utils.cli import min_int


class Generated(Labelled):
    """Base class of corpora that are generated or read from published files.

    The same options give the same bytes on every machine and with any number of processes. ``check`` returns
    {split: rows} of published files, or None.
    """

    published = "the generator"
    defaults: dict[str, list[int]]  # {option of the generator: default values}

    def add_options(self, parser: ArgumentParser) -> None:
        self.add_numbers(parser, "rows", 1, "numbers of rows of the splits", ("TRAIN", "VALID", "TEST"))
        self.add_numbers(parser, "seed", 0, "seed of the generator")

    def add_numbers(self, parser: ArgumentParser, name: str, smallest: int, text: str, metavar="N") -> None:
        """Adds an integer option with as many values as it has in ``defaults``."""
        default = self.defaults[name]
        options = {"type": min_int(smallest), "nargs": len(default), "metavar": metavar}
        parser.add_argument(flag(name), help=f"{text} (default: {' '.join(map(str, default))})", **options)

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
        """Yields at least as many generated rows as --rows requests for all splits together."""
        raise NotImplementedError

    def read(self, args: Namespace, rows: list) -> Iterator[tuple]:
        """Yields the rows of a published split, given ``rows`` of that split from ``check``."""
        raise NotImplementedError

    def splits(self, args, inputs):
        if inputs:
            for split, rows in inputs.items():
                with closing(self.read(args, rows)) as read:
                    yield split, read, len(rows)
        else:
            with closing(self.generated(args)) as rows:
                for split, count in zip(SPLITS, args.rows, strict=True):
                    yield split, islice(rows, count), count


def flag(name: str) -> str:
    """Returns the command-line flag of an option."""
    return f"--{name.replace('_', '-')}"
