# Sourced by the other scripts: sets up the environment if necessary and adds the repository to PYTHONPATH.
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# --help before the first setup prints the header of the script instead of installing.
ready=${VIRTUAL_ENV:-$root/.venv}/.fairseq-lrpe-ready
if [[ " $* " == *" --help "* || " $* " == *" -h "* ]] && [ ! -e "$ready" ]; then
  while IFS= read -r line && [[ $line == "#"* ]]; do
    [[ $line == "#!"* ]] || echo "${line#\# }"
  done <"$0"
  echo "It lists its options once 'bash scripts/setup_env.sh' has made the environment."
  exit 0
fi
bash "$root/scripts/setup_env.sh" >&2
export VIRTUAL_ENV=${VIRTUAL_ENV:-$root/.venv}
export PATH=$VIRTUAL_ENV/bin:$PATH
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
