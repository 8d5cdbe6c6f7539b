#!/usr/bin/env bash
# Runs the tests; arguments are passed to pytest, with paths relative to the repository root:
#   bash scripts/test.sh tests/ops -k chunk
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
cd "$root"
# Each core has one worker with one thread. All tests of a file run on one worker, which builds its fixtures once.
export OMP_NUM_THREADS=1
# On some virtual machines, the newest bfloat16 instructions that oneDNN detects are illegal.
export ONEDNN_MAX_CPU_ISA=${ONEDNN_MAX_CPU_ISA:-AVX512_CORE}
exec python -m pytest -n auto --dist loadfile --durations=15 "$@"
