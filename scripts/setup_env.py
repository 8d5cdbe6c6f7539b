"""Sets up the Python environment of the other scripts."""

import argparse
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).absolute().parents[1]
ENV = Path(os.environ.get("VIRTUAL_ENV") or ROOT / ".venv")
PACKAGES = ENV / f"lib/python3.{sys.version_info.minor}/site-packages"
PYTHON, READY = ENV / "bin/python", ENV / ".fairseq-lrpe-ready"
UNFINISHED = READY.with_suffix(".new")
REQUIREMENTS = "".join((ROOT / name).read_text() for name in ("constraints.txt", "setup.py"))
TORCH = re.search(r"^torch==(.*)", REQUIREMENTS, re.MULTILINE)[1]
CPU, CU126 = f"{TORCH}+cpu", f"{TORCH}+cu126"
# {build: (lowest and highest compute capability, oldest driver, GiB to download, GiB on disk)} of torch
# 2.13.0
BUILDS = {TORCH: (7.5, 99, 580, 2.6, 8), CU126: (5, 9, 525, 3, 8), CPU: (0, 99, 0, 0.2, 4)}


def find_gpus(requested):
    """Returns (compute capability, driver version, name) of each kind of GPU in this machine."""
    if not shutil.which("nvidia-smi"):
        return []
    command = "timeout 30 nvidia-smi --format=csv,noheader --query-gpu=compute_cap,driver_version,name"
    code, output = subprocess.getstatusoutput(command)
    rows = re.findall(r"^(\d+\.\d+), (\d+).*?, (.+)$", output, re.MULTILINE)
    if not requested and "No devices" not in output and (code or not rows):
        raise RuntimeError(f"nvidia-smi failed ({output}): repair the driver or pass --torch")
    return sorted({(float(capability), int(driver), name) for capability, driver, name in rows})


def mismatches(version, gpus):
    """Returns an error message for each GPU that a build of torch does not support."""
    first, last, oldest, *_ = BUILDS.get(version, BUILDS[CPU])
    return [
        f"torch {version} does not support {name} (compute capability {capability}, driver {driver})"
        for capability, driver, name in gpus
        if not first <= capability <= last or driver < oldest
    ]


def choose_version(requested, gpus, current):
    """Returns the build of torch to install, or ``current``, the installed one, if it supports the GPUs."""
    candidates = [requested] if requested else [TORCH, CU126] if gpus else [CPU]
    problems = [text for version in candidates for text in mismatches(version, gpus)]
    if requested and (not gpus or len(problems) < len(gpus)):
        return requested
    is_pinned = current and current.split("+")[0] == TORCH
    if is_pinned and not requested and not (gpus and current == CPU):
        candidates.insert(0, current)
    for version in candidates:
        if not mismatches(version, gpus):
            return version
    raise RuntimeError(f"{', '.join(problems)}: pass --torch with another build of docs/install.md")


def pip(*arguments, check=True):
    command = [PYTHON, "-m", "pip", "install", "-c", "constraints.txt", *arguments]
    return subprocess.run(command, cwd=ROOT, close_fds=False, check=check, capture_output=not check)


def install_torch(version, has_fallback):
    """Installs a build of torch, or as a fallback the default build, and returns the installed version."""
    *_, download, disk = BUILDS[version]
    for folder, needed in {ENV: disk, os.environ.get("TMPDIR", "/tmp"): download + 1}.items():
        if shutil.disk_usage(folder).free < needed * 2**30:
            raise RuntimeError(f"torch {version} requires {needed} GiB of free space in {folder}")
    arguments = ["--no-deps", f"torch==={version}"]
    if version != TORCH and pip("--dry-run", *arguments, check=False).returncode:
        arguments += ["--extra-index-url", f"https://download.pytorch.org/whl/{version.split('+')[1]}"]
        if has_fallback and pip("--dry-run", *arguments, check=False).returncode:
            size = "{3} GiB to download, {4} GiB on disk".format(*BUILDS[TORCH])
            print(f"no index offers torch {version}; installing {TORCH}, which also runs on CPUs ({size})")
            return install_torch(TORCH, has_fallback=False)
    pip(*arguments)
    return version


def setup(version, has_fallback, requested, current):
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", ENV], check=True)
    for folder in PACKAGES.glob("*.dist-info") if UNFINISHED.exists() else []:
        if not (folder / "RECORD").exists():  # pip would treat an incomplete package as installed
            shutil.rmtree(folder)
    READY.unlink(missing_ok=True)
    UNFINISHED.touch()
    if not list(PACKAGES.glob("pip-*.dist-info")):
        subprocess.run([PYTHON, "-m", "ensurepip"], check=True)
    if current != version:
        version = install_torch(version, has_fallback)
    pip("torch", "numpy", "cython", "setuptools", "wheel")
    print("building fairseq (about 3 minutes) and installing the other packages ...")
    pip("--quiet", "--no-build-isolation", "-e", ".[train,test]")
    UNFINISHED.write_text("\n".join([str(requested), version, str(ROOT), REQUIREMENTS]))
    UNFINISHED.replace(READY)
    print(f"environment ready: {ENV}")


def main():
    parser = argparse.ArgumentParser(prog="bash scripts/setup_env.sh", description=__doc__)
    parser.add_argument("--torch", choices=["default", "cu126", "cpu"], help="torch build (default: by GPU)")
    parser.add_argument("--dry-run", action="store_true", help="print what would be installed")
    options = parser.parse_args()
    requested = {"default": TORCH, "cu126": CU126, "cpu": CPU}.get(options.torch)
    found = metadata.distributions(name="torch", path=[str(PACKAGES)])  # RECORD is written last
    current = next((each.version for each in found if each.read_text("RECORD") is not None), None)
    done = READY.read_text().split("\n", 3) if READY.exists() else [None]
    if done[1:] == [current, str(ROOT), REQUIREMENTS] and requested in (None, current, done[0]):
        return print(f"environment ready: {ENV}")
    is_users = ENV.resolve() != (ROOT / ".venv").resolve()
    if (is_users or PYTHON.exists()) and not (PACKAGES.exists() and (ENV / "pyvenv.cfg").exists()):
        raise RuntimeError(f"{ENV} is not a virtual environment of this Python: deactivate or remove it")
    gpus = find_gpus(requested)
    version = choose_version(requested, gpus, current)
    if is_users and current not in (None, version):
        raise RuntimeError(f"{ENV} has torch {current} instead of {version}: deactivate it")
    has_fallback = version == CPU != current and not gpus
    fallback = f" ({TORCH} if no index offers it)" if has_fallback else ""
    names = ", ".join(name for *_, name in gpus) or "CPU"
    moved = f", previously the environment of {done[2]}" if done[2:] and done[2] != str(ROOT) else ""
    print(f"torch {version}{fallback} for {names} in {ENV}{moved}", *mismatches(TORCH, gpus), sep="\n")
    if not options.dry_run:
        setup(version, has_fallback, requested, current)


try:
    main()
except (RuntimeError, OSError, subprocess.CalledProcessError, KeyboardInterrupt) as error:
    sys.exit(f"setup failed: {str(error) or 'interrupted'}")
