"""scripts/setup_env.sh and setup_env.py, without a network and without an installation."""

import os
import shutil
import subprocess
import sys

import pytest
from tiny import REPOSITORY

BASE = os.path.realpath(sys.executable)
MINOR = "{}.{}".format(*sys.version_info)
V100 = "7.0, 580.65.06, Tesla V100-SXM2-16GB"
T4 = "7.5, 580.65.06, Tesla T4"
H100 = "9.0, 580.65.06, NVIDIA H100 80GB HBM3"
A100_OLD_DRIVER = "8.0, 550.54.15, NVIDIA A100-PCIE-40GB"
RTX5090 = "12.0, 580.65.06, NVIDIA GeForce RTX 5090"
K80 = "3.7, 470.42.01, Tesla K80"
FAKE_PIP = """
import os, signal, sys
with open(os.environ["CALLS"], "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
if os.environ.get("INTERRUPT"):
    os.kill(os.getppid(), signal.SIGKILL)
    sys.exit(1)
for words in filter(None, os.environ.get("FAIL", "").split(",")):
    if words in " ".join(sys.argv):
        sys.exit("ERROR: No matching distribution found")
"""


class Machine:
    """A copy of the files that setup reads, and a PATH with few programs."""

    def __init__(self, folder):
        self.root, self.bin, self.calls = folder / "clone", folder / "bin", folder / "calls"
        self.bin.mkdir()
        shutil.copytree(REPOSITORY / "scripts", self.root / "scripts")
        for name in ("constraints.txt", "setup.py"):
            shutil.copy(REPOSITORY / name, self.root)
        for name in ("dirname", "flock", "sh", "timeout"):
            (self.bin / name).symlink_to(shutil.which(name))
        (self.bin / "python3").symlink_to(BASE)

    def command(self, name, text):
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.bin / name).chmod(0o755)

    def python(self, name, version):
        """Adds a Python that prints its arguments."""
        status = 0 if version in ("3.11", "3.12") else 1
        self.command(name, f'case "$1" in -c) exit {status} ;; *) echo "{name} runs $*" ;; esac')

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
        """Creates an environment with this version of torch and a pip that only records its arguments."""
        folder = self.root / name
        subprocess.run([BASE, "-I", "-m", "venv", "--without-pip", folder], check=True)
        site = folder / "lib" / f"python{MINOR}" / "site-packages"
        if torch:
            distribution(site, "torch", torch, RECORD="")
        distribution(site, "pip", "99", RECORD="")
        (site / "pip").mkdir()
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


def test_the_builds_are_of_the_pinned_torch():
    constraints = (REPOSITORY / "constraints.txt").read_text()
    assert "\ntorch==2.13.0\n" in constraints, "update the table of builds in setup_env.py"


CHOICES = [  # --torch, rows of nvidia-smi, version
    ("", [], "2.13.0+cpu (2.13.0 if no index offers it)"),
    ("", ["No devices were found"], "2.13.0+cpu (2.13.0 if no index offers it)"),
    ("", [V100], "2.13.0+cu126"),
    ("", [H100, V100, H100], "2.13.0+cu126"),
    ("", [T4], "2.13.0"),
    ("", [H100, RTX5090], "2.13.0"),
    ("", [A100_OLD_DRIVER], "2.13.0+cu126"),
    ("cpu", [H100], "2.13.0+cpu"),
    ("cpu", [K80], "2.13.0+cpu"),
    ("cu126", [H100], "2.13.0+cu126"),
    ("cu126", [V100, RTX5090], "2.13.0+cu126"),
    ("default", [], "2.13.0"),
    ("default", ["broken"], "2.13.0"),
]
OLD = "torch 2.13.0 does not support Tesla V100-SXM2-16GB (compute capability 7.0, driver 580)"
REJECTED = [  # --torch, rows of nvidia-smi, part of the message
    ("default", [V100], OLD),
    ("cu126", [RTX5090], "NVIDIA GeForce RTX 5090 (compute capability 12.0, driver 580)"),
    ("", [RTX5090, V100], f"{OLD}, torch 2.13.0+cu126 does not support NVIDIA GeForce RTX 5090"),
    ("", [K80], "torch 2.13.0+cu126 does not support Tesla K80 (compute capability 3.7, driver 470)"),
    ("", ["broken"], "nvidia-smi failed (broken): repair the driver or pass --torch"),
    ("", ["[N/A], 390.1, Tesla K20"], "nvidia-smi failed ([N/A], 390.1, Tesla K20)"),
]


def dry_run(machine, requested, **environ):
    """Runs with --dry-run and checks that nothing was written."""
    before = sorted(machine.root.rglob("*"))
    done = machine.run("--dry-run", *(["--torch", requested] if requested else []), **environ)
    assert sorted(machine.root.rglob("*")) == before
    return done


@pytest.mark.parametrize(("requested", "rows", "version"), CHOICES)
def test_dry_run_prints_the_build(machine, requested, rows, version):
    machine.gpus(*rows)
    done = dry_run(machine, requested)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"torch {version} for ")
    assert (OLD in done.stdout) == (V100 in rows)


@pytest.mark.parametrize(("requested", "rows", "message"), REJECTED)
def test_unsupported_gpus_are_rejected(machine, requested, rows, message):
    machine.gpus(*rows)
    done = dry_run(machine, requested)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("setup failed: ") and message in done.stderr


def test_a_failing_nvidia_smi_is_reported(machine):
    machine.command("nvidia-smi", f"echo '{H100}'\necho 'no driver' >&2\nexit 9")
    assert "no driver): repair the driver or pass --torch" in dry_run(machine, "").stderr
    machine.command("nvidia-smi", "exit 9")
    assert "nvidia-smi failed" in dry_run(machine, "").stderr
    assert dry_run(machine, "cpu").returncode == 0


PYTHONS = [  # version of each name on PATH, and the expected one
    ({"python3.12": "3.12", "python3.11": "3.11"}, "python3.12"),
    ({"python3.12": "a failing shim", "python3.11": "3.11"}, "python3.11"),
    ({"python3": "3.13", "python": "3.11"}, "python"),
    ({"python3.13": "3.13", "python3": "3.13", "python": "2.7"}, None),
    ({}, None),
]


@pytest.mark.parametrize(("names", "expected"), PYTHONS)
def test_a_supported_python_is_found(machine, names, expected):
    (machine.bin / "python3").unlink()
    for name, version in names.items():
        machine.python(name, version)
    done = machine.run("--dry-run")
    if expected:
        assert done.stdout.startswith(f"{expected} runs -Iu {machine.root}/scripts/setup_env.py --dry-run")
    else:
        assert done.returncode == 1
        assert done.stderr.startswith("setup failed: there is no Python 3.11 or 3.12 on PATH")


def test_a_second_match_on_path_is_tried(machine, tmp_path):
    machine.python("python3.12", "3.12")
    shims = tmp_path / "shims"
    shims.mkdir()
    machine.command("failing", "exit 127")
    (machine.bin / "failing").rename(shims / "python3.12")
    done = machine.run("--dry-run", PATH=f"{shims}:{machine.bin}")
    assert done.stdout.startswith("python3.12 runs -Iu ")


def test_environment_of_another_python_is_rejected(machine):
    (machine.root / ".venv" / "bin").mkdir(parents=True)
    machine.python("python", "3.13")
    (machine.bin / "python").rename(machine.root / ".venv" / "bin" / "python")
    assert (
        f"{machine.root}/.venv is not a virtual environment of this Python: deactivate or remove"
        in machine.run().stderr
    )
    assert (
        f"{machine.root}/own is not a virtual environment"
        in machine.run(VIRTUAL_ENV=f"{machine.root}/own").stderr
    )


def test_environment_without_settings_is_rejected(machine):
    machine.environment("")
    (machine.root / ".venv" / "pyvenv.cfg").unlink()
    assert machine.run().returncode == 1 and not machine.calls.exists()


INSTALLED = [  # installed torch, --torch, rows of nvidia-smi, version in .venv; a user's is not replaced
    ("2.13.0", "", [], "2.13.0"),
    ("2.13.0+cu126", "", [V100], "2.13.0+cu126"),
    ("2.13.0+rocm6.4", "", [], "2.13.0+rocm6.4"),
    ("2.13.0+cpu", "", [V100], "2.13.0+cu126"),
    ("2.13.0", "", [V100], "2.13.0+cu126"),
    ("2.12.1+cpu", "", [], "2.13.0+cpu"),
    ("2.13.0+cpu", "default", [], "2.13.0"),
]


@pytest.mark.parametrize(("current", "requested", "rows", "version"), INSTALLED)
def test_a_matching_torch_is_kept_and_a_users_is_not_replaced(machine, current, requested, rows, version):
    machine.gpus(*rows)
    machine.environment(current)
    assert dry_run(machine, requested).stdout.startswith(f"torch {version} ")
    own = str((machine.root / ".venv").rename(machine.root / "own"))
    done = machine.run(*(["--torch", requested] if requested else []), VIRTUAL_ENV=own)
    is_rejected = f"{own} has torch {current} instead of {version}: deactivate it" in done.stderr
    assert is_rejected == (done.returncode != 0) == (current != version)
    assert machine.calls.exists() != is_rejected


def test_setup_runs_once(machine):
    site = machine.environment("2.13.0+cpu")
    ready = f"environment ready: {machine.root / '.venv'}\n"
    done = machine.run(CUDA_HOME="/cuda")
    assert done.returncode == 0 and done.stdout.endswith(ready), done.stderr
    calls = [call.split("constraints.txt ")[1] for call in machine.calls.read_text().splitlines()]
    assert calls == ["torch numpy cython setuptools wheel", "--quiet --no-build-isolation -e .[train,test]"]

    for arguments in ([], ["--torch", "cpu"], ["--dry-run"]):
        assert machine.run(*arguments).stdout == ready
    assert len(machine.calls.read_text().splitlines()) == 2
    assert dry_run(machine, "cu126").stdout.startswith("torch 2.13.0+cu126 for CPU")

    (site / "torch-2.13.0+cpu.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.12.0\n")
    assert machine.run().stdout != ready, "another torch was installed"
    (machine.root / "constraints.txt").open("a").write("# changed")
    assert "numpy" in machine.run().stdout or machine.calls.read_text().count("numpy") == 3


def test_an_interrupted_setup_continues(machine):
    site = machine.environment("2.13.0+cpu")
    assert machine.run().returncode == 0
    (machine.root / "constraints.txt").open("a").write("# changed")
    assert machine.run(INTERRUPT="1").returncode == -9
    partial = distribution(site, "numpy", "1.26.4")
    assert not (machine.root / ".venv" / ".fairseq-lrpe-ready").exists()
    assert "environment ready" in machine.run().stdout
    assert not partial.exists()


def test_a_failure_of_pip_fails_setup(machine):
    machine.environment("2.13.0+cpu")
    done = machine.run(FAIL="numpy")
    assert done.returncode == 1 and "environment ready" not in done.stdout
    assert "ERROR: No matching distribution found\nsetup failed: Command '[" in done.stderr
    assert not (machine.root / ".venv" / ".fairseq-lrpe-ready").exists()


CPU, CU126, INDEX = (
    "torch===2.13.0+cpu",
    "torch===2.13.0+cu126",
    "--extra-index-url https://download.pytorch.org/whl",
)
DOWNLOADS = [  # --torch, rows of nvidia-smi, what no index offers, the last attempt to install torch
    ("", [], "", CPU),
    ("", [], "--dry-run", "torch===2.13.0"),
    ("cpu", [], "+cpu", "torch===2.13.0"),
    ("cpu", [H100], "+cpu", f"{CPU} {INDEX}/cpu"),
    ("cu126", [], "+cu126", f"{CU126} {INDEX}/cu126"),
    ("", [V100], "+cu126", f"{CU126} {INDEX}/cu126"),
]


@pytest.mark.parametrize(("requested", "rows", "missing", "last"), DOWNLOADS)
def test_only_without_a_gpu_the_default_build_replaces_the_cpu_build(machine, requested, rows, missing, last):
    machine.gpus(*rows)
    machine.environment("")
    arguments = ["--torch", requested] if requested else []
    done = machine.run(*arguments, FAIL=missing)
    calls = [call for call in machine.calls.read_text().splitlines() if "torch===" in call]
    assert calls[-1].endswith(f"--no-deps {last}") and "--dry-run" not in calls[-1]
    fell_back = last == "torch===2.13.0"
    line = "installing 2.13.0, which also runs on CPUs (2.6 GiB to download, 8 GiB on disk)"
    assert (line in done.stdout) == fell_back
    assert done.returncode == (0 if fell_back or not missing else 1)


def test_after_the_fallback_the_environment_is_ready(machine):
    site = machine.environment("")
    assert machine.run("--torch", "cpu", FAIL="+cpu").returncode == 0
    distribution(site, "torch", "2.13.0", RECORD="")
    count = len(machine.calls.read_text().splitlines())
    for arguments in ([], ["--torch", "cpu"], ["--torch", "default"], ["--dry-run"]):
        assert machine.run(*arguments, FAIL="+cpu").stdout.startswith("environment ready")
    assert len(machine.calls.read_text().splitlines()) == count


def test_disk_space_is_checked_for_the_fallback(machine):
    machine.environment("")
    code = "import shutil, types; shutil.disk_usage = lambda folder: types.SimpleNamespace(free=5 << 30)\n"
    script = machine.root / "scripts" / "setup_env.py"
    script.write_text(code + script.read_text())
    assert machine.run().returncode == 0
    (machine.root / ".venv" / ".fairseq-lrpe-ready").unlink()
    done = machine.run(FAIL="+cpu")
    assert f"torch 2.13.0 requires 8 GiB of free space in {machine.root}" in done.stderr


@pytest.mark.parametrize("script", ["train", "table", "quickstart", "translate", "finetune_glue", "test"])
def test_help_before_the_first_setup_installs_nothing(machine, script):
    path = machine.root / "scripts" / f"{script}.sh"
    words = [shutil.which("bash"), path, "x", "--help"]
    done = subprocess.run(words, env={"PATH": str(machine.bin)}, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr and not (machine.root / ".venv").exists()
    shown = done.stdout.splitlines()
    assert f"# {shown[0]}" == path.read_text().splitlines()[1]
    assert shown[-1] == "Run 'bash scripts/setup_env.sh' first to list the options."
