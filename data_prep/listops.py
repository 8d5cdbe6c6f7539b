"""ListOps of Long-Range Arena (Nangia and Bowman 2018; Tay et al. 2021), for our task classification.

Expressions such as [MAX 2 9 [MIN 4 7 ] 0 ] of MIN, MAX, MED (the median, rounded down) and SM (the sum modulo
10), and as labels their values, 0 to 9. A node above --depth is with probability 1/4 an operator with 2 to 10
arguments, else a digit; which operator, how many arguments and which digit are uniform. An expression is kept
if it has more than MIN and fewer than MAX tokens, and once; the bracket at an operator's end is a token.
"""

import csv
from functools import partial
from hashlib import blake2b
from itertools import count, pairwise
from pathlib import Path

import numpy as np

from data_prep.classified import as_types
from data_prep.door import check_text
from data_prep.generated import Generated
from data_prep.processes import in_order

OPERATORS = ["[MIN", "[MAX", "[MED", "[SM"]
SYMBOLS = [*map(str, range(10)), *OPERATORS, "]"]
CLOSE = len(SYMBOLS) - 1
FILES = {"train": "basic_train.tsv", "valid": "basic_val.tsv", "test": "basic_test.tsv"}
DRAWN = 4096  # expressions that are drawn with the random numbers of one stream
RARE = 100  # streams of which one at least has to have an expression that is kept


class ListOps(Generated):
    """Expressions with brackets, and their values."""

    accepts = f"{', '.join(FILES.values())} as published (default: generate expressions)"
    defaults = {"depth": [10], "length": [500, 2000], "rows": [96_000, 2_000, 2_000], "seed": [1]}
    types = SYMBOLS
    labels = SYMBOLS[:10]

    def add_options(self, parser):
        self.add_numbers(parser, "depth", 2, "how deep an expression may be, a digit alone being of depth 1")
        told = "a kept expression has more than MIN and fewer than MAX tokens"
        self.add_numbers(parser, "length", 1, told, ("MIN", "MAX"))
        super().add_options(parser)

    def check(self, args):
        if args.source:
            return {split: published(args.source / name) for split, name in FILES.items()}
        shortest, longest = args.length
        if longest < shortest + 2:
            raise ValueError(f"--length {shortest} {longest}: no length is between the two")
        if not any(map(self.draw(args), range(RARE))):
            raise ValueError(f"{self.missed(args, RARE)}: change --length or --depth")

    def draw(self, args):
        """Returns the function that makes a stream's number expressions."""
        return partial(expressions, args.seed[0], args.depth[0], *args.length)

    def missed(self, args, streams):
        """Returns how many expressions were of no use."""
        drawn = f"of {streams * DRAWN:,} expressions of --depth {args.depth[0]}"
        return "{} none has more than {} and fewer than {} tokens".format(drawn, *args.length)

    def read(self, args, rows):
        for symbols, label in rows:
            yield as_types(np.array([*map(SYMBOLS.index, symbols.split())])), label

    def generated(self, args):
        seen, last = set(), 0
        for stream, drawn in enumerate(in_order(self.draw(args), count(), args.workers)):
            for symbols, label in drawn:
                short = blake2b(symbols, digest_size=16).digest()  # so that all fit into memory
                if short not in seen:
                    seen.add(short)
                    last = stream
                    yield as_types(np.frombuffer(symbols, np.uint8)), label
            if stream == last + 10 * RARE:
                missed = self.missed(args, 10 * RARE)
                raise ValueError(f"{missed} that is not among the {len(seen):,} before: ask for fewer --rows")


def published(path: Path) -> list[tuple[str, int]]:
    """Returns (symbols, value) of each row of a published TSV, without the parentheses it has."""
    check_text(path, f"--from takes a folder with {', '.join(FILES.values())}")
    with path.open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file, delimiter="\t")
    if header != ["Source", "Target"]:
        raise ValueError(f"{path} does not begin with the line Source, tab, Target")
    rows = []
    for number, line in enumerate(lines, 2):
        symbols = line[0].replace("(", " ").replace(")", " ") if len(line) == 2 else ""
        if not symbols.strip() or set(symbols.split()) - set(SYMBOLS) or line[1] not in SYMBOLS[:10]:
            raise ValueError(f"{path} line {number} is no expression of {' '.join(SYMBOLS)} with its value")
        rows.append((symbols, int(line[1])))
    if not rows:
        raise ValueError(f"{path} has no rows")
    return rows


def expressions(seed: int, depth: int, shortest: int, longest: int, stream: int) -> list[tuple[bytes, int]]:
    """Returns (symbols, value) of those of DRAWN expressions that have a length between the two.

    All are drawn at once, level by level. A node's random number below 1440 says all of it: below a quarter
    it is an operator, the remainder by 4 says which, and the quotient by 40, 0 to 8, how many arguments it
    has above two; else the remainder by 10 is a digit.
    """
    bits = np.random.Philox(key=np.array([seed % 2**64, stream], np.uint64))
    half = np.uint64(32)
    tree, levels, lengths = np.arange(DRAWN), [], np.zeros(DRAWN, np.int64)
    while len(tree):
        node = ((bits.random_raw(len(tree)) >> half) * np.uint64(1440) >> half).astype(np.int64)
        operator = (node < 360) & (len(levels) + 1 < depth)
        lengths += np.bincount(tree, 1 + operator, DRAWN).astype(np.int64)
        operator &= lengths[tree] < longest  # what is too long already need not be finished
        levels.append((tree, node, operator))
        tree = np.repeat(tree[operator], arguments(node[operator]))
    kept = (shortest < lengths) & (lengths < longest)
    return written([(node[kept[tree]], operator[kept[tree]]) for tree, node, operator in levels])


def arguments(node: np.ndarray) -> np.ndarray:
    """Returns how many arguments operators have."""
    return 2 + node // 40


def written(levels: list[tuple[np.ndarray, np.ndarray]]) -> list[tuple[bytes, int]]:
    """Returns (symbols, value) of each tree, of the levels' nodes and of which of them are operators."""
    values, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]  # of the nodes of each level
    for node, operator in reversed(levels):
        value, size = node % 10, np.ones_like(node)
        if operator.any():
            number = arguments(node[operator])
            first = np.cumsum(number) - number  # among the nodes of the level below
            value[operator] = evaluated(node[operator] % 4, values[0], first, number)
            size[operator] = 2 + np.add.reduceat(sizes[0], first)
        values.insert(0, value)
        sizes.insert(0, size)
    ends = np.cumsum(sizes[0])
    place, symbols = ends - sizes[0], np.empty(sizes[0].sum(), np.uint8)
    for (node, operator), (size, below) in zip(levels, pairwise(sizes), strict=True):
        symbols[place] = np.where(operator, 10 + node % 4, node % 10)
        symbols[(place + size - 1)[operator]] = CLOSE
        number = arguments(node[operator])
        before = np.cumsum(below) - below
        place = before + np.repeat(1 + place[operator] - before[np.cumsum(number) - number], number)
    parts = np.split(symbols, ends[:-1])
    return [(part.tobytes(), int(value)) for part, value in zip(parts, values[0], strict=False)]


def evaluated(operator: np.ndarray, values: np.ndarray, first: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Returns what each operator makes of its ``number`` of the ``values``, from its ``first`` one on."""
    ordered = values[np.argsort(10 * np.repeat(np.arange(len(number)), number) + values)]
    median = (ordered[first + (number - 1) // 2] + ordered[first + number // 2]) // 2
    total = np.add.reduceat(values, first) % 10
    return np.choose(operator, [ordered[first], ordered[first + number - 1], median, total])
