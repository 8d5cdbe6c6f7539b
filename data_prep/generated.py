"""What corpora have in common that are made from random numbers, for our task classification."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import closing
from itertools import islice

from data_prep.binarise import SPLITS
from data_prep.classified import SPECIALS, write_about, write_split
from data_prep.door import noted_folder
from data_prep.labelled import Labelled
from fairseq_lrpe.programs import at_least


class Generated(Labelled):
    """A corpus that is generated, or read as published; ``found``: of what is published, {split: its rows}.

    The same options make the same bytes on every machine, whatever the number of processes.
    """

    published = "the generator"
    defaults = {"rows": [], "seed": [1]}  # {option: its values} of what is generated
    types: list[str]
    labels: list[str]

    def add_options(self, parser: ArgumentParser) -> None:
        self.add_numbers(parser, "rows", 1, "how many", ("TRAIN", "VALID", "TEST"))
        self.add_numbers(parser, "seed", 0, "other numbers make other rows")

    def add_numbers(self, parser: ArgumentParser, name: str, smallest: int, told: str, metavar="N") -> None:
        """Adds an option of as many whole numbers as it has by default."""
        default = self.defaults[name]
        told = f"{told} (default: {' '.join(map(str, default))})"
        parser.add_argument(
            flag(name), type=at_least(smallest), nargs=len(default), metavar=metavar, help=told
        )

    def source(self, args):
        for name, default in self.defaults.items():
            if args.source and getattr(args, name):
                raise ValueError(f"{flag(name)} is for what is generated: --from takes what is there")
            setattr(args, name, getattr(args, name) or default)
        if args.source:
            return super().source(args)
        given = (" ".join(map(str, [flag(name), *getattr(args, name)])) for name in self.defaults)
        return f"{self.published} with {' '.join(given)}"

    def generated(self, args: Namespace) -> Iterator[tuple]:
        """Yields rows, (tokens, label), at least as many as are asked for."""
        raise NotImplementedError

    def read(self, args: Namespace, rows: list) -> Iterator[tuple]:
        """Yields the rows, (tokens, label), of what ``check`` found for a split."""
        raise NotImplementedError

    def about(self, args: Namespace) -> dict:
        """Returns what else the task has to know of the rows."""
        return {}

    def prepare(self, args, source, found):
        size, counts = SPECIALS + len(self.types), {}
        with noted_folder(args.out / "bin", source) as part:
            if found:
                for split, rows in found.items():
                    with closing(self.read(args, rows)) as read:
                        counts[split] = write_split(part, split, read, size, len(rows))
            else:
                with closing(self.generated(args)) as rows:
                    for split, count in zip(SPLITS, args.rows, strict=True):
                        counts[split] = write_split(part, split, islice(rows, count), size, count)
            write_about(part, self.types, self.labels, counts, **self.about(args))


def flag(name: str) -> str:
    """Returns how an option is written."""
    return f"--{name.replace('_', '-')}"
