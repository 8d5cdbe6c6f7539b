"""ListOps of Long-Range Arena (Nangia and Bowman 2018; Tay et al. 2021), for the task ``classification``.

Expressions such as [MAX 2 9 [MIN 4 7 ] 0 ] with MIN, MAX, MED (median, rounded down) and SM (sum modulo 10);
the label is the value, 0 to 9. Above --depth, a node is an operator with probability 1/4 and a digit
otherwise; operators, their number of arguments (2 to 10) and digits are uniform. Only distinct expressions
with more than MIN and fewer than MAX tokens are kept; closing brackets are tokens.
"""

import csv
from functools import partial
from hashlib import blake2b
from itertools import count, pairwise
from pathlib import Path

import numpy as np

from data_prep.generated import Generated
from data_prep.parallel import ordered_map
from data_prep.validation import check_text

OPERATORS = ["[MIN", "[MAX", "[MED", "[SM"]
SYMBOLS = [*map(str, range(10)), *OPERATORS, "]"]
CLOSE = len(SYMBOLS) - 1
FILES = {"train": "basic_train.tsv", "valid": "basic_val.tsv", "test": "basic_test.tsv"}
BATCH = 4096  # expressions drawn from one random stream
MAX_EMPTY = 100  # streams without any valid expression before giving up


class ListOps(Generated):
    """Nested list expressions and their values."""

    accepts = f"{', '.join(FILES.values())} as published (default: generate expressions)"
    defaults = {"depth": [10], "length": [500, 2000], "rows": [96_000, 2_000, 2_000], "seed": [1]}
    types = SYMBOLS
    labels = SYMBOLS[:10]

    def add_options(self, parser):
        self.add_numbers(parser, "depth", 2, "maximum depth of an expression; a single digit has depth 1")
        text = "expressions have more than MIN and fewer than MAX tokens"
        self.add_numbers(parser, "length", 1, text, ("MIN", "MAX"))
        super().add_options(parser)

    def check(self, args):
        if args.source:
            return {split: published(args.source / name) for split, name in FILES.items()}
        shortest, longest = args.length
        if longest < shortest + 2:
            raise ValueError(f"--length {shortest} {longest}: no length is between the two")
        if not any(map(self.generator(args), range(MAX_EMPTY))):
            raise ValueError(f"{self.no_match(args, MAX_EMPTY)}: change --length or --depth")

    def generator(self, args):
        """Returns the function that maps the index of a random stream to expressions."""
        return partial(expressions, args.seed[0], args.depth[0], *args.length)

    def no_match(self, args, streams):
        """Returns a message that no generated expression has a valid length."""
        drawn = f"of {streams * BATCH:,} expressions of --depth {args.depth[0]}"
        return "{} none has more than {} and fewer than {} tokens".format(drawn, *args.length)

    def read(self, args, rows):
        for symbols, label in rows:
            yield np.array([*map(SYMBOLS.index, symbols.split())]), label

    def generated(self, args):
        seen, last = set(), 0
        for stream, drawn in enumerate(ordered_map(self.generator(args), count(), args.workers)):
            for symbols, label in drawn:
                digest = blake2b(symbols, digest_size=16).digest()  # to save memory
                if digest not in seen:
                    seen.add(digest)
                    last = stream
                    yield np.frombuffer(symbols, np.uint8), label
            if stream == last + 10 * MAX_EMPTY:
                message = f"{self.no_match(args, 10 * MAX_EMPTY)} besides the {len(seen):,} before"
                raise ValueError(f"{message}: ask for fewer --rows")


def published(path: Path) -> list[tuple[str, int]]:
    """Returns (symbols, value) of each row of a published TSV file, without its parentheses."""
    check_text(path, f"--from takes a folder with {', '.join(FILES.values())}")
    with path.open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file, delimiter="\t")
    if header != ["Source", "Target"]:
        raise ValueError(f"{path} does not start with the header Source, tab, Target")
    rows = []
    for number, line in enumerate(lines, 2):
        symbols = line[0].replace("(", " ").replace(")", " ") if len(line) == 2 else ""
        if not symbols.strip() or set(symbols.split()) - set(SYMBOLS) or line[1] not in SYMBOLS[:10]:
            raise ValueError(
                f"{path} line {number} is not an expression of {' '.join(SYMBOLS)} with its value"
            )
        rows.append((symbols, int(line[1])))
    if not rows:
        raise ValueError(f"{path} has no rows")
    return rows


def expressions(seed: int, depth: int, shortest: int, longest: int, stream: int) -> list[tuple[bytes, int]]:
    """Draws BATCH expressions and returns (symbols, value) of those with a valid length.

    All are drawn at once, level by level. One random number n < 1440 defines a node: if n < 360 it is
    operator n % 4 with 2 + n // 40 arguments, otherwise digit n % 10.
    """
    bits = np.random.Philox(key=np.array([seed % 2**64, stream], np.uint64))
    half = np.uint64(32)
    tree, levels, lengths = np.arange(BATCH), [], np.zeros(BATCH, np.int64)
    while len(tree):
        node = ((bits.random_raw(len(tree)) >> half) * np.uint64(1440) >> half).astype(np.int64)
        operator = (node < 360) & (len(levels) + 1 < depth)
        lengths += np.bincount(tree, 1 + operator, BATCH).astype(np.int64)
        operator &= lengths[tree] < longest  # expressions that are too long need not be completed
        levels.append((tree, node, operator))
        tree = np.repeat(tree[operator], arguments(node[operator]))
    kept = (shortest < lengths) & (lengths < longest)
    return serialize([(node[kept[tree]], operator[kept[tree]]) for tree, node, operator in levels])


def arguments(node: np.ndarray) -> np.ndarray:
    """Returns the number of arguments of operators."""
    return 2 + node // 40


def serialize(levels: list[tuple[np.ndarray, np.ndarray]]) -> list[tuple[bytes, int]]:
    """Returns (symbols, value) of each tree, from (nodes, is operator) of each level."""
    values, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]  # per level
    for node, operator in reversed(levels):
        value, size = node % 10, np.ones_like(node)
        if operator.any():
            number = arguments(node[operator])
            first = np.cumsum(number) - number  # index in the level below
            value[operator] = evaluate(node[operator] % 4, values[0], first, number)
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


def evaluate(operator: np.ndarray, values: np.ndarray, first: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Applies each operator to ``number`` consecutive ``values`` from index ``first`` on."""
    ordered = values[np.argsort(10 * np.repeat(np.arange(len(number)), number) + values)]
    median = (ordered[first + (number - 1) // 2] + ordered[first + number // 2]) // 2
    total = np.add.reduceat(values, first) % 10
    return np.choose(operator, [ordered[first], ordered[first + number - 1], median, total])
