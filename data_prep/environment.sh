# Sourced by the scripts beside it: the environment of scripts/setup_env.sh, and this repository in it.
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup_env.sh"
export VIRTUAL_ENV=${VIRTUAL_ENV:-$root/.venv}
export PATH=$VIRTUAL_ENV/bin:$PATH
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
