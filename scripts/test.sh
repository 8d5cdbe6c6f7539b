#!/usr/bin/env bash
# Runs the tests; arguments are passed to pytest, with paths relative to the repository root:
#   bash scripts/test.sh tests/ops -k chunk
# Tests marked slow are left out, unless -m selects them: -m slow runs only those, and -m "" all tests.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
cd "$root"
# Each core has one worker with one thread, which starts with a part of the tests and takes over those of others.
export OMP_NUM_THREADS=1
# On some virtual machines, the newest bfloat16 instructions that oneDNN detects are illegal.
export ONEDNN_MAX_CPU_ISA=${ONEDNN_MAX_CPU_ISA:-AVX512_CORE}
pytest=(python -m pytest -n auto --dist worksteal --durations=15)
if [[ " $* " == *" -m "* ]]; then
  exec "${pytest[@]}" "$@"
fi
status=0
"${pytest[@]}" -m "not slow" "$@" || status=$?
echo "The tests marked slow were left out: bash scripts/test.sh -m slow runs them."
exit "$status"
