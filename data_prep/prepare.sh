#!/usr/bin/env bash
# Makes a corpus for fairseq: bash data_prep/prepare.sh NAME [options]; without a name it lists the corpora.
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec python -m fairseq_lrpe prepare "$@"
