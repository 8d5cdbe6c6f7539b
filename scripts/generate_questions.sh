#!/usr/bin/env bash
# Generates a question for each input line, which is an answer, a tab and a text; --help lists the options:
#   bash scripts/generate_questions.sh results/question_generator/squad/softmax_gcdf/seed-1/checkpoints/checkpoint_best.pt < lines
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec python -m fairseq_lrpe generate "$@"
