#!/usr/bin/env bash
<<<<<<< HEAD
# Writes the zip file for GLUE's server from the fine-tuned runs of one model; --help lists the options:
=======
# Writes the zip file for GLUE's server from the fine-tuning runs of a model; --help lists the options:
>>>>>>> rd-experiments
#   bash scripts/glue_submission.sh results/glue/wikibook/linear_rope
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec python -m fairseq_lrpe glue-submission "$@"
