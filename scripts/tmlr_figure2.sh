#!/usr/bin/env bash
# Every run of TMLR's Figure 2 (configs/tables/tmlr_figure2.yaml), then the table; --help lists the options.
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec python -m fairseq_lrpe.experiments.table tmlr_figure2 "$@"
