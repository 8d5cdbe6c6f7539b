"""Lets fairseq read the settings of a checkpoint as values, never as code.

fairseq hands some texts of a model's settings to Python's ``eval``, and the settings of a model are in its
checkpoint: whoever wrote the file could run code on the machine that opens it, although torch's own loading
is safe. So ``eval`` means :func:`literal` in fairseq's modules once a model of ours is imported.
"""

import ast
import sys


def literal(text: str) -> object:
    """Returns the value of a text that is a literal, or sums and products of literals.

    fairseq's own architectures need no more: "[(512, 3)] * 9 + [(1024, 3)] * 4".

    Raises:
        SystemExit: the text is anything else; it says so in one sentence.
        TypeError: it is no text, as of ``eval``, on which fairseq's ``eval_bool`` relies.
    """
    if not isinstance(text, str):
        raise TypeError(f"a text is evaluated, not {text!r}")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        shown = text if len(text) < 60 else f"{text[:60]}..."
        raise SystemExit(
            f"fairseq_lrpe: the setting {shown!r} is neither a number, a text, a list nor a dict: Python "
            "code among the settings of a checkpoint or on the command line is not run"
        ) from None


def _value(node):
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        left, right = _value(node.left), _value(node.right)
        return left + right if isinstance(node.op, ast.Add) else left * right
    return ast.literal_eval(node)


def replace_eval() -> None:
    """Puts :func:`literal` before Python's ``eval`` in every module of fairseq that is imported."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("fairseq", "fairseq_cli"):
            vars(module)["eval"] = literal
