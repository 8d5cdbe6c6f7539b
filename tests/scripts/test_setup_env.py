"""scripts/setup_env.sh and setup_env.py, without a network and without an installation."""

import os
import shutil
import subprocess
import sys

import pytest
from support.tiny import REPOSITORY

pytestmark = pytest.mark.slow
PYTHON = os.path.realpath(sys.executable)
SITE = ".venv/lib/python{}.{}/site-packages".format(*sys.version_info)
FAKE_PIP = """
import os, sys
with open(os.environ["CALLS"], "a") as file:
    file.write(" ".join(sys.argv[4:]) + "\\n")
sys.exit(os.environ.get("FAIL", "nothing") in " ".join(sys.argv))
"""


@pytest.fixture
def setup_env(tmp_path):
    """Returns ``setup_env(*arguments, **environ)``, which runs a copy of the scripts."""
    (tmp_path / "bin").mkdir()
    shutil.copytree(REPOSITORY / "scripts", tmp_path / "scripts")
    for name in ("constraints.txt", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, tmp_path)
    for name in ("dirname", "flock", "sh", "timeout"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    (tmp_path / "bin/python3").symlink_to(PYTHON)

    def run(*arguments, script="setup_env", **environ):
        return subprocess.run(
            [shutil.which("bash"), tmp_path / f"scripts/{script}.sh", *arguments],
            env={"PATH": str(tmp_path / "bin"), "CALLS": str(tmp_path / "calls"), **environ},
            capture_output=True,
            text=True,
        )

    return run


def write_program(path, text):
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def write_environment(root, torch):
    """Creates .venv with this version of torch and a pip that only records its arguments."""
    subprocess.run([PYTHON, "-I", "-m", "venv", "--without-pip", root / ".venv"], check=True)
    for name, version in (("torch", torch), ("pip", "99")):
        folder = root / SITE / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (folder / "RECORD").touch()
    (root / SITE / "pip").mkdir()
    (root / SITE / "pip/__main__.py").write_text(FAKE_PIP)


@pytest.mark.parametrize("rows, expected", [
    (["7.0, 580.65.06, Tesla V100"], "torch 2.13.0+cu126 in "),
    (["9.0, 580.65.06, NVIDIA H100", "12.0, 580.65.06, NVIDIA GeForce RTX 5090"], "torch 2.13.0 in "),
    (["8.0, 550.54.15, NVIDIA A100"], "torch 2.13.0+cu126 in "),
    (["3.7, 470.42.01, Tesla K80"], "setup failed: no build of torch 2.13.0 supports [(3.7, 470"),
    (["broken"], "setup failed: nvidia-smi failed (broken): repair the driver or pass --torch"),
])  # fmt: skip
def test_build_by_gpus(rows, expected, setup_env, tmp_path):
    write_program(tmp_path / "bin/nvidia-smi", "\n".join(f"echo '{row}'" for row in rows))
    done = setup_env("--dry-run")
    assert (done.stdout + done.stderr).startswith(expected) and not (tmp_path / ".venv").exists()


def test_a_supported_python_is_found(setup_env, tmp_path):
    write_program(tmp_path / "bin/python3", '[ "$1" != -c ]')
    assert "there is no Python 3.11, 3.12 or 3.13 on PATH" in setup_env().stderr
    write_program(tmp_path / "bin/python", 'case "$1" in -c) ;; *) echo "runs $*" ;; esac')
    assert setup_env("--dry-run").stdout.startswith(f"runs -Iu {tmp_path}/scripts/setup_env.py --dry-run")


def test_setup_runs_once_and_continues_after_a_failure(setup_env, tmp_path):
    write_environment(tmp_path, "2.13.0+cpu")
    assert setup_env(FAIL="numpy").returncode == 1
    ready = f"environment ready: {tmp_path}/.venv\n"
    assert setup_env().stdout.endswith(ready)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[1:] == [
        "torch numpy cython setuptools wheel",
        "--quiet --no-build-isolation --no-cache-dir --no-deps fairseq-fixed",
        "--quiet --no-build-isolation -e .[train,test]",
    ]
    assert setup_env().stdout == ready and (tmp_path / "calls").read_text().splitlines() == calls


@pytest.mark.parametrize("head", ["#!{}/bin/python", '#!/bin/sh\n\'\'\'exec\' "{}/bin/python" "$0" "$@"'])
def test_a_moved_environment_is_built_again(head, setup_env, tmp_path):
    write_environment(tmp_path, "2.13.0+cpu")
    program, unused = tmp_path / ".venv/bin/fairseq-train", tmp_path / SITE / "unused"
    unused.touch()
    program.write_text(head.format(tmp_path / ".venv") + "\n")
    assert setup_env().returncode == 0 and "environment ready" in setup_env().stdout and unused.exists()
    (tmp_path / "link").symlink_to(tmp_path)  # another path of the same folder
    program.write_text(head.format(tmp_path / "link/.venv") + "\n")
    assert setup_env().stdout == f"environment ready: {tmp_path}/.venv\n"

    program.write_text(head.format(f"/old{tmp_path}/.venv") + "\n")
    reason = f"{tmp_path}/.venv is built again: it was moved or copied, and its programs start Python in /old"
    assert setup_env("--dry-run").stdout.startswith(f"{reason}{tmp_path}/.venv/bin\n") and unused.exists()
    (tmp_path / "calls").unlink()
    for name, text in (("pip", FAKE_PIP), ("ensurepip", "")):  # for the new environment
        (tmp_path / "fakes" / name).mkdir(parents=True)
        (tmp_path / "fakes" / name / "__init__.py").touch()  # takes precedence over the real one
        (tmp_path / "fakes" / name / "__main__.py").write_text(text)
    done = setup_env(PYTHONPATH=str(tmp_path / "fakes"))
    assert done.stdout.startswith(reason) and done.stdout.endswith(f"environment ready: {tmp_path}/.venv\n")
    assert not program.exists() and not unused.exists()
    assert "--no-deps torch===2.13.0+cpu" in (tmp_path / "calls").read_text().splitlines()


def test_a_users_moved_environment_is_not_removed(setup_env, tmp_path):
    write_environment(tmp_path, "2.13.0+cpu")
    own = (tmp_path / ".venv").rename(tmp_path / "own")
    (own / "bin/fairseq-train").write_text("#!/old/bin/python\n")
    assert setup_env(VIRTUAL_ENV=str(own)).returncode == 0 and (own / "bin/fairseq-train").exists()


def test_default_build_replaces_a_missing_cpu_build(setup_env, tmp_path):
    write_environment(tmp_path, "2.12.1")
    assert setup_env(FAIL="--dry-run").returncode == 0
    calls = [call for call in (tmp_path / "calls").read_text().splitlines() if "torch===" in call]
    assert calls[-1] == "--no-deps torch===2.13.0"


def test_a_users_torch_is_not_replaced(setup_env, tmp_path):
    write_environment(tmp_path, "2.12.1")
    own = str((tmp_path / ".venv").rename(tmp_path / "own"))
    assert f"{own} has torch 2.12.1 instead of 2.13.0+cpu" in setup_env(VIRTUAL_ENV=own).stderr
    assert not (tmp_path / "calls").exists()


def test_help_before_the_first_setup_installs_nothing(setup_env, tmp_path):
    done = setup_env("x", "--help", script="train")
    assert done.returncode == 0 and not done.stderr and not (tmp_path / ".venv").exists()
    assert done.stdout.endswith("Run 'bash scripts/setup_env.sh' first to list the options.\n")
