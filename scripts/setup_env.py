"""Sets up the Python environment of the other scripts."""

import argparse
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import tomllib

ROOT = Path(__file__).absolute().parents[1]
ENV = Path(os.environ.get("VIRTUAL_ENV") or ROOT / ".venv")
PACKAGES = ENV / f"lib/python3.{sys.version_info.minor}/site-packages"
PYTHON = ENV / "bin/python"
READY = ENV / ".fairseq-lrpe-ready"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = (ROOT / "constraints.txt").read_text() + str(PROJECT)
TORCH = re.search(r"^torch==(.*)", REQUIREMENTS, re.MULTILINE)[1]
NAMES = {"default": TORCH, "cu126": f"{TORCH}+cu126", "cpu": f"{TORCH}+cpu"}


def choose_version(current):
    """Returns the build of torch for this machine, or ``current``, the installed one, if it is suitable."""
    command = "timeout 30 nvidia-smi --format=csv,noheader --query-gpu=compute_cap,driver_version,name"
    code, output = subprocess.getstatusoutput(command)
    rows = re.findall(r"^(\d+\.\d+), (\d+).*?, (.+)$", output, re.MULTILINE)
    if "No devices" not in output and (code or not rows) and code != 127:  # 127: there is no nvidia-smi
        raise RuntimeError(f"nvidia-smi failed ({output}): repair the driver or pass --torch")
    if not rows:
        return current if current and current.split("+")[0] == TORCH else NAMES["cpu"]
    gpus = sorted({(float(capability), int(driver), name) for capability, driver, name in rows})
    is_new = all(capability >= 7.5 and driver >= 580 for capability, driver, _ in gpus)
    is_old = all(5 <= capability <= 9 and driver >= 525 for capability, driver, _ in gpus)
    if is_new or is_old:
        return NAMES["cu126"] if is_old and (current == NAMES["cu126"] or not is_new) else TORCH
    described = f"{gpus} (compute capability, driver, name)"
    raise RuntimeError(f"no build of torch {TORCH} supports {described}: update the driver or pass --torch")


def pip(*arguments, check=True):
    command = [PYTHON, "-m", "pip", "install", "-c", "constraints.txt", *arguments]
    return subprocess.run(command, cwd=ROOT, close_fds=False, check=check, capture_output=not check)


def install_torch(version):
    """Installs a build of torch, or the default one if no index has the CPU build; returns its version."""
    arguments = ["--no-deps", f"torch==={version}"]
    if version != TORCH and pip("--dry-run", *arguments, check=False).returncode:
        arguments += ["--extra-index-url", f"https://download.pytorch.org/whl/{version.split('+')[1]}"]
        if version == NAMES["cpu"] and pip("--dry-run", *arguments, check=False).returncode:
            print(f"no index offers torch {version}; installing {TORCH}, which also runs on CPUs")
            version = TORCH
            arguments = ["--no-deps", f"torch==={TORCH}"]
    pip(*arguments)
    return version


def stale_folder():
    """Returns the folder of Python in the programs of the environment, or None if it is the environment's.

    pip writes the absolute path into torchrun, fairseq-train and others, which fail after a move.
    """
    for program in (ENV / "bin/torchrun", ENV / "bin/fairseq-train"):
        head = program.read_text().split("\n", 2)[:2] if program.exists() else []
        # A path with spaces is in the second line, after #!/bin/sh.
        interpreter = re.search(
            r'^#!(?:/bin/sh\n.*")?(/[^"\n]*)/python[\d.]*(?:"|$)', "\n".join(head), re.MULTILINE
        )
        if interpreter and not (
            os.path.exists(interpreter[1]) and os.path.samefile(interpreter[1], PYTHON.parent)
        ):
            return interpreter[1]


def installed_torch():
    """Returns the version of torch that is installed completely, or None."""
    for package in metadata.distributions(name="torch", path=[str(PACKAGES)]):
        if package.read_text("RECORD") is not None:  # pip writes it last
            return package.version
    return None


def setup(requested, version, current, rebuild):
    if rebuild or not PYTHON.exists():
        PYTHON.unlink(missing_ok=True)  # an interrupted setup then starts here again
        # In a virtual environment, sys.executable is the link that was just removed.
        subprocess.run([sys._base_executable, "-m", "venv", "--clear", "--without-pip", ENV], check=True)
    for folder in PACKAGES.glob("*.dist-info") if READY.exists() and not READY.read_text() else []:
        if not (folder / "RECORD").exists():  # pip would treat an incomplete package as installed
            shutil.rmtree(folder)
    READY.write_text("")
    if not list(PACKAGES.glob("pip-*.dist-info")):
        subprocess.run([PYTHON, "-m", "ensurepip"], check=True)
    if current != version:
        version = install_torch(version)
    pip("torch", "numpy", "cython", "setuptools", "wheel")
    print("building fairseq (about 3 minutes) and installing the other packages ...")
    # pip would reuse a build of fairseq for another version of numpy from its cache.
    pip("--quiet", "--no-build-isolation", "--no-cache-dir", "--no-deps", "fairseq-fixed")
    pip("--quiet", "--no-build-isolation", "-e", ".[train,test]")
    READY.write_text("\n".join([str(requested), version, str(ROOT), REQUIREMENTS]))
    print(f"environment ready: {ENV}")


def main():
    parser = argparse.ArgumentParser(prog="bash scripts/setup_env.sh", description=__doc__)
    parser.add_argument("--torch", choices=NAMES, help="build of torch (default: that for this machine)")
    parser.add_argument("--dry-run", action="store_true", help="print what would be installed")
    options = parser.parse_args()
    requested = NAMES.get(options.torch)
    current = installed_torch()
    done = READY.read_text().split("\n", 3) if READY.exists() else [None]
    is_users = ENV.resolve() != (ROOT / ".venv").resolve()
    stale = None if is_users else stale_folder()
    if not stale and done[1:] == [current, str(ROOT), REQUIREMENTS] and requested in (None, current, done[0]):
        return print(f"environment ready: {ENV}")
    if (is_users or PYTHON.exists()) and not (PACKAGES.exists() and (ENV / "pyvenv.cfg").exists()):
        raise RuntimeError(f"{ENV} is not a virtual environment of this Python: deactivate or remove it")
    version = requested or choose_version(current)
    if is_users and current not in (None, version):
        raise RuntimeError(f"{ENV} has torch {current} instead of {version}: deactivate this environment")
    if stale:
        print(f"{ENV} is built again: it was moved or copied, and its programs start Python in {stale}")
        current = None
    print(f"torch {version} in {ENV}")
    if not options.dry_run:
        setup(requested, version, current, rebuild=bool(stale))


try:
    main()
except (RuntimeError, OSError, subprocess.CalledProcessError, KeyboardInterrupt) as error:
    sys.exit(f"setup failed: {str(error) or 'interrupted'}")
