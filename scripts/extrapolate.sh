#!/usr/bin/env bash
# Evaluates a trained run at several sequence lengths; --help lists the options:
#   bash scripts/extrapolate.sh results/lm/mini/linear_rope/seed-1 256 512 1024 --plot rope.png
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec python -m fairseq_lrpe evaluate "$@"
