"""Imports: setup.py declares every package that is used and no other; the rooms' arrows point one way."""

import ast
import re
import sys
from collections import defaultdict
from graphlib import TopologicalSorter

import pytest
from tiny import PLUGIN, REPOSITORY

PACKAGES = {  # of modules that are not called like their package
    "fairseq": "fairseq-fixed",
    "fairseq_cli": "fairseq-fixed",
    "fla": "fla-core",
    "PIL": "pillow",
    "rouge_score": "rouge-score",
    "hydra": "hydra-core",
    "sklearn": "scikit-learn",
    "subword_nmt": "subword-nmt",
    "yaml": "pyyaml",
}
COMMANDS = {"pytest-xdist", "ruff"}  # of the extra "test": nothing imports them
OURS = {"fairseq_lrpe", "data_prep", *(path.stem for path in (REPOSITORY / "tests").rglob("*.py"))}


def imports(path):
    """The full names of what a file imports, inside functions too: "fairseq_lrpe.ops.linear_attention"."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative imports are not looked into"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def files(*folders):
    return [path for folder in folders for path in sorted((REPOSITORY / folder).rglob("*.py"))]


def packages(*folders):
    """Other people's packages that are imported."""
    modules = {name.split(".")[0] for path in files(*folders) for name in imports(path)}
    return {PACKAGES.get(module, module) for module in modules - OURS - sys.stdlib_module_names}


def room_of(name):
    """The room of a file, as its path, or of an import; None for other people's packages."""
    first, *rest = name.removesuffix(".py").replace("/", ".").split(".")
    return rest[0] if first == "fairseq_lrpe" and rest else "data_prep" if first == "data_prep" else None


def rooms():
    """{room: {file: the rooms that it imports}}: a folder or a file of the package, and data_prep."""
    found = defaultdict(dict)
    for path in files("fairseq_lrpe", "data_prep"):
        file = str(path.relative_to(REPOSITORY))
        own = room_of(file)
        found[own][file] = {room_of(name) for name in imports(path)} - {None, own}
    return found


def declared():
    """{"install" and each extra: names of packages} of setup.py."""
    [setup] = [
        node
        for node in ast.walk(ast.parse((REPOSITORY / "setup.py").read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setup"
    ]
    given = {keyword.arg: keyword.value for keyword in setup.keywords}
    lists = {"install": ast.literal_eval(given["install_requires"])}
    lists |= ast.literal_eval(given["extras_require"])
    return {name: {re.match(r"[\w-]+", line)[0] for line in lines} for name, lines in lists.items()}


def test_setup_declares_what_is_imported_and_nothing_else():
    lists = declared()
    extras = lists["gpu"] | lists["bookcorpus"] | lists["bert"] | lists["report"]
    assert packages("fairseq_lrpe", "data_prep") == lists["install"] | extras
    assert packages("tests") - lists["install"] - lists["gpu"] == lists["test"] - COMMANDS


def test_one_version_of_each_is_pinned():
    pins = re.findall(r"^([\w-]+)==\S+$", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
    assert len(pins) == len(set(pins))
    lists = declared()
    extras = lists["test"] | lists["gpu"] | lists["bert"] | lists["tensorboard"] | lists["wandb"]
    assert lists["install"] | extras <= set(pins)


@pytest.mark.parametrize(("room", "below"), [("ops", set()), ("encodings", {"ops"}), ("positions", {"ops"})])
def test_what_holds_formulas_needs_torch_alone(room, below):
    foreign = packages(PLUGIN / room)
    assert foreign - ({"fla-core"} if room == "ops" else set()) == {"torch"}
    for file, used in rooms()[room].items():
        assert used <= below, file


def test_experiments_and_preparations_run_commands():
    """They import neither models nor each other; three programs load a checkpoint."""
    loading = tuple(f"experiments/{name}.py" for name in ("predict", "solve", "classify"))
    for file, used in rooms()["experiments"].items():
        allowed = {"models"} if file.endswith(loading) else set()
        assert not used & {"models", "attention", "measure", "data_prep"} - allowed, file
    for file, used in rooms()["data_prep"].items():
        assert not used & {"models", "attention", "measure", "experiments"}, file


def test_nothing_below_imports_experiments():
    """But for the page of everything that was run, which stands with what measures and is made there."""
    importing = {
        file
        for room, imported in rooms().items()
        for file, used in imported.items()
        if room != "experiments" and "experiments" in used
    }
    assert importing == {"fairseq_lrpe/measure/report.py"}


def test_no_arrow_comes_back():
    arrows = {room: set().union(*imported.values()) for room, imported in rooms().items()}
    list(TopologicalSorter(arrows).static_order())
