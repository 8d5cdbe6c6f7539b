#!/usr/bin/env bash
# WikiText-103, every word of it, in GPT-2's byte pairs -> data/wikitext103_bpe/bin, for fairseq's masked_lm; --help lists the options.
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec python -m data_prep.wikitext_bpe wikitext103_bpe "$@"
