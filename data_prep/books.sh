#!/usr/bin/env bash
# BookCorpus, or a folder of books, in GPT-2's byte pairs -> data/books/bin, for fairseq; --help lists the options.
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec python -m data_prep.books "$@"
