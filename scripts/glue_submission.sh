#!/usr/bin/env bash
# Writes the zip file for GLUE's server from the fine-tuned runs of one model; --help lists the options:
#   bash scripts/glue_submission.sh results/glue/wikibook/linear_rope
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec python -m fairseq_lrpe glue-submission "$@"
