"""Limits of density: files, comprehensions, and assignments of several values in one statement."""

import ast
import tokenize
from functools import cache

import pytest
from support.tiny import REPOSITORY

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
PACKAGES = ("fairseq_lrpe", "fairseq_lrpe/experiments", "data_prep")
MAX_LINES = 300
MAX_COMPREHENSIONS = {"fairseq_lrpe": 30, "fairseq_lrpe/experiments": 30, "data_prep": 30}
"""{package: maximum per 1,000 lines of code}"""
MAX_TUPLES = 10
"""Maximum number of statements per 1,000 lines of code that assign a tuple to a tuple."""


def sources(package):
    return sorted((REPOSITORY / package).rglob("*.py"))


@cache
def tree(path):
    return ast.parse(path.read_text())


def nodes(package, kinds):
    return [node for path in sources(package) for node in ast.walk(tree(path)) if isinstance(node, kinds)]


def code_lines(package):
    """Returns the number of lines with code, without blank lines, comments and docstrings."""
    total = 0
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    for path in sources(package):
        lines = set()
        with tokenize.open(path) as file:
            for token in tokenize.generate_tokens(file.readline):
                if token.type not in (*skipped, tokenize.ENDMARKER):
                    lines.update(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                lines.difference_update(range(node.lineno, node.end_lineno + 1))
        total += len(lines)
    return total


def test_files_are_short():
    paths = [path for package in ("fairseq_lrpe", "data_prep", "scripts") for path in sources(package)]
    long = {str(path): len(path.read_text().splitlines()) for path in paths}
    assert {path: lines for path, lines in long.items() if lines > MAX_LINES} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_comprehensions_are_few(package):
    allowed = MAX_COMPREHENSIONS[package] * code_lines(package) / 1000
    assert len(nodes(package, COMPREHENSIONS)) <= allowed


def test_comprehensions_contain_none():
    nested = 0
    for package in ("fairseq_lrpe", "data_prep"):
        for outer in nodes(package, COMPREHENSIONS):
            nested += any(
                inner is not outer and isinstance(inner, COMPREHENSIONS) for inner in ast.walk(outer)
            )
    assert nested == 0


@pytest.mark.parametrize("package", PACKAGES)
def test_statements_assign_one_value(package):
    statements = nodes(package, ast.Assign)
    tuples = [x for x in statements if isinstance(x.targets[0], ast.Tuple) and isinstance(x.value, ast.Tuple)]
    assert len(tuples) <= MAX_TUPLES * code_lines(package) / 1000


def test_positions_have_one_interface():
    """Callers ask ``is_consecutive`` instead of testing types."""
    calls = [ast.unparse(call) for call in nodes("fairseq_lrpe", ast.Call)]
    tests = [call for call in calls if call.startswith("isinstance(") and "PositionIndex" in call]
    assert len(tests) <= 2, tests
