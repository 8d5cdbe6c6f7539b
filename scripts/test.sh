#!/usr/bin/env bash
# Runs the tests; arguments are passed to pytest, with paths relative to the repository root:
#   bash scripts/test.sh tests/ops -k chunk
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
cd "$root"
# One thread in each worker: there are as many workers as cores. A file stays on one worker, so
# that its fixtures are made once.
export OMP_NUM_THREADS=1
# On some virtual machines the newest instructions for bfloat16 that oneDNN finds are illegal ones.
export ONEDNN_MAX_CPU_ISA=${ONEDNN_MAX_CPU_ISA:-AVX512_CORE}
exec python -m pytest -n auto --dist loadfile --durations=15 "$@"
