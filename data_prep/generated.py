"""What corpora have in common that are made from random numbers, for our task classification."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

from data_prep.binarise import SPLITS
from data_prep.classified import SPECIALS, write_about, write_split
from data_prep.corpus import Corpus
from data_prep.door import noted_folder
from fairseq_lrpe.layouts import ABOUT
from fairseq_lrpe.programs import at_least


class Generated(Corpus):
    """A corpus that is generated, or read as published; ``found``: of what is published, {split: its rows}.

    The same options make the same bytes on every machine, whatever the number of processes.
    """

    published = "the generator"
    task = "classification"
    defaults = {"rows": [], "seed": [1]}  # {option: its values} of what is generated
    types: list[str]
    labels: list[str]

    def add_options(self, parser: ArgumentParser) -> None:
        self.add_numbers(parser, "rows", 1, "how many", ("TRAIN", "VALID", "TEST"))
        self.add_numbers(parser, "seed", 0, "other numbers make other rows")

    def add_numbers(self, parser: ArgumentParser, option: str, smallest: int, told: str, metavar="N") -> None:
        """Adds an option of as many whole numbers as it has by default."""
        default = self.defaults[option]
        told = f"{told} (default: {' '.join(map(str, default))})"
        parser.add_argument(
            f"--{option}", type=at_least(smallest), nargs=len(default), metavar=metavar, help=told
        )

    def source(self, args):
        given = {option: vars(args)[option.replace("-", "_")] for option in self.defaults}
        if args.source:
            for option in given:
                if given[option]:
                    raise ValueError(f"--{option} is for what is generated: --from takes what is there")
            return super().source(args)
        for option, default in self.defaults.items():
            given[option] = given[option] or default
            vars(args)[option.replace("-", "_")] = given[option]
        values = (f"--{option} {' '.join(map(str, values))}" for option, values in given.items())
        return f"{self.published} with {' '.join(values)}"

    def generated(self, args: Namespace) -> Iterator[tuple]:
        """Yields rows, (tokens, label), without an end."""
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

    def vocabulary(self, data: Path) -> str:
        about = json.loads((data / ABOUT).read_text())
        rows = " ".join(f"{count:,} {split}" for split, count in about["rows"].items())
        return f"{len(self.types)} types, {len(about['labels'])} labels; rows: {rows}"
