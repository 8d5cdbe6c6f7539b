"""The option --cut, which divides a single file into training, validation and test data."""

from argparse import Namespace
from pathlib import Path
from typing import TypeVar

from data_prep.binarize import SPLITS
from fairseq_lrpe.utils.cli import min_int
from fairseq_lrpe.utils.errors import UserError

Row = TypeVar("Row")


def cut_option(text: str, *splits: str) -> dict[str, dict]:
    return {"--cut": {"nargs": len(splits), "type": min_int(1), "metavar": splits, "help": text}}


def check_cut(args: Namespace) -> None:
    """Raises UserError if --cut is given without a single file, or a single file without --cut."""
    if args.cut and not (args.source and args.source.is_file()):
        raise UserError("--cut requires --from FILE: pass the file to divide")
    if not args.cut and args.source and args.source.suffix in (".json", ".jsonl"):
        raise UserError(f"{args.source} is a single file: add --cut (see --help)")


def cut(path: Path, groups: list[list[Row]], counts: list[int]) -> dict[str, list[Row]]:
    """Divides the rows of a file into {split: rows}; the rows of a group are in the same split.

    Args:
        path: the file, for messages.
        groups: the rows of the file in their order.
        counts: the maximum numbers of rows of train, valid and test.

    Raises:
        UserError: if the file has too few rows, or a split would be empty.
    """
    if sum(counts) > (total := sum(map(len, groups))):
        wanted = " + ".join(f"{count:,}" for count in counts)
        raise UserError(f"{path} has only {total:,} rows, but --cut requests {wanted}: request fewer")
    splits = {}
    taken = 0  # number of groups
    for split, most in zip(SPLITS, counts, strict=False):
        rows = []
        splits[split] = rows
        while taken < len(groups) and len(rows) + len(groups[taken]) <= most:
            rows += groups[taken]
            taken += 1
        if not rows:
            wanted = f"{most} rows for {split}, but the next {len(groups[taken])} belong together"
            raise UserError(f"{path}: --cut requests {wanted}: request at least as many for {split}")
    return splits
