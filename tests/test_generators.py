"""Generators are read where they are created: when read later, their variables may have changed."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [
    path for folder in ("fairseq_lrpe", "data_prep", "scripts") for path in (ROOT / folder).rglob("*.py")
]


def assigned_generators(source):
    """Returns the lines on which a generator expression is assigned to one name or attribute."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            values = [node.value]
            if isinstance(node.value, ast.IfExp):
                values = [node.value.body, node.value.orelse]
            elif isinstance(node.value, ast.Tuple | ast.List):
                values = node.value.elts
            # Several targets read a generator at once.
            is_kept = isinstance(node.value, ast.Tuple | ast.List) or not isinstance(targets[0], ast.Tuple)
            if is_kept and any(isinstance(value, ast.GeneratorExp) for value in values):
                lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_generator_is_assigned(path):
    assert assigned_generators(path.read_text()) == []


@pytest.mark.parametrize(
    "source, found",
    [
        ("a = (x for x in y)", True),
        ("self.a = (x for x in y)", True),
        ("a, b = (x for x in y), 2", True),
        ("a = (x for x in y) if z else None", True),
        ("if a := (x for x in y): pass", True),
        ("a, b = (x for x in y)", False),
        ("a = [x for x in y]", False),
        ("a = sum(x for x in y)", False),
    ],
)
def test_what_is_found(source, found):
    assert bool(assigned_generators(source)) == found
