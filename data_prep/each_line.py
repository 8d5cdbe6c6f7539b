"""A function of each line of a text, on all cores."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from data_prep.processes import in_order
from fairseq_lrpe.files import whole_file

LINES = 1000  # that a process takes at a time


def each_line(function: Callable[[str], str], source: Path, target: Path, workers: int, newline="\n") -> None:
    """Writes ``function`` of each line of ``source``, without its end, to ``target``, which appears whole.

    The same bytes whatever the number of ``workers``. ``newline`` says what ends a line, as ``open`` takes
    it; None: also a carriage return.
    """
    name = f"{target.parent.name}/{target.name}"
    with (
        source.open(encoding="utf-8", newline=newline) as lines,
        whole_file(target) as part,
        part.open("w", encoding="utf-8", newline="\n") as out,
        closing(in_order(partial(_apply, function), _batches(lines), workers)) as results,
        tqdm(total=source.stat().st_size, unit="B", unit_scale=True, desc=name, disable=None) as bar,
    ):
        for made, read in results:
            out.write(made)
            bar.update(read)


def _batches(lines):
    while batch := list(islice(lines, LINES)):
        yield batch


def _apply(function, lines):
    """Returns what the function makes of the lines, and how many bytes they had."""
    made = "".join(f"{function(line.removesuffix(chr(10)))}\n" for line in lines)
    return made, sum(len(line.encode()) for line in lines)
