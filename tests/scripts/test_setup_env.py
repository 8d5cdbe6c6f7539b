"""scripts/setup_env.sh and setup_env.py, without a network and without an installation."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys

import pytest
from tiny import REPOSITORY

BASE = os.path.realpath(sys.executable)
MINOR = "{}.{}".format(*sys.version_info)
V100 = "Tesla V100-SXM2-16GB, 7.0, 580.65.06"
T4 = "Tesla T4, 7.5, 580.65.06"
H100 = "NVIDIA H100 80GB HBM3, 9.0, 580.65.06"
A100_OLD_DRIVER = "NVIDIA A100-PCIE-40GB, 8.0, 550.54.15"
RTX5090 = "NVIDIA GeForce RTX 5090, 12.0, 580.65.06"
K80 = "Tesla K80, 3.7, 470.42.01"
FAKE_PIP = """
import os, signal, sys, time
with open(os.environ["CALLS"], "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
if os.environ.get("INTERRUPT"):
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(600)
if os.environ.get("FAIL"):
    sys.exit(os.environ["FAIL"])
"""


class Machine:
    """A copy of what setup reads in ``root``, and a PATH with hardly anything on it."""

    def __init__(self, folder):
        self.root, self.bin, self.calls = folder / "clone", folder / "bin", folder / "calls"
        self.bin.mkdir()
        shutil.copytree(REPOSITORY / "scripts", self.root / "scripts")
        for name in ("constraints.txt", "setup.py"):
            shutil.copy(REPOSITORY / name, self.root)
        (self.bin / "dirname").symlink_to(shutil.which("dirname"))
        (self.bin / "python3").symlink_to(BASE)

    def command(self, name, text):
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.bin / name).chmod(0o755)

    def python(self, name, version):
        """A Python that says its version, and what it is asked to run."""
        self.command(name, f'case "$1" in -c) echo {version} ;; *) echo "{name} runs $*" ;; esac')

    def gpus(self, *rows):
        if rows:
            self.command("nvidia-smi", "\n".join(f"echo '{row}'" for row in rows))

    def run(self, *arguments, **environ):
        return subprocess.run(
            [shutil.which("bash"), self.root / "scripts" / "setup_env.sh", *arguments],
            env={"PATH": str(self.bin), "CALLS": str(self.calls), **environ},
            capture_output=True,
            text=True,
        )

    def environment(self, torch, name=".venv"):
        """Makes an environment that seems to have this torch, with a pip that only notes what it is told."""
        folder = self.root / name
        subprocess.run([BASE, "-I", "-m", "venv", "--without-pip", folder], check=True)
        site = folder / "lib" / f"python{MINOR}" / "site-packages"
        fairseq = re.search(r"^fairseq-fixed==(.*)$", (self.root / "constraints.txt").read_text(), re.M)[1]
        for package, version in {"torch": torch, "fairseq_fixed": fairseq}.items():
            distribution(site, package, version, RECORD="")
        for module in ("torch.py", "fairseq/tasks.py", "fairseq/data/data_utils_fast.py", "pip/__init__.py"):
            (site / module).parent.mkdir(parents=True, exist_ok=True)
            (site / module).touch()
        (site / "pip" / "__main__.py").write_text(FAKE_PIP)
        return site


def distribution(site, name, version, **files):
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir()
    files["METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    for file, text in files.items():
        (folder / file).write_text(text)
    return folder


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture(scope="module")
def setup_env():
    """setup_env.py as a module."""
    spec = importlib.util.spec_from_file_location("setup_env", REPOSITORY / "scripts" / "setup_env.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_builds_is_of_the_pinned_torch(setup_env):
    assert setup_env.pin("torch") == "2.13.0", "look up the numbers of BUILDS for this torch"


OLD = "Tesla V100-SXM2-16GB has compute capability 7.0, the default build begins at 7.5"
CHOICES = [  # --torch, nvidia-smi's rows, how the first line begins
    ("", [], "torch 2.13.0+cpu: no NVIDIA GPU is seen here"),
    ("", ["No devices were found"], "torch 2.13.0+cpu: no NVIDIA GPU is seen here"),
    ("", [V100], f"torch 2.13.0+cu126: {OLD}"),
    ("", [H100, V100, H100], f"torch 2.13.0+cu126: {OLD}"),
    ("", [T4], "torch 2.13.0: Tesla T4 has compute capability 7.5, which the default build serves"),
    (
        "",
        [H100, RTX5090],
        "torch 2.13.0: NVIDIA H100 80GB HBM3 has compute capability 9.0, which the default",
    ),
    (
        "",
        [A100_OLD_DRIVER],
        "torch 2.13.0+cu126: the default build needs driver 580 or newer, this one is 550",
    ),
    ("cpu", [H100], "torch 2.13.0+cpu: as --torch says; the cpu build does not use NVIDIA H100 80GB HBM3"),
    ("cpu", [K80], "torch 2.13.0+cpu: as --torch says; the cpu build does not use Tesla K80"),
    ("cu126", [H100], "torch 2.13.0+cu126: as --torch says; it serves NVIDIA H100 80GB HBM3"),
    ("cu126", [V100, RTX5090], "torch 2.13.0+cu126: as --torch says; NVIDIA GeForce RTX 5090 has compute"),
    ("default", [], "torch 2.13.0: as --torch says; no GPU is seen here, so whether it fits is not known"),
    ("default", ["broken"], "torch 2.13.0: as --torch says; no GPU is seen here, so whether it fits is not"),
]
REFUSALS = [  # --torch, nvidia-smi's rows, what the sentence says
    ("default", [V100], f"--torch default does not fit: {OLD}"),
    ("cu126", [RTX5090], "NVIDIA GeForce RTX 5090 has compute capability 12.0, the cu126 build ends at 9.0"),
    ("", [RTX5090, V100], f"{OLD}, and NVIDIA GeForce RTX 5090 has compute capability 12.0, the cu126 build"),
    (
        "",
        [RTX5090, V100],
        "CUDA_VISIBLE_DEVICES does not help here, but this does: --torch default to use NVIDIA",
    ),
    ("", [RTX5090, V100], "or --torch cu126 to use Tesla V100-SXM2-16GB, or --torch cpu to use no GPU."),
    ("", [K80], "the cu126 build begins at 5.0; --torch cpu to use no GPU."),
    ("", ["broken"], "nvidia-smi does not work (broken); repair the driver, or say --torch cpu, default or"),
    ("", [f"{H100}, more"], "nvidia-smi does not work (NVIDIA H100 80GB HBM3, 9.0, 580.65.06, more); repair"),
    ("", ["Tesla K20, [N/A], 390.1"], "nvidia-smi does not work (Tesla K20, [N/A], 390.1); repair"),
]


def dry_run(machine, named, **environ):
    """What a dry run of the build ``named`` says, having written nothing."""
    before = sorted(machine.root.rglob("*"))
    done = machine.run("--dry-run", *(["--torch", named] if named else []), **environ)
    assert sorted(machine.root.rglob("*")) == before
    return done


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is one build")
@pytest.mark.parametrize(("named", "rows", "line"), CHOICES)
def test_dry_run_tells_the_build(machine, named, rows, line):
    machine.gpus(*rows)
    done = dry_run(machine, named)
    assert done.returncode == 0, done.stderr
    first, python, environment, work = done.stdout.splitlines()
    assert first.startswith(line)
    assert python == f"Python {MINOR}: {machine.bin / 'python3'}"
    assert environment == f"environment: {machine.root / '.venv'} (would be made)"
    version = first.split()[1].rstrip(":")
    assert work.startswith(
        f"would install: torch{'==' if '+' in version else '==='}{version}, fairseq-fixed=="
    )


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is one build")
@pytest.mark.parametrize(("named", "rows", "sentence"), REFUSALS)
def test_what_does_not_fit_is_refused_in_one_sentence(machine, named, rows, sentence):
    machine.gpus(*rows)
    done = dry_run(machine, named)
    assert (done.returncode, done.stdout) == (1, "")
    line = done.stderr.strip()
    assert line.startswith("setup failed: ") and sentence in line and "\n" not in line


@pytest.mark.parametrize("says", ["", "echo 'no driver' >&2"])
def test_an_nvidia_smi_that_fails_is_told(machine, says):
    machine.command("nvidia-smi", f"{says}\nexit 9")
    done = dry_run(machine, "")
    assert done.returncode == 1
    assert f"nvidia-smi does not work ({'no driver' if says else 'exit code 9 and no output'})" in done.stderr
    assert dry_run(machine, "cpu").returncode == 0


def test_an_unknown_build_is_refused_with_the_choices(machine):
    done = machine.run("--torch", "cuda")
    assert done.returncode == 2
    assert "choose from" in done.stderr and "cu126" in done.stderr


PYTHONS = [  # what each name on PATH says (None: it fails), and the one that is taken
    ({"python3.12": "3.12.4", "python3.11": "3.11.9"}, "python3.12"),
    ({"python3.12": None, "python3.11": "3.11.9"}, "python3.11"),
    ({"python3.11": "3.11.9", "python3": "3.12.4"}, "python3"),
    ({"python3": "3.13.1", "python": "3.11.9"}, "python"),
    ({"python3.13": "3.13.1", "python3": "3.13.1", "python": "2.7.18"}, None),
    ({}, None),
]


@pytest.mark.parametrize(("names", "taken"), PYTHONS)
def test_the_newest_supported_python_is_taken(machine, names, taken):
    (machine.bin / "python3").unlink()
    for name, version in names.items():
        machine.python(name, version) if version else machine.command(name, "exit 127")
    done = machine.run("--dry-run")
    if taken:
        assert done.stdout.startswith(f"{taken} runs -I {machine.root}/scripts/setup_env.py --dry-run")
        return
    assert done.returncode == 1
    has = f"only Python 3.13.1 ({machine.bin}/python3), Python 2.7.18" if names else "no Python"
    assert f"Python 3.11 or 3.12 is needed, but PATH has {has}" in done.stderr
    assert "numpy 1.26 has no wheel for Python 3.13" in done.stderr


def test_a_second_match_on_path_is_tried(machine, tmp_path):
    machine.python("python3.12", "3.12.4")
    shims = tmp_path / "shims"
    shims.mkdir()
    machine.command("failing", "exit 127")
    (machine.bin / "failing").rename(shims / "python3.12")
    done = machine.run("--dry-run", PATH=f"{shims}:{machine.bin}")
    assert done.stdout.startswith("python3.12 runs -I ")


@pytest.mark.parametrize("version", ["3.10.13", "3.13.0"])
def test_another_python_of_an_environment_is_refused(machine, version):
    (machine.root / ".venv" / "bin").mkdir(parents=True)
    machine.command("python", f"echo {version}")
    (machine.bin / "python").rename(machine.root / ".venv" / "bin" / "python")
    done = machine.run()
    assert done.returncode == 1
    assert (
        f"{machine.root}/.venv has Python {version}; deactivate or remove it (a .venv is made" in done.stderr
    )


def test_an_active_environment_without_python_is_refused(machine):
    done = machine.run(VIRTUAL_ENV=str(machine.root / "own"))
    assert done.returncode == 1
    assert "which has no working Python; deactivate it" in done.stderr


OTHERS = [  # installed torch, --torch, nvidia-smi's rows, the line in .venv, the sentence in a person's own
    ("2.13.0", "", [], "torch 2.13.0: it is installed already", None),
    ("2.13.0+cu126", "", [V100], "torch 2.13.0+cu126: it is installed already", None),
    ("2.13.0+rocm6.4", "", [], "torch 2.13.0+rocm6.4: it is installed already", None),
    ("2.13.0+cpu", "", [V100], "torch 2.13.0+cu126: Tesla V100", "or say --torch cpu."),
    ("2.13.0", "", [V100], "torch 2.13.0+cu126: Tesla V100", "`pip uninstall torch` in it."),
    (
        "2.12.1+cpu",
        "",
        [],
        "torch 2.13.0+cpu: no NVIDIA",
        "has torch 2.12.1+cpu, and torch 2.13.0+cpu is wanted",
    ),
    (
        "2.13.0+cpu",
        "default",
        [],
        "torch 2.13.0: as --torch says",
        "torch 2.13.0 is wanted (as --torch says; no",
    ),
]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is one build")
@pytest.mark.parametrize(("have", "named", "rows", "line", "sentence"), OTHERS)
def test_a_torch_that_fits_is_kept_and_only_ours_is_replaced(machine, have, named, rows, line, sentence):
    machine.gpus(*rows)
    machine.environment(have)
    done = dry_run(machine, named)
    assert done.stdout.startswith(line), done.stderr
    assert (f"in place of {have}" in done.stdout) == bool(sentence)
    own = str((machine.root / ".venv").rename(machine.root / "own"))
    done = dry_run(machine, named, VIRTUAL_ENV=own)
    assert done.returncode == bool(sentence)
    assert sentence is None or f"the active environment {own} has torch {have}" in done.stderr
    assert sentence is None or sentence in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is one build")
def test_setup_is_done_once(machine):
    site = machine.environment("2.13.0+cpu")
    venv = machine.root / ".venv"
    done = machine.run(CUDA_HOME="/cuda")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^\[(\d)/5\]", done.stderr, re.M) == list("12345")
    calls = machine.calls.read_text().splitlines()
    assert all(f" -c {machine.root}/constraints.txt " in call for call in calls)
    assert [call.split("constraints.txt ")[1] for call in calls] == [
        "torch numpy cython setuptools wheel",
        "--no-build-isolation fairseq-fixed",
        "--no-build-isolation -e .[test]",
    ]

    ready = f"environment ready: {venv}\n"
    assert machine.run().stderr == ready
    assert machine.run("--torch", "cpu").stderr == ready
    assert "would install: nothing" in machine.run("--dry-run").stdout
    machine.command("nvidia-smi", "exit 9")
    assert machine.run().stderr == ready
    machine.gpus(V100)
    hint = "torch 2.13.0+cpu: the cpu build does not use Tesla V100-SXM2-16GB; one that fits: bash scripts/"
    assert machine.run().stderr.startswith(f"{ready}{hint}setup_env.sh --torch cu126\n")
    assert len(machine.calls.read_text().splitlines()) == 3
    assert "would install: torch==2.13.0+cu126 in place of" in dry_run(machine, "cu126").stdout

    (site / "torch-2.13.0+cpu.dist-info").rename(site / "torch-2.13.0+cu126.dist-info")
    metadata = site / "torch-2.13.0+cu126.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("+cpu", "+cu126"))
    assert machine.run().stderr.startswith("[1/5]"), "another torch than setup left is looked at again"


def test_an_interrupted_setup_goes_on(machine):
    site = machine.environment("2.13.0+cpu")
    done = machine.run("--torch", "cpu", INTERRUPT="1")
    assert done.returncode == 130
    assert done.stderr.endswith("\ninterrupted; run the same command again to go on from here.\n")
    half = distribution(site, "numpy", "1.26.4")
    assert machine.run("--torch", "cpu").stderr.count("environment ready") == 1
    assert not half.exists()


def test_a_failure_of_pip_is_explained_with_the_end_of_its_log(machine):
    machine.environment("2.13.0+cpu")
    done = machine.run("--torch", "cpu", FAIL="ERROR: [Errno 28] No space left on device")
    assert done.returncode == 1
    assert "setup failed: the disk is full" in done.stderr
    assert done.stderr.endswith("\n    ERROR: [Errno 28] No space left on device\n")


LOGS = {
    "OSError: [Errno 28] No space left on device": "the disk is full",
    "fatal error: Python.h: No such file or directory\nerror: subprocess-exited-with-error": "-dev)",
    "c++: fatal error: Killed signal terminated program cc1plus": "too little memory",
    "[Errno 13] Permission denied: '/x'": "look who owns",
    "Retrying after connection broken by X\nERROR: No matching distribution found": "cannot be reached",
    "ERROR: No matching distribution found for numpy==1.26.4": "lacks a version",
    "error: command '/usr/bin/gcc' failed with exit code 1": "could not be built",
    "AssertionError": "pip did not finish",
}


@pytest.mark.parametrize(("log", "sentence"), LOGS.items())
def test_what_went_wrong_is_told_from_the_log(setup_env, log, sentence):
    assert sentence in setup_env.explain(log)


MISSING = (1, "ERROR: No matching distribution found for torch")
CPU, CU126, INDEX = "torch==2.13.0+cpu", "torch==2.13.0+cu126", "https://download.pytorch.org/whl"
FETCHES = [  # build, what pip answers, what it is told, the sentence if it fails
    ("cpu", [(0, "")], [CPU], None),
    ("cpu", [MISSING, (0, "")], [CPU, f"--extra-index-url {INDEX}/cpu {CPU}"], None),
    (
        "cu126",
        [MISSING, MISSING],
        [CU126, f"--extra-index-url {INDEX}/cu126 {CU126}"],
        "neither pip's indexes",
    ),
    ("cpu", [(1, "No space left")], [CPU], "the disk is full"),
    ("default", [MISSING], ["torch===2.13.0"], "pip's indexes do not offer torch===2.13.0"),
]


@pytest.mark.parametrize(("build", "answers", "calls", "sentence"), FETCHES)
def test_torch_comes_from_pips_indexes_else_from_pytorchs(
    setup_env, monkeypatch, build, answers, calls, sentence
):
    made, answers = [], iter(answers)
    monkeypatch.setattr(setup_env, "pip", lambda *words: made.append(words) or next(answers))
    monkeypatch.setattr(setup_env.sys, "platform", "linux")
    if sentence:
        with pytest.raises(setup_env.Failed, match=re.escape(sentence)):
            setup_env.install_torch(build)
    else:
        setup_env.install_torch(build)
    assert made == [("--no-deps", *call.split()) for call in calls]


def test_elsewhere_than_on_linux_there_is_one_build(setup_env, monkeypatch):
    monkeypatch.setattr(setup_env.sys, "platform", "darwin")
    assert setup_env.choose(None, [], None)[0] == setup_env.choose("cpu", [], None)[0] == "default"
    assert setup_env.requirement("default") == "torch==2.13.0"
    with pytest.raises(setup_env.Failed, match="no CUDA build"):
        setup_env.choose("cu126", [], None)


@pytest.mark.parametrize("script", ["train", "table", "quickstart", "translate", "finetune_glue", "test"])
def test_help_before_the_first_setup_installs_nothing(machine, script):
    path = machine.root / "scripts" / f"{script}.sh"
    words = [shutil.which("bash"), path, "x", "--help"]
    done = subprocess.run(words, env={"PATH": str(machine.bin)}, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr and not (machine.root / ".venv").exists()
    shown = done.stdout.splitlines()
    assert f"# {shown[0]}" == path.read_text().splitlines()[1]
    assert shown[-1] == "It lists its options once 'bash scripts/setup_env.sh' has made the environment."
