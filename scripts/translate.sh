#!/usr/bin/env bash
# Translates raw text with one sentence per line by a trained model; --help lists the options:
#   bash scripts/translate.sh results/transformer/multi30k/linear_iclr_type4/seed-1/checkpoints/checkpoint_best.pt < text.en
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec python -m fairseq_lrpe generate "$@"
