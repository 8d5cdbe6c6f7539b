#!/usr/bin/env bash
# GLUE's tasks in GPT-2's byte pairs -> data/glue/TASK/bin, for fairseq; --help lists the options.
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec python -m data_prep.glue "$@"
