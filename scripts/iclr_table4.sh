#!/usr/bin/env bash
# Every run of ICLR's Table 4 (configs/tables/iclr_table4.yaml), then the table; --help lists the options.
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec python -m fairseq_lrpe.experiments.table iclr_table4 "$@"
