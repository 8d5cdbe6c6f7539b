#!/usr/bin/env bash
# Fine-tunes a pretrained RoBERTa checkpoint on GLUE tasks; --help lists the options:
#   bash scripts/finetune_glue.sh results/roberta/wikibook/linear_rope/seed-1/checkpoints/checkpoint_best.pt RTE CoLA
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec python -m fairseq_lrpe finetune "$@"
