#!/usr/bin/env bash
# Trains the four small language models of the table "quickstart"; --help lists the options.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec python -m fairseq_lrpe quickstart "$@"
