# Sourced by the other scripts: sets up the environment if necessary and adds this repository to PYTHONPATH.
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# Before the first setup, --help prints only the comment at the top of the script and installs nothing.
ready=${VIRTUAL_ENV:-$root/.venv}/.fairseq-lrpe-ready
if [[ " $* " == *" --help "* || " $* " == *" -h "* ]] && [ ! -s "$ready" ]; then
  while IFS= read -r line && [[ $line == "#"* ]]; do
    [[ $line == "#!"* ]] || echo "${line#\# }"
  done <"$0"
  echo "Run 'bash scripts/setup_env.sh' first to list the options."
  exit 0
fi
bash "$root/scripts/setup_env.sh" >&2
export VIRTUAL_ENV=${VIRTUAL_ENV:-$root/.venv}
export PATH=$VIRTUAL_ENV/bin:$PATH
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
