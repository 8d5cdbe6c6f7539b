#!/usr/bin/env bash
# Wikipedia and BookCorpus in GPT-2's byte pairs -> data/wikibook/bin, bin1 …, for fairseq's masked_lm; --help lists the options.
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec python -m data_prep.wikibook "$@"
