"""The extension that registered a run's method, as run.json records it."""

import ast
import hashlib
from pathlib import Path

from fairseq_lrpe import extensions
from fairseq_lrpe.experiments.definition.setting_differences import differences
from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.utils.errors import UserError


def used_extension(name: str, train_flags: dict) -> dict[str, dict]:
    """Returns {"extension": {"source", "code", "flags"}} of a run, or {} if its method is of this package.

    ``code`` is a digest of the module's file, and ``flags`` are those of the method.

    Args:
        name: the run's method.
        train_flags: {name with underscores: value} of flags that replace those of the method.
    """
    if name not in METHODS:  # fairseq's own model
        return {}
    method = METHODS[name]
    extension = extensions.origin(train_flags.get("encoding", method.encoding), name)
    if extension is None:
        return {}
    code = code_digest(extension.file) if extension.file else None
    return {"extension": {"source": extension.source, "code": code, "flags": dict(method.flags)}}


def code_digest(path: Path) -> str:
    """Returns a digest of the code in a Python file, without its comments, docstrings and format."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                child.value = ast.Constant(None)
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()


def extension_differences(before: dict, now: dict) -> list[str]:
    """Returns a text for each difference of the extensions in two contents of run.json."""
    trained = before.get("extension")
    current = now.get("extension")
    if not (trained and current):
        return []
    texts = differences(trained["flags"], current["flags"], f"{now['method']}: ")
    if trained["code"] != current["code"]:
        texts.append(f"the code of {current['source']} has changed since the training")
    return texts


def check_extension(settings: dict) -> None:
    """Raises UserError if the extension that registered a run's method has not been imported.

    Args:
        settings: the content of run.json.
    """
    trained = settings.get("extension")
    if trained and settings["method"] not in METHODS:
        source = trained["source"]
        raise UserError(
            f"the run's method {settings['method']!r} was registered by {source}, which is not imported: "
            f"pass --import {source}, or set LRPE_IMPORT={source}; in Python, import the module"
        )
