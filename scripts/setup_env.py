"""Prepares the environment that the other scripts run in: the active one, else .venv in the repository.

``bash scripts/setup_env.sh`` finds the Python for this. Run outside the environment, it makes it and goes on
with the environment's own Python. Safe to run again: it returns at once when nothing changed, and goes on
where an interrupted run stopped.
"""

import argparse
import fcntl
import hashlib
import importlib.util
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).absolute().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
ENV = Path(os.environ.get("VIRTUAL_ENV") or ROOT / ".venv")
OWN = os.path.realpath(ENV) == os.path.realpath(ROOT / ".venv")  # else a person's: its torch is not replaced
PYTHON, LOG, STAMP = ENV / "bin/python", ENV / "setup.log", ENV / ".fairseq-lrpe-ready"
MINOR = "{}.{}".format(*sys.version_info)
APT = f"on Debian and Ubuntu: apt install python{MINOR}"


class Build(NamedTuple):
    """A build of torch: the compute capabilities it has code for, its oldest driver, the GiB it takes."""

    oldest: float
    newest: float
    driver: int
    disk: int = 8  # where the environment is
    temporary: int = 4  # where pip downloads to


class GPU(NamedTuple):
    capability: float
    name: str
    driver: int


# These are numbers of torch 2.13.0. Of the first two, the first that serves all GPUs is taken.
GPU_BUILDS = {"default": Build(7.5, math.inf, 580), "cu126": Build(5.0, 9.0, 525)}
BUILDS = {**GPU_BUILDS, "cpu": Build(0, 0, 0, disk=4, temporary=1)}

NO_MATCH = "No matching distribution found"
INDEX = "check the network, and pip's proxy and index settings ('pip config list' shows them)"
EXPLANATIONS = {  # what pip's log says, and what it means; the first that is found counts
    "No space left|Disk quota exceeded": "the disk is full; free 4 GiB, or 8 for a build of torch with CUDA",
    r"Python\.h: No such file": f"Python's header files are missing; install them ({APT}-dev)",
    "Killed signal|MemoryError|virtual memory exhausted": "there is too little memory; close other programs",
    "Permission denied|Read-only file system": f"a file cannot be written; look who owns {ENV} and {ROOT}",
    "connection broken|Max retries|timed out|name resolution": f"the index cannot be reached; {INDEX}",
    f"{NO_MATCH}|ResolutionImpossible": "the index lacks a version that constraints.txt asks for, or two of "
    f"them conflict; {INDEX}",
    "command .* failed|subprocess-exited-with-error": "a package could not be built; the log says why",
    "": "pip did not finish; its message is in the log",
}


class Failed(Exception):
    """One sentence says why setup cannot go on, and what would work; ``log``: its end tells more."""

    def __init__(self, sentence, log=False):
        super().__init__(sentence)
        self.log = log


def need(condition, sentence, log=False):
    if not condition:
        raise Failed(sentence, log)


def say(*lines):
    print(*lines, sep="\n", file=sys.stderr, flush=True)


def look(seconds=30):
    """The different GPUs of this machine, the oldest first; none without nvidia-smi."""
    command, out, err = shutil.which("nvidia-smi"), "", ""
    if not command:
        return []
    query = [command, "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
    try:
        process = subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, err = process.communicate(timeout=seconds)
        if "No devices were found" in out + err:
            return []
        need(process.returncode == 0 and out, f"exit code {process.returncode} and no output")
        rows = [line.rsplit(",", 2) for line in out.strip().split("\n")]
        return sorted({GPU(float(cap), name, int(driver.split(".")[0])) for name, cap, driver in rows})
    except subprocess.TimeoutExpired:
        process.kill()  # without waiting: what hangs in the driver does not end
        problem = f"no answer in {seconds} seconds"
    except (Failed, ValueError, OSError) as error:
        problem = " ".join((out + err).split())[:300] or error
    ways = "repair the driver, or say --torch cpu, default or cu126"
    raise Failed(f"nvidia-smi does not work ({problem}); {ways}")


def obstacle(build, gpu):
    """Why a build does not serve a GPU; None where it does, and of a build that is not in the table."""
    row, has = BUILDS.get(build), f"{gpu.name} has compute capability {gpu.capability}, the {build} build"
    if not row:
        return None
    if build == "cpu":
        return f"the cpu build does not use {gpu.name}"
    if gpu.capability < row.oldest:
        return f"{has} begins at {row.oldest}"
    if gpu.capability > row.newest:
        return f"{has} ends at {row.newest}"
    if gpu.driver < row.driver:
        return f"the {build} build needs driver {row.driver} or newer, this one is {gpu.driver}"
    return None


def obstacles(build, gpus):
    return [phrase for phrase in (obstacle(build, gpu) for gpu in gpus) if phrase]


def allowed(build, gpus):
    """Whether --torch may name a build: it serves some of these GPUs, or there are none, or it needs none."""
    return build == "cpu" or not gpus or len(obstacles(build, gpus)) < len(gpus)


def fitting(gpus):
    """The first build that serves all of these GPUs, or None."""
    return next((build for build in GPU_BUILDS if not obstacles(build, gpus)), None)


def pin(name):
    """The version of a package in constraints.txt."""
    return re.search(rf"^{re.escape(name)}==(\S+)", CONSTRAINTS.read_text(), re.MULTILINE)[1]


def version_of(build):
    """What the metadata of a build says; the default one has no label."""
    return pin("torch") + ("" if build == "default" else f"+{build}")


def build_of(version):
    return version and (version.partition("+")[2] or "default")


def requirement(build):
    """What pip takes for this build alone: ``torch==2.13.0`` would be 2.13.0+cpu as well."""
    exactly = "===" if build == "default" and sys.platform == "linux" else "=="
    return f"torch{exactly}{version_of(build)}"


def choose(named, gpus, have):
    """(build, why): what --torch names, else the torch that is there if it fits, else the first that fits."""
    if sys.platform != "linux":
        need(named != "cu126", "there is no CUDA build of torch for this system; leave out --torch")
        return "default", "there is one build for this system"
    names = " and ".join(gpu.name for gpu in gpus)
    if named:
        problems = ", and ".join(obstacles(named, gpus))
        need(allowed(named, gpus), f"--torch {named} does not fit: {problems}; without --torch one is chosen")
        unseen = "no GPU is seen here" + ("" if named == "cpu" else ", so whether it fits is not known")
        return named, f"as --torch says; {(problems or f'it serves {names}') if gpus else unseen}"
    kept = build_of(have)
    if have and have == version_of(kept) and not obstacles(kept, gpus):
        return kept, "it is installed already"
    if not gpus:
        return "cpu", "no NVIDIA GPU is seen here"
    build = fitting(gpus)
    if not build:
        raise Failed(no_build(gpus))
    served = f"{gpus[0].name} has compute capability {gpus[0].capability}, which the default build serves"
    return build, served if build == "default" else obstacles("default", gpus)[0]


def no_build(gpus):
    """The sentence for GPUs that no one build serves."""
    problems, ways = [], []
    for build in GPU_BUILDS:
        problems.append(obstacles(build, gpus)[0])
        served = [gpu.name for gpu in gpus if not obstacle(build, gpu)]
        ways += [f"--torch {build} to use {' and '.join(served)}"] if served else []
    helps = "CUDA_VISIBLE_DEVICES does not help here, but this does: " if ways else ""
    ways = ", or ".join([*ways, "--torch cpu to use no GPU"])
    return f"no build of torch {pin('torch')} fits: {', and '.join(problems)}; {helps}{ways}"


def check_owner(build, why, have, gpus):
    """Raises where a person's own environment has another torch."""
    if OWN or have in (None, version_of(build)):
        return
    kept, ways = build_of(have), "deactivate it, so that .venv is made, or `pip uninstall torch` in it"
    if kept in BUILDS and have == version_of(kept) and allowed(kept, gpus):
        ways += f", or say --torch {kept}"
    wanted = f"torch {version_of(build)} is wanted ({why})"
    raise Failed(f"the active environment {ENV} has torch {have}, and {wanted}; {ways}")


def installed(name):
    """The version of a package, or None; where RECORD is missing, pip was stopped while it installed it."""
    found = metadata.distributions(name=name)
    return next((x.version for x in found if x.read_text("RECORD") is not None), None)


def fingerprint():
    """A hash of what the environment follows from. Its root is part: another clone may use it as well."""
    parts = [sys.version, sys.prefix, str(ROOT), str(installed("torch"))]
    parts += [(ROOT / name).read_text() for name in ("constraints.txt", "setup.py")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def is_ready(named):
    asked = named in (None, build_of(installed("torch")))
    return asked and STAMP.is_file() and STAMP.read_text() == fingerprint()


def tell_ready(have):
    say(f"environment ready: {ENV}")
    try:
        gpus = look(seconds=5)
    except Failed:  # this environment works as it did before
        return
    missed, better = obstacles(build_of(have), gpus), fitting(gpus)
    if missed and better:
        say(f"torch {have}: {missed[0]}; one that fits: bash scripts/setup_env.sh --torch {better}")


def lock():
    """Waits until no other run works on the environment: both would write its files; returns the lock."""
    folder = os.open(ENV, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("      waiting for another setup of this environment to finish ...")
        fcntl.flock(folder, fcntl.LOCK_EX)
    except OSError:  # some network file systems have no locks
        pass
    os.set_inheritable(folder, True)  # pip keeps it, should this program be killed and pip go on
    return folder


def check_disk(folder, gib):
    if os.path.isdir(folder):
        free = shutil.disk_usage(folder).free
        need(free >= gib << 30, f"{folder} has {free >> 20} MiB free and needs {gib} GiB; free some space")


def check_compiler():
    ways = "install one (Debian and Ubuntu: apt install g++; Fedora: dnf install gcc-c++), or set CC and CXX"
    for name, default in {"CXX": "c++", "CC": sysconfig.get_config_var("CC") or "cc"}.items():
        command = (os.environ.get(name) or default).split()[0]
        need(shutil.which(command), f"no C++ compiler to build fairseq with: there is no {command}; {ways}")
    header = Path(sysconfig.get_path("include"), "Python.h")
    need(header.is_file(), f"fairseq needs Python's header files and there is no {header}; {APT}-dev")


def works():
    """Whether the environment has a Python; without pyvenv.cfg it would be the system's."""
    test = "import sys; sys.exit(sys.prefix == sys.base_prefix)"
    return PYTHON.exists() and subprocess.run([PYTHON, "-I", "-c", test], capture_output=True).returncode == 0


def make_environment(build):
    """Makes .venv if no other run does, and starts this program again inside it."""
    for module in ("venv", "ensurepip"):
        missing = f"{sys.executable} has no module {module} to make environments with; {APT}-venv"
        need(importlib.util.find_spec(module), missing)
    check_disk(ROOT, BUILDS[build].disk)
    with suppress(OSError):
        ENV.mkdir(exist_ok=True)
    need(os.access(ENV, os.W_OK), f"cannot make or write {ENV}; activate an environment that can be written")
    held = lock()
    if not works():
        say(f"making the virtual environment {ENV} with {sys.executable} ...")
        subprocess.run([sys.executable, "-I", "-m", "venv", "--clear", ENV], stdout=sys.stderr)
        need(works(), f"{sys.executable} -m venv could not make {ENV} (its message is above)")
    os.close(held)
    os.execv(PYTHON, [PYTHON, "-I", __file__, *sys.argv[1:]])


def logged(*command, **settings):
    """Runs a command with its output in the log; returns its exit code, and what it said."""
    start = LOG.stat().st_size
    settings.update(stdin=subprocess.DEVNULL, cwd=ROOT, start_new_session=True, close_fds=False)
    with LOG.open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, **settings)
        try:
            process.wait()
        except KeyboardInterrupt:
            for number in (signal.SIGINT, signal.SIGKILL):  # after the first, pip tidies up
                with suppress(ProcessLookupError, subprocess.TimeoutExpired, KeyboardInterrupt):
                    os.killpg(process.pid, number)
                    process.wait(20)
            raise
    return process.returncode, LOG.read_bytes()[start:].decode(errors="replace")


def pip(*arguments):
    """Runs pip install; returns its exit code, and what it said."""
    # With CUDA_HOME fairseq would build CUDA extensions, which nothing here uses. A "user = true" in pip's
    # settings fails inside an environment.
    environ = {**{k: v for k, v in os.environ.items() if k != "CUDA_HOME"}, "PIP_USER": "0"}
    options = ["--no-input", "--progress-bar=off", "--disable-pip-version-check"]
    return logged(PYTHON, "-m", "pip", "install", *options, *arguments, env=environ)


def install(*arguments):
    code, said = pip("-c", CONSTRAINTS, *arguments)
    need(code == 0, explain(said), log=True)


def explain(said):
    """The sentence for what pip said."""
    return next(text for pattern, text in EXPLANATIONS.items() if re.search(pattern, said, re.IGNORECASE))


def install_torch(build):
    """Installs this build from pip's own indexes, else from PyTorch's, which is asked for torch alone."""
    # Without constraints.txt: where an index has another build alone, pip would speak of a conflict.
    wanted, refusal = requirement(build), "pip's indexes do not offer"
    code, said = pip("--no-deps", wanted)
    if code and NO_MATCH in said and build != "default":
        index = f"https://download.pytorch.org/whl/{build}"
        refusal = f"neither pip's indexes nor {index} offer"
        say(f"      pip's indexes do not offer it, trying {index} ...")
        code, said = pip("--no-deps", "--extra-index-url", index, wanted)
    missing = f"{refusal} {wanted} for Python {MINOR} here, or they could not be reached; {INDEX}"
    need(code == 0, missing if NO_MATCH in said else explain(said), log=True)


def setup(build, why, have):
    """Brings the environment to the versions of constraints.txt, with this build of torch."""
    torch, fairseq = have == version_of(build), installed("fairseq-fixed") == pin("fairseq-fixed")
    say(f"[1/5] using the virtual environment {ENV} ...", f"      torch {version_of(build)}: {why}")
    for folder in (ENV, ROOT):  # pip leaves the package's metadata in the root
        need(os.access(folder, os.W_OK), f"cannot write to {folder}; make it writable")
    if not importlib.util.find_spec("pip"):
        code = subprocess.run([PYTHON, "-m", "ensurepip"], capture_output=True).returncode
        need(code == 0, f"{ENV} has no working pip; remove or deactivate it")
    check_disk(ENV, 1 if torch else BUILDS[build].disk)
    check_disk(os.environ.get("TMPDIR") or "/tmp", 1 if torch else BUILDS[build].temporary)
    if not fairseq:
        check_compiler()
    if LOG.exists() and not STAMP.exists():
        # The last run was cut short. pip writes RECORD last, and takes a package without it for installed.
        for info in Path(sysconfig.get_path("purelib")).glob("*.dist-info"):
            if not (info / "RECORD").exists():
                shutil.rmtree(info)
    STAMP.unlink(missing_ok=True)  # not ready until it is written again
    LOG.write_text("")

    if torch:
        say("[2/5] torch is installed; checking the build tools ...")
    else:
        replaced = f" in place of {have}" if have else ""
        say(f"[2/5] installing torch{replaced} and the build tools, the largest download ...")
        install_torch(build)
    install("torch", "numpy", "cython", "setuptools", "wheel")
    say("[3/5] checking fairseq ..." if fairseq else "[3/5] building fairseq (about 3 minutes) ...")
    # Without isolation, so that it is compiled against the torch and numpy installed above.
    install("--no-build-isolation", "fairseq-fixed")
    say("[4/5] installing fairseq-lrpe and the test tools ...")
    install("--no-build-isolation", "-e", ".[test]")
    say("[5/5] checking that torch and fairseq import ...")
    code, _ = logged(PYTHON, "-I", "-c", "import torch, fairseq.tasks, fairseq.data.data_utils_fast")
    need(code == 0, f"the installed packages do not import; remove {ENV}", log=True)

    part = STAMP.with_suffix(".new")
    part.write_text(fingerprint())
    part.replace(STAMP)
    say(f"environment ready: {ENV} (the log of this setup is {LOG.name} in it)")


def show(build, why, have, inside, ready):
    """Prints what a run would do."""
    replaced = f" in place of {have}" if have not in (None, version_of(build)) else ""
    work = f"{requirement(build)}{replaced}, fairseq-fixed=={pin('fairseq-fixed')}, fairseq-lrpe from {ROOT}"
    print(f"torch {version_of(build)}: {why}")
    print(f"Python {MINOR}: {sys.executable}")
    print(f"environment: {ENV}{'' if inside else ' (would be made)'}")
    print(f"would install: {'nothing, it is ready' if ready else f'{work}, and what they require'}")


def run(named, dry_run):
    need(MINOR in ("3.11", "3.12"), f"this is Python {MINOR}; bash scripts/setup_env.sh finds another")
    inside = sys.prefix != sys.base_prefix and os.path.realpath(sys.prefix) == os.path.realpath(ENV)
    need(inside or OWN, f"VIRTUAL_ENV is {ENV}, which has no working Python; deactivate it")
    if inside and not dry_run and not is_ready(named):
        lock()
    have, ready = installed("torch") if inside else None, inside and is_ready(named)
    if ready and not dry_run:
        return tell_ready(have)
    if ready:
        return show(build_of(have), "it is installed", have, inside, ready)
    try:
        gpus = look()
    except Failed:
        if not named:
            raise
        gpus = []
    build, why = choose(named, gpus, have)
    check_owner(build, why, have, gpus)
    if dry_run:
        show(build, why, have, inside, ready)
    elif inside:
        setup(build, why, have)
    else:
        make_environment(build)


def main():
    about = "Prepares the Python environment that the other scripts run in; safe to run again at any time."
    parser = argparse.ArgumentParser(prog="bash scripts/setup_env.sh", description=about)
    build = "the build of torch (without it: the one that fits the GPUs that nvidia-smi shows)"
    parser.add_argument("--torch", choices=["cpu", "default", "cu126"], help=build)
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)  # KeyboardInterrupt
    try:
        run(arguments.torch, arguments.dry_run)
    except Failed as failure:
        say("", f"setup failed: {failure}.")
        if failure.log:
            lines = LOG.read_text(errors="replace").splitlines()[-15:]
            say(f"The last lines of {LOG}:", *(f"    {line[:200]}" for line in lines))
        sys.exit(1)
    except KeyboardInterrupt:
        say("", "interrupted; run the same command again to go on from here.")
        sys.exit(130)


if __name__ == "__main__":
    main()
