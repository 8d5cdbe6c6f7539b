"""Prepares a corpus for fairseq, or lists all corpora: ``lrpe prepare [NAME [OPTION ...]]``."""

import sys
from importlib import import_module

from rich.table import Table

from fairseq_lrpe.data.corpora import CORPORA, MINI, data_folder, prepare_arguments
from fairseq_lrpe.utils.cli import print_wide
from fairseq_lrpe.utils.files import PREPARE, REPOSITORY
from fairseq_lrpe.utils.suggest import choices

USAGE = f"{PREPARE} NAME prepares a corpus (--help lists its options)"


def state(folder: str) -> str:
    """Returns "prepared" if a corpus's folder exists, with its prepared tasks if it has several, else "-"."""
    found = sorted(REPOSITORY.glob(folder.replace("TASK", "*")))
    if not found:
        return "-"
    return f"prepared: {' '.join(path.parent.name for path in found)}" if "TASK" in folder else "prepared"


def listing() -> Table:
    """Returns a table of all corpora and of their small versions."""
    table = Table("name", "description", "origin", "folder", "state", title=USAGE, title_justify="left")
    for name in (*CORPORA, *MINI):
        folder = data_folder(name)
        if name in MINI:
            description, row = prepare_arguments(name), CORPORA[MINI[name].split()[0]]
            origin = "needs --from" if "--from" in description else row.origin
        else:
            description, origin = CORPORA[name].description, CORPORA[name].origin
        table.add_row(name, description, origin, folder, state(folder))
    return table


def main(arguments: list[str] | None = None) -> None:
    """Lists the corpora, or prepares the one named by the first argument."""
    name, *options = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print_wide(listing())
    elif name in MINI:
        command = f"{PREPARE} {prepare_arguments(name)}"
        sys.exit(f"prepare: {name} is a small version of a corpus: prepare it with `{command}`")
    elif name not in CORPORA:
        known = choices(name, CORPORA, f"`{PREPARE}` lists the corpora")
        sys.exit(f"prepare: unknown corpus {name!r}{known}")
    else:
        from data_prep.corpus import prepare

        module, kind = CORPORA[name].implementation.split(":")
        prepare(getattr(import_module(f"data_prep.corpora.{module}"), kind)(name), options)
