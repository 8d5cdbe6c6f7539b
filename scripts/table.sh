#!/usr/bin/env bash
# Runs the experiments of a table and shows them next to the paper's numbers; without arguments, lists the tables:
#   bash scripts/table.sh tmlr_table2 --scale mini --jobs 2
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec python -m fairseq_lrpe table "$@"
