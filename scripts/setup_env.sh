#!/usr/bin/env bash
# Prepares the Python environment that scripts/test.sh and scripts/quickstart.sh run in: the active
# virtual environment if there is one, else .venv in the repository. Safe to run again at any time:
# it returns at once when nothing changed, and goes on where an interrupted run stopped.
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
constraints=$root/constraints.txt
venv=${VIRTUAL_ENV:-$root/.venv}
py=$venv/bin/python
log=$venv/setup.log
stamp=$venv/.fairseq-lrpe-ready
step=1

unset PYTHONHOME       # another installation's library would break the environment's own
export PIP_USER=0      # a user-wide "user = true" in pip's settings fails inside an environment

say() { printf '%s\n' "$*" >&2; }
announce() { say "[$step/5] $*"; }

die() {
  say ""
  say "setup failed in step $step of 5: $*"
  exit 1
}

# The root and the prefix count too: the same environment may be used from another clone, whose
# package it would then have to point to.
fingerprint() {
  "$py" -I - "$root" <<'PY'
import hashlib, pathlib, sys

root = sys.argv[1]
parts = [sys.version.encode(), sys.prefix.encode(), root.encode()]
parts += [pathlib.Path(root, name).read_bytes() for name in ("constraints.txt", "setup.py")]
print(hashlib.sha256(b"\0".join(parts)).hexdigest())
PY
}

is_ready() {
  local now
  [ -s "$stamp" ] && now=$(fingerprint 2>/dev/null) && [ "$(cat "$stamp")" = "$now" ]
}

# True when the pinned version of package $1 is installed.
have() {
  "$py" -I - "$1" "$constraints" <<'PY'
import importlib.metadata, re, sys

name, path = sys.argv[1:]
pin = re.search(rf"^{re.escape(name)}==(\S+)", open(path).read(), re.M)[1]
try:
    installed = importlib.metadata.version(name).split("+")[0]
except importlib.metadata.PackageNotFoundError:
    installed = None
sys.exit(installed != pin)
PY
}

# Sets $base to a Python 3.11. Every match on PATH is tried: a version manager's shim may come
# first and fail.
find_python() {
  local name path version found=""
  for name in python3.11 python3 python; do
    while read -r path; do
      version=$("$path" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) ||
        continue
      case $version in
        3.11.*) base=$path; return ;;
      esac
      found+="${found:+, }Python $version ($path)"
    done < <(type -aP "$name")
  done
  die "Python 3.11 is needed, but PATH has ${found:+only }${found:-no Python};" \
    "install Python 3.11, or activate a virtual environment that has it, and run this again."
}

# Prints the version of the environment's Python; fails if there is no working one, or if it is
# not inside an environment (pyvenv.cfg lost), where pip would write to the system.
venv_version() {
  "$py" -I -c 'import sys
print("%d.%d.%d" % sys.version_info[:3])
sys.exit(sys.prefix == sys.base_prefix)' 2>/dev/null
}

make_venv() {
  find_python
  "$base" -c 'import venv, ensurepip' 2>/dev/null ||
    die "$base cannot make virtual environments, its venv or ensurepip module is missing;" \
      "install it (on Debian and Ubuntu: apt install python3.11-venv) and run this again."
  "$base" -m venv --clear "$venv" >&2 ||
    die "$base -m venv could not make $venv (its message is above)."
}

check_disk() { # DIR GIB
  local free=""
  { read -r _ && read -r _ _ _ free _; } < <(df -Pk "$1" 2>/dev/null) || true
  [[ $free =~ ^[0-9]+$ ]] || return 0
  [ "$free" -ge $(($2 * 1024 * 1024)) ] ||
    die "only $((free / 1024)) MiB are free on the disk of $1, and about $2 GiB are needed;" \
      "free some space and run this again."
}

check_compiler() {
  local cc include
  { read -r cc && read -r include; } < <("$py" -c 'import sysconfig
print((sysconfig.get_config_var("CC") or "cc").split()[0])
print(sysconfig.get_paths()["include"])')
  for cc in "${CXX:-c++}" "${CC:-$cc}"; do
    command -v "${cc%% *}" >/dev/null ||
      die "no C++ compiler: fairseq has to be built and the command '${cc%% *}' is not there;" \
        "install one (on Debian and Ubuntu: apt install g++; on Fedora: dnf install gcc-c++)," \
        "or set CC and CXX to yours, and run this again."
  done
  [ -f "$include/Python.h" ] ||
    die "Python's header files are missing (no $include/Python.h), fairseq cannot be built;" \
      "install them (on Debian and Ubuntu: apt install python3.11-dev) and run this again."
}

# What went wrong, told from the lines that this step added to the log.
explain() { # FIRST_LINE
  local first=$1
  # Not grep -q: closing the pipe early would count as a failure under pipefail.
  says() { tail -n "+$first" "$log" | grep -iE -- "$1" >/dev/null; }
  if says 'No space left on device|Disk quota exceeded'; then
    echo "the disk is full; free some space (about 4 GiB in all with the CPU build of torch, far" \
      "more with the CUDA build) and run this again."
  elif says 'Python\.h: No such file'; then
    echo "Python's header files are missing; install them (on Debian and Ubuntu:" \
      "apt install python3.11-dev) and run this again."
  elif says 'Killed signal|MemoryError|virtual memory exhausted'; then
    echo "there was not enough memory; close other programs and run this again."
  elif says 'Permission denied|Read-only file system'; then
    echo "a file could not be written; check who owns $venv and $root."
  elif says 'connection broken by|Max retries exceeded|timed out|name resolution'; then
    echo "the package index could not be reached; check the network, or pip's proxy and index" \
      "settings ('pip config list' shows them), and run this again."
  elif says 'No matching distribution found|ResolutionImpossible'; then
    echo "the package index does not offer a version that constraints.txt asks for, or two of" \
      "them conflict; check the index that pip uses ('pip config list' shows it)."
  elif says 'command .*(g\+\+|gcc|cc|c\+\+|clang).* failed|error: subprocess-exited-with-error'; then
    echo "a package could not be built; the compiler's message is in the log."
  else
    echo "pip did not finish; its message is in the log."
  fi
}

show_log() {
  say "The last lines of $log:"
  tail -n 15 "$log" | cut -c 1-200 | sed 's/^/    /' >&2
}

pip_install() {
  local first
  first=$(($(wc -l <"$log") + 1))
  # CUDA_HOME: fairseq would build CUDA extensions too, which nothing here uses.
  if ! env -u CUDA_HOME "$py" -m pip install --no-input --progress-bar off \
    --disable-pip-version-check -c "$constraints" "$@" </dev/null >>"$log" 2>&1; then
    say ""
    say "setup failed in step $step of 5: $(explain "$first")"
    show_log
    exit 1
  fi
}

if is_ready; then
  say "environment ready: $venv"
  exit 0
fi

trap 'say ""; say "interrupted; run the same command again to go on from here."; exit 130' INT TERM

# --- 1: the environment, and whether this machine can fill it --------------------------------

if [ -n "${VIRTUAL_ENV:-}" ]; then
  announce "using the active virtual environment $venv ..."
else
  announce "preparing the virtual environment $venv ..."
  mkdir -p "$venv" 2>/dev/null || true
fi
if [ -z "${VIRTUAL_ENV:-}" ] || [ -d "$venv" ]; then
  [ -w "$venv" ] ||
    die "cannot create or write $venv; make it writable, or activate a virtual environment that is."
fi

# Two runs at once, or one whose parent was killed, would write over each other.
if [ -d "$venv" ] && command -v flock >/dev/null; then
  exec 9<"$venv"
  if ! flock -n 9; then
    say "      waiting for another setup of this environment to finish ..."
    flock 9
    if is_ready; then
      say "environment ready: $venv"
      exit 0
    fi
  fi
fi

if ! version=$(venv_version); then
  [ -z "${VIRTUAL_ENV:-}" ] ||
    die "VIRTUAL_ENV is $venv, which has no working Python; deactivate it and run this again."
  check_disk "$root" 4
  [ -z "$(ls -A "$venv")" ] || say "      it has no working Python, making it anew ..."
  make_venv
  version=$(venv_version) || die "the new environment $venv has no working Python."
fi
case $version in
  3.11.*) ;;
  *) die "Python 3.11 is needed, and $venv has Python $version; deactivate or remove it" \
    "(a .venv is made anew) and run this again." ;;
esac
has_pip() { "$py" -m pip --version >/dev/null 2>&1; }
has_pip || "$py" -m ensurepip >/dev/null 2>&1 || true
has_pip || die "$venv has no working pip; remove or deactivate it and run this again."
[ -w "$root" ] || die "cannot write to $root, where pip has to leave the package's metadata."

# From here until the stamp is written again, the environment does not count as ready.
if [ -e "$log" ] && [ ! -e "$stamp" ]; then
  # The last run was cut short. pip writes RECORD last, and takes a package without it for
  # installed; without its dist-info it installs the package again.
  "$py" -I - <<'PY'
import pathlib, shutil, sysconfig

for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
    for info in pathlib.Path(place).glob("*.dist-info"):
        if not (info / "RECORD").exists():
            shutil.rmtree(info)
PY
fi
rm -f "$stamp"
: >"$log"

if have torch; then torch=yes; else torch=no; fi
if have fairseq-fixed; then fairseq=yes; else fairseq=no; fi
if [ "$torch" = yes ]; then check_disk "$venv" 1; else check_disk "$venv" 4; fi
check_disk "${TMPDIR:-/tmp}" 1
[ "$fairseq" = yes ] || check_compiler

# --- 2 to 4: install ----------------------------------------------------------------------------

step=2
if [ "$torch" = yes ]; then
  announce "torch is installed; checking the build tools ..."
else
  announce "installing torch and the build tools (the largest download) ..."
fi
pip_install torch numpy cython setuptools wheel

step=3
if [ "$fairseq" = yes ]; then
  announce "fairseq is built; checking what it requires ..."
else
  announce "building fairseq (C++ extensions, about 3 minutes) ..."
fi
# Without isolation, so that it is compiled against the torch and numpy installed above.
pip_install --no-build-isolation fairseq-fixed

step=4
announce "installing fairseq-lrpe and the test tools ..."
cd "$root"
pip_install --no-build-isolation -e '.[test]'

# --- 5: does it work? ---------------------------------------------------------------------------

step=5
announce "checking that torch and fairseq import ..."
if ! "$py" -I -c 'import torch, fairseq.tasks, fairseq.data.data_utils_fast' >>"$log" 2>&1; then
  say ""
  say "setup failed in step 5 of 5: the installed packages do not import; remove $venv" \
    "and run this again."
  show_log
  exit 1
fi

fingerprint >"$stamp.new"
mv "$stamp.new" "$stamp"
say "environment ready: $venv (the log of this setup is setup.log in it)"
