#!/usr/bin/env bash
# Trains and evaluates one method in one experiment; --help lists the options:
#   bash scripts/train.sh lm/wikitext103 tmlr_type1 --seeds 1 --gpus 8
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec python -m fairseq_lrpe train "$@"
