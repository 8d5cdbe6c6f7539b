"""Tests that pyproject.toml declares exactly the imported packages, and that imports have no cycles."""

import ast
import re
import sys
from graphlib import TopologicalSorter

import pytest
import tomllib
from support.tiny import BIN, PLUGIN, REPOSITORY, run_command, succeeded

from fairseq_lrpe.encodings import ENCODINGS

PACKAGES = {  # {module: name of the package that contains it, if it differs}
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
COMMANDS = set("pytest-xdist ruff mypy ipykernel mkdocs mkdocs-material mkdocstrings-python".split())
"""Packages of the extra "test" that are not imported."""
OF_TORCH = {"typing_extensions"}
"""Packages that torch requires and imports."""
OURS = {"fairseq_lrpe", "data_prep", "support", *(path.stem for path in (REPOSITORY / "tests").rglob("*.py"))}


def imports(path):
    """Returns the full names of all imports in a file, such as "fairseq_lrpe.ops.FEATURE_MAPS"."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative imports are not supported"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def files(*folders):
    return [path for folder in folders for path in sorted((REPOSITORY / folder).rglob("*.py"))]


def packages(paths):
    """Returns the third-party packages that files import, without those of torch."""
    modules = {name.split(".")[0] for path in paths for name in imports(path)}
    return {PACKAGES.get(module, module) for module in modules - OURS - OF_TORCH - sys.stdlib_module_names}


def declared():
    """Returns {"install" or the name of an extra: names of the packages that pyproject.toml lists}."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    lists = {"install": project["dependencies"], **project["optional-dependencies"]}
    return {name: {re.match(r"[\w-]+", line)[0] for line in lines} for name, lines in lists.items()}


def test_project_declares_exactly_the_imported_packages():
    lists = declared()
    extras = (
        lists["gpu"] | lists["bookcorpus"] | lists["bert"] | lists["report"] | lists["data"] | lists["hf"]
    )
    needed = lists["install"] | lists["train"]
    assert packages(files("fairseq_lrpe", "data_prep")) == (needed - {"tensorboardX"}) | extras
    used = lists["test"] - COMMANDS - lists["gpu"] - lists["report"]
    assert packages(files("tests")) - needed - lists["gpu"] == used
    assert lists["install"] == {"torch"} and lists["docs"] <= lists["test"]


def test_source_patches_nothing_by_mocks():
    for path in files("fairseq_lrpe", "data_prep"):
        assert not {name for name in imports(path) if name.startswith("unittest")}, path


def test_constraints_are_compiled_from_their_input():
    text = (REPOSITORY / "constraints.in").read_text()
    assert (
        (REPOSITORY / "constraints.txt").read_text().startswith(f"{text}\n# What the packages above require")
    )


def test_every_package_is_pinned_once():
    pins = re.findall(
        r"^([\w-]+)==\S+(?:; .+ < .+)?$", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE
    )
    assert len(pins) == len(set(pins))
    lists = declared()
    names = ("install", "train", "test", "gpu", "bert", "data", "tensorboard", "wandb")
    needed = set().union(*(lists[name] for name in names))
    assert needed - {"triton"} <= set(pins)  # the build of torch determines its version


@pytest.mark.parametrize("package", ["ops", "encodings", "positions", "attention"])
def test_core_imports_torch_only(package):
    paths = [path for path in files(PLUGIN / package) if path.name != "fairseq_adapter.py"]
    assert packages(paths) - ({"fla-core", "triton"} if package == "ops" else set()) == {"torch"}


ADAPTER = "attention.fairseq_adapter"
"""The module of attention that is part of the plugin, not of the core."""
ORDER = (
    "utils data data_prep ops positions encodings attention method_validation methods method_flags "
    "extensions config config_parts"
).split()
ORDER += [ADAPTER, *"config_validation tasks fairseq_ext models hf experiments benchmarks cli".split()]
"""Packages and modules, each of which imports only those before it."""
PARTS = ("definition", "execution", "inference", "estimation", "reporting")
"""The same for subpackages of experiments."""


def package_of(name):
    """Returns the entry of ``ORDER`` to which an imported name belongs, or None if it is not ours."""
    first, *rest = name.split(".")
    if first == "data_prep":
        return first
    if first != "fairseq_lrpe" or not rest:
        return None
    return ADAPTER if ".".join(rest).startswith(ADAPTER) else rest[0]


@pytest.mark.parametrize("package", ORDER)
def test_packages_import_one_way(package):
    folder = REPOSITORY if package == "data_prep" else PLUGIN
    folder /= package.replace(".", "/")
    paths = files(folder) if folder.is_dir() else [folder.with_suffix(".py")]
    modules = [path for path in paths if package_of(module_name(path)) == package]
    assert modules
    imported = {package_of(name) for path in modules for name in imports(path)} - {None}
    assert imported <= set(ORDER[: ORDER.index(package) + 1])


def test_parts_of_experiments_import_one_way():
    folder = PLUGIN / "experiments"
    assert {path.parent.name for path in folder.glob("*/__init__.py")} == set(PARTS)
    for number, part in enumerate(PARTS):
        later = tuple(f"fairseq_lrpe.experiments.{other}." for other in PARTS[number + 1 :])
        for path in files(folder / part):
            assert not [name for name in imports(path) if name.startswith(later)], path


def module_name(path):
    """Returns the full name of a module of ours, such as "fairseq_lrpe.ops" for its __init__.py."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_modules_have_no_import_cycles():
    """Imports in functions and under TYPE_CHECKING count, too."""
    paths = {module_name(path): path for path in files("fairseq_lrpe", "data_prep")}
    graph = {}
    for module, path in paths.items():
        graph[module] = set()
        for name in imports(path):
            # The name of an imported function follows that of its module.
            imported = name if name in paths else name.rpartition(".")[0]
            if imported in paths and imported != module:
                graph[module].add(imported)
    assert sum(map(len, graph.values())) > len(graph)
    # The package itself imports what users import from it.
    del graph["fairseq_lrpe"]
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


WITHOUT_OTHER_PACKAGES = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"{name} is not installed")

sys.meta_path.insert(0, Missing())
"""
CORE = (REPOSITORY / "scripts/check_core.py").read_text()


def run_without(missing, program):
    """Runs a program in which packages cannot be imported."""
    modules = {package: module for module, package in PACKAGES.items()}
    names = sorted(modules.get(name, name) for name in missing)
    return run_command(BIN / "python", "-c", WITHOUT_OTHER_PACKAGES + program, *names)


def test_core_runs_where_only_torch_is_installed():
    missing = packages(files("fairseq_lrpe", "data_prep")) | {"transformers"}
    program = f"{CORE}\nprint(*set(sys.argv[1:]) & set(sys.modules))"
    shown, imported = succeeded(run_without(missing - {"torch"}, program)).stdout.splitlines()
    assert shown.startswith(f"{len(ENCODINGS)} encodings") and not imported


FAIRSEQ = set(
    "fairseq-fixed hydra-core numpy omegaconf pyyaml regex sacrebleu scikit-learn scipy torch tqdm".split()
)
"""fairseq, and packages that it or its requirements require."""


def test_plugin_imports_only_what_fairseq_requires():
    missing = packages(files("fairseq_lrpe", "data_prep")) - FAIRSEQ
    succeeded(run_without(missing, "import fairseq_lrpe.models"))


@pytest.mark.slow
@pytest.mark.parametrize("change, message", [
    ("import torch.serialization; del torch.serialization.add_safe_globals", "install torch 2.4 or newer"),
    ("import sys; sys.modules['fairseq.data.data_utils_fast'] = None", "fairseq was not built for numpy"),
])  # fmt: skip
def test_unsupported_versions(change, message):
    command = "import sys; sys.argv = ['fairseq-train']; import fairseq_lrpe.models"
    starts = {command: "fairseq_lrpe: ", "import fairseq_lrpe.models": "ImportError: fairseq_lrpe: "}
    for program, start in starts.items():
        done = run_command(BIN / "python", "-c", f"{change}; {program}")
        assert done.returncode == 1 and message in done.stderr.splitlines()[-1]
        assert done.stderr.splitlines()[-1].startswith(start)


def test_models_of_transformers_name_their_extra():
    done = run_without({"transformers"}, "import fairseq_lrpe.hf")
    message = (
        "ImportError: fairseq_lrpe.hf needs Transformers (transformers is not installed): run `pip install "
    )
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == message + "'.[hf]'` in the checkout"


def test_commands_name_the_extra_where_only_torch_is_installed():
    # The command table imports it at its start, and generate when it runs.
    for words in (["table"], ["generate", "x"]):
        done = run_without({"omegaconf"}, f"from fairseq_lrpe.cli import main; main({words})")
        message = f"lrpe {words[0]}: omegaconf is not installed: run `pip install '.[train]'` in the checkout"
        assert (done.returncode, done.stderr.strip()) == (1, message)
