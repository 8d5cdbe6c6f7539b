"""The YAML files of experiments, tables and papers: those of the user come before those of this package.

The user's files are in the folder ``configs`` of the current folder, or in the folders that the environment
variable ``LRPE_CONFIGS`` names instead.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import CONFIGS, PLUGIN, visible_files

VARIABLE = "LRPE_CONFIGS"
"""Environment variable with paths of folders, separated as in PATH."""
OTHERS = ("paper", "tables")
"""Folders with files that are not experiments."""


def own_folders() -> list[Path]:
    """Returns the absolute paths of the folders that are searched before that of this package.

    Raises:
        UserError: if ``VARIABLE`` names a folder that does not exist.
    """
    names = [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    folders = []
    for name in names:
        folder = Path(os.path.abspath(name))
        if not folder.is_dir():
            raise UserError(f"{VARIABLE} names {folder}, which is not a folder: correct or unset it")
        folders.append(folder)
    here = Path.cwd() / "configs"
    if not names and here.is_dir():
        folders.append(here)
    shared = [CONFIGS.resolve(), PLUGIN.parent / "configs"]
    return [folder for folder in folders if folder.resolve() not in shared]


def config_path(name: str, extending: Path | None = None) -> Path:
    """Returns the path of NAME.yaml in the first folder that has it, or in that of this package if none has.

    Args:
        name: path in configs without .yaml, such as "lm/mini", "tables/quickstart" or "paper/roper".
        extending: path of a file that extends the file with ``name``. Folders before its own are not
            searched, so that the user's files do not change those of this package that extend a file of the
            same name, and a file that replaces another one can extend it.
    """
    folders = [*own_folders(), CONFIGS]
    while extending and len(folders) > 1 and not extending.is_relative_to(folders[0]):
        folders.pop(0)
    for folder in folders:
        path = folder / f"{name}.yaml"
        if path.is_file() and path != extending:
            return path
    return CONFIGS / f"{name}.yaml"


def experiments() -> list[str]:
    """Returns the sorted names of all experiments."""
    return sorted(set(_experiments()))


def _experiments() -> Iterator[str]:
    for folder in (*own_folders(), CONFIGS):
        for path in visible_files(folder):
            is_other = path.parent.name in OTHERS or path.match("cluster*.yaml")
            if path.suffix == ".yaml" and not is_other:
                yield str(path.relative_to(folder).with_suffix(""))


def tables() -> list[str]:
    """Returns the sorted names of all tables."""
    names = own_tables()
    names += _tables(CONFIGS)
    return sorted(set(names))


def own_tables() -> list[str]:
    """Returns the names of the tables in the user's folders."""
    names = []
    for folder in own_folders():
        names += _tables(folder)
    return sorted(set(names))


def _tables(folder):
    paths = (folder / "tables").glob("[!.]*.yaml")
    return [path.stem for path in paths if path.is_file()]


def variables() -> dict[str, str]:
    """Returns the environment variable with which other processes find the user's files in any folder."""
    folders = own_folders()
    return {VARIABLE: os.pathsep.join(map(str, folders))} if folders else {}
