#!/usr/bin/env bash
# Prepares a corpus for fairseq: bash data_prep/prepare.sh NAME [OPTION ...]. Without a name, lists the corpora.
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec python -m fairseq_lrpe prepare "$@"
