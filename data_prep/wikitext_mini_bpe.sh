#!/usr/bin/env bash
# The small corpus out of WikiText-103 in GPT-2's byte pairs -> data/wikitext_mini_bpe/bin, for fairseq's masked_lm; --help lists the options.
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec python -m data_prep.wikitext_bpe wikitext_mini_bpe "$@"
