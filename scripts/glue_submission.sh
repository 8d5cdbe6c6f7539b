#!/usr/bin/env bash
# Writes the zip file for the GLUE server from one model's fine-tuned runs; --help lists the options:
#   bash scripts/glue_submission.sh results/glue/wikibook/linear_rope
#   bash scripts/glue_submission.sh results/classifier/{sst2,qnli,qqp,mnli}/softmax_gcdf
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec python -m fairseq_lrpe glue-submission "$@"
