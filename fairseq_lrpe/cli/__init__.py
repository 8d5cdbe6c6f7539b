"""The command ``lrpe``: train and evaluate models, run the papers' tables, and show results.

Each subcommand is a module with a function ``main(arguments)``. Modules are imported on demand, so that
``lrpe --help`` responds immediately.
"""

import gc
import logging
import os
import sys
import warnings
from collections.abc import Iterable
from importlib import import_module

from fairseq_lrpe import extensions
from fairseq_lrpe.utils.cli import open_standard_streams
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import is_utf8
from fairseq_lrpe.utils.launchers import check_single_process
from fairseq_lrpe.utils.suggest import choices

COMMANDS = {
    "train": ("fairseq_lrpe.cli.train", "train and evaluate one method in one experiment"),
    "table": ("fairseq_lrpe.cli.table", "run the experiments of a paper's table, or list all tables"),
    "results": ("fairseq_lrpe.cli.results", "show results as a table or plot, or record and check them"),
    "compare": ("fairseq_lrpe.cli.compare", "compare the settings and measurements of two runs"),
    "report": ("fairseq_lrpe.cli.report", "write a report of results, or the atlas of encodings, as HTML"),
    "evaluate": ("fairseq_lrpe.cli.evaluate", "evaluate a language model at several block lengths"),
    "generate": ("fairseq_lrpe.cli.generate", "continue or translate text, or generate questions"),
    "attention": ("fairseq_lrpe.cli.attention", "draw the attention of a language model in a text"),
    "classify": ("fairseq_lrpe.cli.classify", "predict the labels of texts or images"),
    "export": ("fairseq_lrpe.cli.export", "write a language model as a folder for Transformers"),
    "finetune": ("fairseq_lrpe.cli.finetune", "fine-tune a pretrained model on GLUE"),
    "glue-submission": (
        "fairseq_lrpe.experiments.inference.glue_submission",
        "write the zip file that GLUE's server accepts",
    ),
    "prepare": ("data_prep.prepare", "prepare a corpus, or list all corpora"),
    "quickstart": ("fairseq_lrpe.cli.quickstart", "train four small language models and compare them"),
    "synthetic": ("fairseq_lrpe.tasks.synthetic_lm", "print examples of synthetic problems"),
    "bench": ("fairseq_lrpe.cli.bench", "measure speed and memory, or plot the encodings"),
    "methods": ("fairseq_lrpe.cli.methods", "list the methods, or explain the flags of encodings"),
    "env": ("fairseq_lrpe.cli.env", "print the versions and devices that a report of a bug needs"),
}
INTERNAL = {"evaluate-synthetic": "fairseq_lrpe.experiments.inference.evaluate_synthetic"}
"""{command of the experiment runner, which ``lrpe --help`` does not list: its module}"""
EXAMPLES = """\
examples:
  lrpe train lm/mini tmlr_type1 --seeds 1
  lrpe table tmlr_table2 --scale mini --jobs 2
  lrpe results --table tmlr_table2 --scale mini
"""


def main(arguments: list[str] | None = None) -> None:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] != ["env"]:  # which describes other versions of Python, too
        check_python()
    open_standard_streams()
    set_up_process()
    for word in words:
        if not is_utf8(word):
            sys.exit(f"lrpe: the argument {os.fsencode(word)!r} is not UTF-8: use names and text in UTF-8")
    words, imports = split_imports(words)
    name, *rest = words or ["--help"]
    if name in ("-h", "--help"):
        print_help()
    elif name in COMMANDS or name in INTERNAL:
        check_launchers(name, rest)
        run(name, rest, imports)
    else:
        listing = "`lrpe --help` lists the commands"
        sys.exit(f"lrpe: unknown command {name!r}{choices(name, COMMANDS, listing)}")


def check_python() -> None:
    if sys.version_info < (3, 11):
        sys.exit("lrpe needs Python 3.11 or newer; with Python 3.10, use fairseq's commands with --user-dir")
    if sys.flags.optimize > 1:
        sys.exit("lrpe: python -OO removes texts that lrpe shows: unset PYTHONOPTIMIZE, or set it to 1")


def set_up_process() -> None:
    """Sets the options of Python and of libraries on which commands depend."""
    try:
        os.getcwd()
    except FileNotFoundError:
        sys.exit("lrpe: the current folder has been deleted: change to an existing folder")
    os.environ.pop("MPLBACKEND", None)  # plots are written to files; importing matplotlib would check it
    if any(option.startswith("error") for option in sys.warnoptions):
        warnings.simplefilter("ignore")  # torch and fairseq warn when they are imported
    # With Python's default, a fifth of the time that torch and fairseq take to start is garbage collection.
    gc.set_threshold(100_000, 50, 100)
    # Importing fairseq calls basicConfig with the level DEBUG, which has no effect after this call.
    logging.basicConfig(format="%(message)s")
    errors = getattr(sys.stdout, "errors", "")
    encoding = getattr(sys.stdout, "encoding", "")
    if errors == "strict" or (errors == "surrogateescape" and encoding != "utf-8"):
        sys.stdout.reconfigure(errors="backslashreplace")  # tables contain ±, which some locales lack


def print_help() -> None:
    print("usage: lrpe COMMAND [options]\n")
    for name, (_, summary) in COMMANDS.items():
        print(f"  {name:<16} {summary}")
    print("\n`lrpe COMMAND --help` explains a command.")
    print("With --import MODULE, any command knows encodings and methods of your own.")
    print(f"\n{EXAMPLES}", end="")


def split_imports(words: list[str]) -> tuple[list[str], list[str]]:
    """Returns the arguments without the options --import, and the values of these options.

    Arguments after -- are for fairseq-train.
    """
    end = words.index("--") if "--" in words else len(words)
    kept = []
    imports = []
    before_dashes = iter(words[:end])
    for word in before_dashes:
        option, equals, value = word.partition("=")
        if option == "--import":
            imports.append(value if equals else next(before_dashes, ""))
        else:
            kept.append(word)
    return kept + words[end:], imports


def run(name: str, arguments: list[str], imports: Iterable[str]) -> None:
    """Imports extensions and the module of a command, and runs the command in this process."""
    module = INTERNAL[name] if name in INTERNAL else COMMANDS[name][0]
    try:
        load_extensions(name, imports)
        import_module(module).main(arguments)
    except ModuleNotFoundError as error:
        if str(error.name).startswith(("fairseq_lrpe", "data_prep")):  # a bug
            raise
        sys.exit(f"lrpe {name}: {error}: run `pip install '.[train]'` in the checkout")
    except KeyboardInterrupt:
        sys.exit(130)  # the import of torch and fairseq takes seconds


def load_extensions(name: str, imports: Iterable[str]) -> None:
    try:
        extensions.load(imports)
    except UserError as error:
        sys.exit(f"lrpe {name}: {error}")


def check_launchers(name: str, arguments: list[str]) -> None:
    try:
        check_single_process(arguments)
    except UserError as error:
        sys.exit(f"lrpe {name}: {error}")
