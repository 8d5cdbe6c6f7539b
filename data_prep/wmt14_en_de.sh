#!/usr/bin/env bash
# WMT 2014's English and German sentences -> data/wmt14_en_de/bin, for fairseq's translation; --help lists the options.
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec python -m data_prep.translation wmt14_en_de "$@"
