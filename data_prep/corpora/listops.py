"""Long-Range Arena's ListOps: nested operations on digits, generated or read from the published files."""

from functools import partial
from hashlib import blake2b
from itertools import count, islice, pairwise

import numpy as np

from data_prep.labeled import Generated, numbers, rows_and_seed
from data_prep.parallel import ordered_map
from data_prep.validation import usable_rows
from fairseq_lrpe.data.classified_text import OPERATORS, split_expression
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import read_lines

SYMBOLS = [*map(str, range(10)), *OPERATORS, "]"]
CLOSE = len(SYMBOLS) - 1
FILES = {"train": "basic_train.tsv", "valid": "basic_val.tsv", "test": "basic_test.tsv"}
BATCH = 4096  # expressions drawn from one random stream
MAX_EMPTY = 200  # streams without a new expression after which options are rejected


class ListOps(Generated):
    """ListOps of Long-Range Arena (Nangia and Bowman 2018; Tay et al. 2021), for the task ``classification``.

    Expressions such as [MAX 2 9 [MIN 4 7 ] 0 ] consist of digits and of the operators MIN, MAX, MED (median,
    rounded down) and SM (sum modulo 10). The label is the value of the expression, from 0 to 9.

    A node is an operator with probability 1/4 and otherwise a digit; at the maximum depth it is always a
    digit. Operators, their numbers of arguments (2 to 10) and digits are drawn uniformly. Only distinct
    expressions with more than MIN and fewer than MAX tokens (--length) are kept; closing brackets count as
    tokens.
    """

    accepts = f"a folder with the published {', '.join(FILES.values())} (default: generate expressions)"
    options = {
        "--depth": numbers([10], 2, "maximum depth of an expression; a single digit has depth 1"),
        "--length": numbers(
            [500, 2000], 1, "expressions have more than MIN and fewer than MAX tokens", ("MIN", "MAX")
        ),
        **rows_and_seed([96_000, 2_000, 2_000]),
    }
    types = SYMBOLS
    labels = SYMBOLS[:10]

    def generated(self, args):
        generate = partial(expressions, args.seed[0], args.depth[0], *args.length)
        seen = set()
        last = 0  # stream of the last new expression
        for stream, drawn in enumerate(ordered_map(generate, count(), args.workers)):
            for symbols, label in drawn:
                digest = blake2b(symbols, digest_size=16).digest()  # to save memory
                if digest not in seen:
                    seen.add(digest)
                    last = stream
                    yield np.frombuffer(symbols, np.uint8), label
            if stream == last + MAX_EMPTY:
                drawn = f"{len(seen):,} expressions of --depth {args.depth[0]}"
                limits = "more than {} and fewer than {} tokens".format(*args.length)
                raise UserError(f"only {drawn} with {limits} were found: change --length, --depth or --rows")

    def published(self, args):
        for split, name in FILES.items():
            lines = islice(read_lines(args.source / name), 1, None)  # without the header
            rows = [*usable_rows(lines, expression_of, args.source / name, start=2)]
            yield split, rows, len(rows)


def expression_of(line: str) -> tuple[np.ndarray, int]:
    text, _, value = line.partition("\t")
    symbols = split_expression(text)
    if not symbols or set(symbols) - set(SYMBOLS) or value not in SYMBOLS[:10]:
        raise UserError(f"is not an expression of {' '.join(SYMBOLS)}, a tab and its value, 0 to 9")
    return np.array([SYMBOLS.index(symbol) for symbol in symbols]), int(value)


def expressions(seed: int, depth: int, shortest: int, longest: int, stream: int) -> list[tuple[bytes, int]]:
    """Draws BATCH expressions; returns (indices into SYMBOLS as bytes, value) of those of suitable length.

    All expressions are drawn at once, level by level. A random number n < 1440 determines each node: if
    n < 360 and the node is not at the maximum depth, it is the operator n % 4 with 2 + n // 40 arguments,
    otherwise the digit n % 10.

    Args:
        seed: seed of the generator.
        depth: maximum depth of an expression.
        shortest: number of tokens that an expression must exceed.
        longest: number of tokens below which an expression must be.
        stream: number of the random stream.
    """
    bits = np.random.Philox(key=np.array([seed % 2**64, stream], np.uint64))
    half = np.uint64(32)
    tree = np.arange(BATCH)  # expression to which each node of a level belongs
    lengths = np.zeros(BATCH, np.int64)
    levels = []
    while len(tree):
        node = ((bits.random_raw(len(tree)) >> half) * np.uint64(1440) >> half).astype(np.int64)
        operator = (node < 360) & (len(levels) + 1 < depth)
        lengths += np.bincount(tree, 1 + operator, BATCH).astype(np.int64)
        operator &= lengths[tree] < longest  # do not complete expressions that are already too long
        levels.append((tree, node, operator))
        tree = np.repeat(tree[operator], arguments(node[operator]))
    kept = (shortest < lengths) & (lengths < longest)
    kept_levels = []
    for tree, node, operator in levels:
        kept_levels.append((node[kept[tree]], operator[kept[tree]]))
    return serialize(kept_levels)


def arguments(node: np.ndarray) -> np.ndarray:
    return 2 + node // 40


def serialize(levels: list[tuple[np.ndarray, np.ndarray]]) -> list[tuple[bytes, int]]:
    """Returns (indices into SYMBOLS as bytes, value) of each expression.

    ``levels`` contains, for each depth, the random numbers (n,) of the nodes, and whether the nodes are
    operators (n,).
    """
    values = [np.zeros(0, np.int64)]  # of the subtrees, by level
    sizes = [np.zeros(0, np.int64)]
    for node, operator in reversed(levels):
        value = node % 10
        size = np.ones_like(node)
        if operator.any():
            number = arguments(node[operator])
            first = np.cumsum(number) - number  # index of the first argument in the level below
            value[operator] = evaluate(node[operator] % 4, values[0], first, number)
            size[operator] = 2 + np.add.reduceat(sizes[0], first)
        values.insert(0, value)
        sizes.insert(0, size)
    ends = np.cumsum(sizes[0])
    place = ends - sizes[0]
    symbols = np.empty(sizes[0].sum(), np.uint8)
    for (node, operator), (size, below) in zip(levels, pairwise(sizes), strict=True):
        symbols[place] = np.where(operator, 10 + node % 4, node % 10)
        symbols[(place + size - 1)[operator]] = CLOSE
        number = arguments(node[operator])
        before = np.cumsum(below) - below
        place = before + np.repeat(1 + place[operator] - before[np.cumsum(number) - number], number)
    parts = np.split(symbols, ends[:-1])
    rows = []
    for part, value in zip(parts, values[0], strict=False):
        rows.append((part.tobytes(), int(value)))
    return rows


def evaluate(operator: np.ndarray, values: np.ndarray, first: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Returns the values (n,) of operators, each of which is applied to consecutive values.

    Args:
        operator: indices (n,) of the operators.
        values: values of the arguments of all operators.
        first: indices (n,) of the first arguments.
        number: numbers (n,) of arguments.
    """
    ordered = values[np.argsort(10 * np.repeat(np.arange(len(number)), number) + values)]
    median = (ordered[first + (number - 1) // 2] + ordered[first + number // 2]) // 2
    total = np.add.reduceat(values, first) % 10
    return np.choose(operator, [ordered[first], ordered[first + number - 1], median, total])
