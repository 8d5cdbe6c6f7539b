"""What corpora of inputs with labels have in common: binaries for our task classification."""

import json
from argparse import ArgumentParser, Namespace

from data_prep.corpus import Corpus
from data_prep.fetch import SOURCES
from fairseq_lrpe.layouts import ABOUT, vocabulary_size
from fairseq_lrpe.programs import at_least

SHOWN = 20  # labels


class Labelled(Corpus):
    """A corpus whose OUT/bin ``classified`` writes."""

    task = "classification"
    needs_from = False  # whether there is nothing to download

    def check(self, args):
        if self.needs_from and args.source is None:
            raise ValueError(f"--from is needed: a folder with {self.accepts}")

    def published_rows(self, args: Namespace) -> dict[str, int]:
        """Returns {split: its rows} of what is published, to tell beside those that came."""
        return SOURCES.get(self.name, {}).get("rows", {})

    def vocabulary(self, data):
        return f"{vocabulary_size(data / 'dict.txt'):,} types, with those that fairseq adds"

    def report(self, args):
        """Prints the rows beside the published ones, the labels, and how to train."""
        about = json.loads((args.out / "bin" / ABOUT).read_text())
        rows, published = about["rows"], self.published_rows(args)
        beside = ", as published" if rows == published else f"; published are {told(published)}"
        print(f"rows: {told(rows)}{beside if published else ''}")
        labels = about["labels"]
        more = f", ... ({len(labels):,} in all)" if len(labels) > SHOWN else ""
        print(f"labels: {', '.join(labels[:SHOWN])}{more}")
        super().report(args)


class TrainRows(Corpus):
    """A corpus of which a trial takes the first rows for training."""

    def add_options(self, parser: ArgumentParser) -> None:
        super().add_options(parser)
        told = "only the first N of each training set, for a trial"
        parser.add_argument("--train-rows", type=at_least(1), metavar="N", help=told)

    def source(self, args):
        return super().source(args) + (f", {args.train_rows} training rows" if args.train_rows else "")


def told(rows: dict[str, int]) -> str:
    """Returns how many rows each split has, in words."""
    return ", ".join(f"{split} {count:,}" for split, count in rows.items())
