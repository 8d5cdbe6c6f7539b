"""Imports: setup.py declares exactly the packages in use, and dependencies between ours point one way."""

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
    "pydantic_core": "pydantic",
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
    """Returns the third-party packages that are imported."""
    modules = {name.split(".")[0] for path in files(*folders) for name in imports(path)}
    return {PACKAGES.get(module, module) for module in modules - OURS - sys.stdlib_module_names}


def package_of(name):
    """Returns the subpackage of a file or an import, or data_prep; None for third-party packages."""
    first, *rest = name.removesuffix(".py").replace("/", ".").split(".")
    return rest[0] if first == "fairseq_lrpe" and rest else "data_prep" if first == "data_prep" else None


def package_imports():
    """Returns {package: {file: the packages that it imports}}."""
    found = defaultdict(dict)
    for path in files("fairseq_lrpe", "data_prep"):
        file = str(path.relative_to(REPOSITORY))
        own = package_of(file)
        found[own][file] = {package_of(name) for name in imports(path)} - {None, own}
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
    assert packages("fairseq_lrpe", "data_prep") == (lists["install"] - {"tensorboardX"}) | extras
    assert packages("tests") - lists["install"] - lists["gpu"] == lists["test"] - COMMANDS


def test_one_version_of_each_is_pinned():
    pins = re.findall(r"^([\w-]+)==\S+$", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
    assert len(pins) == len(set(pins))
    lists = declared()
    extras = lists["test"] | lists["gpu"] | lists["bert"] | lists["tensorboard"] | lists["wandb"]
    assert lists["install"] | extras <= set(pins)


@pytest.mark.parametrize(
    ("package", "allowed"), [("ops", set()), ("encodings", {"ops", "utils"}), ("positions", {"ops"})]
)
def test_formulas_import_torch_only(package, allowed):
    foreign = packages(PLUGIN / package)
    assert foreign - ({"fla-core"} if package == "ops" else set()) == {"torch"}
    for file, used in package_imports()[package].items():
        assert used <= allowed, file
    shared = {
        name
        for path in files(PLUGIN / package)
        for name in imports(path)
        if name.startswith("fairseq_lrpe.utils.")
    }
    assert shared <= {"fairseq_lrpe.utils.suggest.choices"}


def test_experiments_and_data_preparation_run_commands():
    """They import neither models nor each other; only experiments/inference loads models."""
    for file, used in package_imports()["experiments"].items():
        allowed = {"models"} if file.startswith("fairseq_lrpe/experiments/inference/") else set()
        assert not used & {"models", "attention", "benchmarks", "cli", "data_prep"} - allowed, file
    for file, used in package_imports()["data_prep"].items():
        assert not used & {"models", "attention", "benchmarks", "cli", "experiments"}, file


def test_only_commands_and_the_public_functions_import_experiments():
    importing = {
        file
        for package, imported in package_imports().items()
        for file, used in imported.items()
        if package not in ("experiments", "cli") and "experiments" in used
    }
    assert importing == {"fairseq_lrpe/__init__.py"}


def test_packages_have_no_cycles():
    """But for the package itself, whose public functions import what they need when they are called."""
    arrows = {
        package: set().union(*imported.values())
        for package, imported in package_imports().items()
        if not {"fairseq_lrpe/__init__.py", "fairseq_lrpe/__main__.py"} & set(imported)
    }
    list(TopologicalSorter(arrows).static_order())
