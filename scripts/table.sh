#!/usr/bin/env bash
# Runs everything in a table and shows it next to the paper's; without arguments, lists the tables:
#   bash scripts/table.sh tmlr_table2 --scale mini --jobs 2
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec python -m fairseq_lrpe table "$@"
