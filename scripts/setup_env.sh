#!/usr/bin/env bash
# Sets up the Python environment of the other scripts, which is the active virtual environment or .venv in the
# repository. It runs scripts/setup_env.py with the newest of Python 3.11, 3.12 and 3.13 on PATH, or with that of
# the environment; --help lists the options.
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
supported='import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'
# PYTHONHOME and PIP_USER break virtual environments, and CUDA_HOME makes fairseq compile unused CUDA code.
unset PYTHONHOME CUDA_HOME && export PIP_USER=0
exec 9<"$root" # Python and pip inherit this file descriptor and its lock
flock -n 9 || { echo "waiting for another setup to finish ..." && flock 9; } || true
# The first match on PATH may be a version manager's shim that fails.
while read -r python; do
  if "$python" -c "$supported" 2>/dev/null </dev/null; then
    exec "$python" -Iu "$root/scripts/setup_env.py" "$@" </dev/null
  fi
done < <(echo "${VIRTUAL_ENV:-$root/.venv}/bin/python" && type -aP python3.13 python3.12 python3.11 python3 python)
echo "setup failed: there is no Python 3.11, 3.12 or 3.13 on PATH: install one and try again" >&2
exit 1
