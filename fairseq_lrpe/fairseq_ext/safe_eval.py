"""Evaluation of literals, which replaces ``eval`` where fairseq evaluates the settings of checkpoints."""

import ast


def literal(text: str) -> object:
    """Returns the value of a literal, or of sums and products of literals.

    Literals are sufficient for fairseq's settings, such as "[(512, 3)] * 9 + [(1024, 3)] * 4".

    Raises:
        SystemExit: if ``text`` is any other expression.
        TypeError: if ``text`` is not a string, as for ``eval``; fairseq's ``eval_bool`` relies on it.
    """
    if not isinstance(text, str):
        raise TypeError(f"expected a string, not {text!r}")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        shown = text if len(text) < 60 else f"{text[:60]}..."
        raise SystemExit(
            f"fairseq_lrpe: the setting {shown!r} is not a number, string, list or dict; Python code in a "
            "checkpoint's settings or on the command line is not executed"
        ) from None


def _value(node):
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        left = _value(node.left)
        right = _value(node.right)
        return left + right if isinstance(node.op, ast.Add) else left * right
    return ast.literal_eval(node)
