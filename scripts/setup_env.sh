#!/usr/bin/env bash
# Prepares the Python environment that the other scripts run in: the active virtual environment if there
# is one, else .venv in the repository. This part finds a Python, scripts/setup_env.py does the work;
# --help shows its options.
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv=${VIRTUAL_ENV:-$root/.venv}
show='import sys; print("%d.%d.%d" % sys.version_info[:3])'
unset PYTHONHOME # another installation's library would break the environment's own

run_with() {
  local python=$1
  shift
  exec "$python" -I "$root/scripts/setup_env.py" "$@"
}

die() {
  printf '\nsetup failed: %s\n' "$*" >&2
  exit 1
}

# The environment's own Python, if it works; one that lost its pyvenv.cfg would write to the system.
if version=$("$venv/bin/python" -I -c "$show; sys.exit(sys.prefix == sys.base_prefix)" 2>/dev/null); then
  case $version in
    3.11.* | 3.12.*) run_with "$venv/bin/python" "$@" ;;
    *) die "Python 3.11 or 3.12 is needed, and $venv has Python $version; deactivate or remove it" \
      "(a .venv is made anew) and run this again." ;;
  esac
fi

# Every match on PATH is tried: a version manager's shim may come first and fail.
python="" others=""
for name in python3.12 python3.11 python3 python; do
  while read -r path; do
    version=$("$path" -c "$show" 2>/dev/null </dev/null) || continue
    case $version in
      3.12.*) python=$path && break 2 ;;
      3.11.*) python=${python:-$path} ;;
      *) others+="${others:+, }Python $version ($path)" ;;
    esac
  done < <(type -aP "$name")
done
[ -n "$python" ] ||
  die "Python 3.11 or 3.12 is needed, but PATH has ${others:+only }${others:-no Python}; install one of the" \
    "two, or activate a virtual environment that has it, and run this again (fairseq needs numpy below 2," \
    "and numpy 1.26 has no wheel for Python 3.13)."
run_with "$python" "$@"
