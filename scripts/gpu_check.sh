#!/usr/bin/env bash
# Runs the tests, measurements and trainings that require a GPU, in order, until the time is over, and writes a report.
# The same command continues with what is missing. It requires torch and installs nothing:
#   bash scripts/gpu_check.sh --minutes 45 --out results/gpu_check
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

if [ -n "${VIRTUAL_ENV:-}" ]; then
  python=$VIRTUAL_ENV/bin/python
elif [ -x "$root/.venv/bin/python" ]; then
  python=$root/.venv/bin/python
else
  python=$(command -v python3) || python=python3
fi
status=0
"$python" -c 'import sys
from importlib.util import find_spec
sys.exit(2 if sys.version_info < (3, 11) else find_spec("torch") is None)' 2>/dev/null || status=$?
case $status in
  0) wrong="" ;;
  1) wrong="$python has no torch" ;;
  2) wrong="$python is older than 3.11" ;;
  *) wrong="$python does not run" ;;
esac
if [ -n "$wrong" ]; then
  echo "gpu_check: $wrong: activate a virtual environment of Python 3.11 or 3.12 with torch" >&2
  exit 1
fi
export PYTHONWARNINGS=${PYTHONWARNINGS:-ignore}
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
exec "$python" -m fairseq_lrpe bench gpu-check "$@"
