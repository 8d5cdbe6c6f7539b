"""Import of modules outside this package that register encodings and methods.

The modules are those of the entry points of the group ``fairseq_lrpe.encodings``, which installed packages
have, and those that the option --import of ``lrpe`` or the environment variable ``LRPE_IMPORT`` names.
"""

import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from fairseq_lrpe.utils.cli import is_fairseq_command
from fairseq_lrpe.utils.errors import UserError

GROUP = "fairseq_lrpe.encodings"
"""Group of the entry points, each of which names a module."""
VARIABLE = "LRPE_IMPORT"
"""Environment variable with the names of modules or the paths of files, separated by commas."""
REMEDY = "pass the path of a .py file, or the name of a module in the current folder or of an installed one"
MAX_CAUSE = 300  # number of characters of the message of an error that are shown


@dataclass(frozen=True)
class Extension:
    """A module that registers encodings or methods.

    Attributes:
        source: the path of its file, or the name of an installed module.
        encodings: the names of the encodings that it registers.
        methods: the names of the methods that it registers.
    """

    source: str
    encodings: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()

    @property
    def file(self) -> Path | None:
        """The file of the module, or None if it has none."""
        name = self.source
        if os.path.isabs(name):
            return Path(name)
        file = getattr(sys.modules.get(name), "__file__", None)
        return Path(file) if file else None


_extensions: dict[str, Extension] = {}  # {source: extension}, also while a module is being imported


def load(words: Iterable[str] = ()) -> None:
    """Imports the modules of all extensions that have not been imported in this process.

    Sets ``VARIABLE``, with absolute paths, so that child processes import the same modules in any folder.

    Args:
        words: values of --import, which are modules in addition to those of ``VARIABLE``.

    Raises:
        UserError: if a module cannot be imported, or registers nothing.
    """
    for entry_point in entry_points(group=GROUP):
        _load(entry_point.module, f"the extension {_describe(entry_point)}")
    sources = dict.fromkeys(map(resolve, _split(os.environ.get(VARIABLE, ""))))
    for word in words:
        modules = _split(word)
        if not modules:
            raise UserError(f"--import {word!r} names no module: {REMEDY}")
        sources |= dict.fromkeys(map(resolve, modules))
    if sources:
        os.environ[VARIABLE] = ",".join(sources)
    for source in sources:
        _load(source, f"the extension {source}")


def load_or_exit() -> None:
    """Imports the modules of all extensions; fairseq's commands exit with the message of an error."""
    try:
        load()
    except UserError as error:
        if is_fairseq_command():
            sys.exit(f"fairseq_lrpe: {error}")
        raise


def variables() -> dict[str, str]:
    """Returns the environment variable with which other processes import the same modules."""
    return {VARIABLE: os.environ[VARIABLE]} if os.environ.get(VARIABLE) else {}


def origin(encoding: str, method: str | None = None) -> Extension | None:
    """Returns the extension that registered an encoding or a method, or None if it is of this package."""
    for extension in _extensions.values():
        if encoding in extension.encodings or method in extension.methods:
            return extension
    return None


def resolve(word: str) -> str:
    """Returns the absolute path of the file that a path, or a module of the current folder, stands for.

    The name of any other module is returned as it is.
    """
    if os.sep in word or word.endswith(".py"):
        path = Path(os.path.abspath(word))
        if path.is_dir():
            path /= "__init__.py"
        if not path.is_file():
            raise UserError(f"the extension {word} does not exist: {REMEDY}")
        return _without_comma(path)
    parts = word.split(".")
    if not all(part.isidentifier() for part in parts):
        raise UserError(f"the extension {word!r} is not the name of a module: {REMEDY}")
    folder = Path.cwd().joinpath(*parts)
    for path in (folder.with_suffix(".py"), folder / "__init__.py"):
        if path.is_file():
            return _without_comma(path)
    return word


def _without_comma(path):
    if "," in str(path):
        raise UserError(f"{VARIABLE} separates paths by commas, but {path} contains one: rename the folder")
    return str(path)


def _split(text):
    return [word.strip() for word in text.split(",") if word.strip()]


def _describe(entry_point: EntryPoint) -> str:
    package = f" of the package {entry_point.dist.name}" if entry_point.dist else ""
    return f"{entry_point.module}{package}"


def _load(source, title):
    """Imports the module with a source, unless it has been imported; ``title`` is its name in messages."""
    if source in _extensions:
        return
    _extensions[source] = Extension(source)  # the module may itself import what loads extensions
    known = set(sys.modules)
    before = _registered()
    try:
        module = _import(source)
    except (Exception, SystemExit) as error:
        del _extensions[source]
        is_missing = isinstance(error, ModuleNotFoundError) and source.startswith(str(error.name))
        remedy = f": {REMEDY}" if is_missing else ""
        place = _place(error, source)
        raise UserError(f"{title} cannot be imported{place}: {_cause(error)}{remedy}") from None
    new = []
    for names, names_before in zip(_registered(), before, strict=True):
        new.append(tuple(name for name in names if name not in names_before))
    encodings, methods, _ = new
    for name in set(encodings).intersection(before[1]):
        raise UserError(f"{title} registers the encoding {name!r}, which is the name of a method: rename it")
    _extensions[source] = Extension(source, encodings, methods)
    if not any(new) and module.__name__ not in known:
        del _extensions[source]
        raise UserError(
            f"{title} registers nothing: decorate a class with @register_encoding(NAME), or call "
            "register_method(NAME, FLAGS, SOURCE)"
        )


def _registered():
    """Returns the names of all encodings, methods and absolute position embeddings."""
    # These imports take seconds.
    from fairseq_lrpe.encodings import ENCODINGS
    from fairseq_lrpe.methods import METHODS
    from fairseq_lrpe.positions import POSITIONS

    return list(ENCODINGS), list(METHODS), list(POSITIONS)


def _import(source: str) -> ModuleType:
    if not os.path.isabs(source):
        return import_module(source)
    path = Path(source)
    name, root = _module_of(path)
    if not all(part.isidentifier() for part in name.split(".")):
        raise UserError(f"Python cannot import {path.name}: rename it to letters, digits and underscores")
    if str(root) not in sys.path:
        sys.path.append(str(root))  # last, so that its other files do not replace installed modules
    spec = importlib.util.find_spec(name)
    found = spec.origin if spec else None
    if found is None or not os.path.exists(found) or not path.samefile(found):
        raise UserError(f"Python imports {found or 'a module of Python'} as {name}: rename {path.name}")
    return import_module(name)


def _module_of(path):
    """Returns the full name of a file's module, and the folder from which Python imports it."""
    parts = [] if path.name == "__init__.py" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts), folder


def _place(error, source):
    """Returns the last line of an extension's code that an error passed, such as " (mine.py, line 3)"."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    name = _module_of(Path(source))[0] if os.path.isabs(source) else source
    package = name.partition(".")[0]
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
            place = f" ({frame.f_code.co_filename}, line {line})"
    return place


def _cause(error):
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    message = " ".join(text.split())[:MAX_CAUSE]
    if isinstance(error, UserError):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
