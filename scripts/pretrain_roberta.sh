#!/usr/bin/env bash
# Pretrains one method's RoBERTa and evaluates it; --help lists the options:
#   bash scripts/pretrain_roberta.sh roberta/wikibook tmlr_type1 --gpus 8
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec python -m fairseq_lrpe.experiments.train "$@"
