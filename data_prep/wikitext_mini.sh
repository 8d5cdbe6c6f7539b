#!/usr/bin/env bash
# A small corpus out of WikiText-103's validation and test sets -> data/wikitext_mini/bin, for fairseq; --help lists the options.
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec python -m data_prep.wikitext_mini "$@"
