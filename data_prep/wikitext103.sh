#!/usr/bin/env bash
# WikiText-103 at word level -> data/wikitext103/bin, for fairseq; --help lists the options.
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec python -m data_prep.wikitext103 "$@"
