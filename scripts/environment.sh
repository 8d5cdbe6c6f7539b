# Sourced by the other scripts: sets up if need be, and puts this repository on the path of Python.
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup_env.sh"
export VIRTUAL_ENV=${VIRTUAL_ENV:-$root/.venv}
export PATH=$VIRTUAL_ENV/bin:$PATH
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
