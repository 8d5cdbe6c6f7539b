#!/usr/bin/env bash
# Sets up the Python environment for the other scripts: the active virtual environment, or .venv in the
# repository. Finds Python 3.11 or 3.12 and runs scripts/setup_env.py with it; --help lists the options.
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
supported='import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))'
unset PYTHONHOME CUDA_HOME && export PIP_USER=0 # break environments, or compile unused CUDA code
exec 9<"$root" # Python and pip inherit this lock
flock -n 9 || { echo "waiting for another setup to finish ..." && flock 9; } || true
# The first match on PATH may be a version manager's shim that fails.
while read -r python; do
  if "$python" -c "$supported" 2>/dev/null </dev/null; then
    exec "$python" -Iu "$root/scripts/setup_env.py" "$@" </dev/null
  fi
done < <(echo "${VIRTUAL_ENV:-$root/.venv}/bin/python" && type -aP python3.12 python3.11 python3 python)
echo "setup failed: there is no Python 3.11 or 3.12 on PATH; install it and try again" >&2
exit 1
