"""``lrpe prepare [NAME [OPTION ...]]``: preparation of a corpus for fairseq, or a list of all corpora."""

import fcntl
import inspect
import os
import re
import shutil
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from rich.table import Table

from data_prep.corpus import UNPACKED, Corpus, check_record, recorded_folder
from fairseq_lrpe.data.corpora import CORPORA, MINI, data_folder, prepare_arguments
from fairseq_lrpe.utils.cli import exit_on_error, min_int, path_arg, print_wide, resumable
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import PREPARE, REPOSITORY, check_regular, output_folder
from fairseq_lrpe.utils.subprocesses import available_cores
from fairseq_lrpe.utils.suggest import choices

USAGE = f"{PREPARE} NAME prepares a corpus (--help lists its options)"


def state(folder: str) -> str:
    folders = sorted(REPOSITORY.glob(folder.replace("TASK", "*")))
    if not folders:
        return "-"
    if "TASK" not in folder:
        return "prepared"
    return f"prepared: {' '.join(path.parent.name for path in folders)}"


def listing() -> Table:
    table = Table("name", "description", "origin", "folder", "state", title=USAGE, title_justify="left")
    for name in (*CORPORA, *MINI):
        row = CORPORA[MINI.get(name, name).split()[0]]
        folder = data_folder(name)
        description = prepare_arguments(name) if name in MINI else row.description
        origin = "needs --from" if name in MINI and "--from" in description else row.origin
        table.add_row(name, description, origin, folder, state(folder))
    return table


def main(arguments: list[str] | None = None) -> None:
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
        module, kind = CORPORA[name].implementation.split(":")
        prepare(getattr(import_module(f"data_prep.corpora.{module}"), kind)(name), options)


def prepare(corpus: Corpus, arguments: list[str]) -> None:
    """Executes ``lrpe prepare NAME``; steps that an earlier call completed are not repeated.

    Args:
        corpus: the corpus NAME.
        arguments: the arguments after NAME.
    """
    args = parser(corpus).parse_intermixed_args(arguments)
    with exit_on_error(f"prepare {corpus.name}"):
        check_paths(corpus, args)
        parts = corpus.parts(args)
        for part in parts:
            corpus.check(part)
        with output_folder(args.out), locked(args.out):
            for part in parts:
                for folder in sorted(part.out.glob("*")):
                    if re.fullmatch(r"text|bin\d*", folder.name):
                        check_record(folder, corpus.record(part))
            for part in parts:
                with output_folder(part.out):
                    prepare_part(corpus, part)
        for part in parts:
            corpus.report(part)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder during the block; raises UserError if another process holds the lock."""
    path = folder / "prepare.lock"
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process that has just ended has removed the file that it locked.
            held = os.path.samestat(os.fstat(file.fileno()), path.stat())
        except (BlockingIOError, FileNotFoundError):
            held = False
        except OSError as error:
            path.unlink(missing_ok=True)
            wrong = f"{folder} cannot be locked ({error.strerror})"
            raise UserError(f"{wrong}: choose --out in a file system with file locks") from None
        if not held:
            raise UserError(f"another process is preparing {folder}: wait until it ends, or change --out")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def parser(corpus: Corpus) -> ArgumentParser:
    made = ArgumentParser(
        prog=f"lrpe prepare {corpus.name}",
        description=inspect.getdoc(corpus).replace("``", "`"),
        formatter_class=RawDescriptionHelpFormatter,
    )
    made.add_argument("--from", dest="source", type=path_arg, metavar="PATH", help=corpus.accepts)
    for name, options in corpus.options.items():
        made.add_argument(name, **options)
    out = REPOSITORY / "data" / corpus.name
    made.add_argument("--out", type=path_arg, default=out, help="output folder (default: %(default)s)")
    text = "number of processes (default: all CPUs, %(default)s)"
    made.add_argument("--workers", type=min_int(1), default=available_cores(), metavar="N", help=text)
    return made


def check_paths(corpus: Corpus, args: Namespace) -> None:
    """Raises UserError if fairseq would split the path --out, or --from is missing or does not exist."""
    if separators := set(":,") & set(str(args.out)):
        wrong = f"has {max(separators)!r}, at which fairseq splits paths"
        raise UserError(f"--out {args.out} {wrong}: choose another folder")
    if args.source is None and CORPORA[corpus.name].origin == "needs --from":
        page = f" (see {corpus.facts['page']})" if "page" in corpus.facts else ""
        raise UserError(f"--from is missing: pass {corpus.accepts}{page}")
    if args.source and not args.source.exists():
        raise UserError(f"{args.source} is missing: --from takes {corpus.accepts}")
    if args.source and not args.source.is_dir():
        check_regular(args.source)


def prepare_part(corpus: Corpus, args: Namespace) -> None:
    """Writes OUT/bin, unless it exists, and removes unpacked archives.

    If the input is invalid, OUT/text is removed, too, unless an earlier call created it.
    """
    data = args.out / "bin"
    text = args.out / "text"
    had_text = text.exists()
    try:
        if data.is_dir():
            print(f"already prepared: {data}")
            return
        with resumable(), recorded_folder(data, corpus.record(args)) as folder:
            corpus.prepare(args, folder)
    except ValueError:  # the source or an option is invalid
        if not had_text:
            shutil.rmtree(text, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(args.out / UNPACKED, ignore_errors=True)
