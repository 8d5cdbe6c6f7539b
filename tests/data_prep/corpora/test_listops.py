"""ListOps: expressions and their values."""

import json
from collections import Counter
from itertools import chain
from statistics import mean, median, stdev

from small_corpora import SPLITS, classified, error_of, prepare

from data_prep.corpora import listops

SYMBOLS = "0 1 2 3 4 5 6 7 8 9 [MIN [MAX [MED [SM ]".split()


def parsed(symbols):
    """Returns (value, depth, numbers of arguments) of an expression, read from left to right."""
    symbol = next(symbols)
    if symbol.isdecimal():
        return int(symbol), 1, []
    arguments = []
    while (following := next(symbols)) != "]":
        arguments.append(parsed(chain([following], symbols)))
    values = [value for value, _, _ in arguments]
    operators = {"[MIN": min, "[MAX": max, "[MED": lambda x: int(median(x)), "[SM": lambda x: sum(x) % 10}
    depth = 1 + max(depth for _, depth, _ in arguments)
    return operators[symbol](values), depth, [len(values), *chain(*(numbers for _, _, numbers in arguments))]


def checked(symbols, value):
    """Checks an expression's value; returns its depth and the numbers of its operators' arguments."""
    rest = iter(symbols)
    found, depth, numbers = parsed(rest)
    assert found == value and next(rest, None) is None
    return depth, numbers


def test_expressions_are_those_of_long_range_arena(tmp_path):
    out = tmp_path / "out"
    prepare("listops", ["--out", out, "--rows", 300, 20, 30, "--workers", 2])
    assert (out / "bin" / "dict.txt").read_text() == "".join(f"{symbol} 1\n" for symbol in SYMBOLS)
    about = json.loads((out / "bin" / "about.json").read_text())
    rows = {"train": 300, "valid": 20, "test": 30}
    assert about == {"inputs": 1, "labels": SYMBOLS[:10], "rows": rows}
    depths, numbers, labels, lengths = Counter(), Counter(), Counter(), []
    for split, count in rows.items():
        found = classified(out / "bin", split)
        assert len(found) == count
        for text, label in found:
            depth, of_one = checked(text.split(), int(label))
            depths[depth] += 1
            numbers.update(of_one)
            labels[label] += 1
            lengths.append(len(text.split()))
    assert 500 < min(lengths) < 520 and 1900 < max(lengths) < 2000
    assert max(depths) == 10 and depths[10] > 300
    assert set(numbers) == set(range(2, 11))
    assert set(labels) == set(SYMBOLS[:10]) and min(labels.values()) > 15


def test_distribution_of_expressions():
    """At depth 4, a node's length is 1 with probability 3/4, else 2 plus that of 6 nodes on average."""
    drawn = [row for stream in range(10) for row in listops.expressions(1, 4, 0, 10**6, stream)]
    expected = 1
    for _ in range(3):
        expected = 3 / 4 + 1 / 4 * (2 + 6 * expected)
    lengths = [len(symbols) for symbols, _ in drawn]
    assert len(drawn) == 10 * listops.BATCH
    assert abs(mean(lengths) - expected) < 3 * stdev(lengths) / len(lengths) ** 0.5
    assert abs(lengths.count(1) / len(drawn) - 0.75) < 3 * (0.75 * 0.25 / len(drawn)) ** 0.5
    symbols, numbers = Counter(), Counter()
    for text, value in drawn:
        text = [SYMBOLS[symbol] for symbol in text]
        symbols.update(text)
        numbers.update(checked(text, value)[1])
    for kind in ([str(digit) for digit in range(10)], SYMBOLS[10:14], range(2, 11)):
        counts = [(numbers if isinstance(kind, range) else symbols)[x] for x in kind]
        each = sum(counts) / len(counts)
        assert all(abs(count - each) < 4 * each**0.5 for count in counts), counts


def test_too_few_distinct_expressions_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(listops, "MAX_EMPTY", 100)
    options = ["--depth", 2, "--length", 3, 5, "--rows", 500, 1, 1]
    message = error_of("listops", "--out", tmp_path / "out", "--workers", 1, *options)
    assert "only 400 expressions of --depth 2 with" in message and not list(tmp_path.iterdir())


def test_published_files(tmp_path, capsys):
    """With byte order marks, carriage returns, and a broken row, which is left out and counted."""
    folder, out = tmp_path / "listops-1000", tmp_path / "out"
    folder.mkdir()
    texts = {"train": "( ( ( [MAX 3 ) 7 ) ] )\t7", "val": "( [FIRST 3 ) ] )\t3\r\n4\t4", "test": "4\t4"}
    for name, text in texts.items():
        (folder / f"basic_{name}.tsv").write_text(f"\ufeffSource\tTarget\r\n{text}\r\n")
    prepare("listops", ["--out", out, "--from", folder])
    rows = [row for split in SPLITS for row in classified(out / "bin", split)]
    assert rows == [("[MAX 3 7 ]", "7"), ("4", "4"), ("4", "4")]
    wrong = "left out 1 of 2 rows: line 2 is not an expression of 0 1 2"
    assert f"{folder / 'basic_val.tsv'}: {wrong}" in capsys.readouterr().out
