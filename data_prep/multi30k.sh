#!/usr/bin/env bash
# Multi30k, a small corpus of English and German sentences, -> data/multi30k/bin, for fairseq's translation; --help lists the options.
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec python -m data_prep.translation multi30k "$@"
