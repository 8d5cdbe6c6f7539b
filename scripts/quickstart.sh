#!/usr/bin/env bash
# Sets up if need be and runs the quickstart experiment; --help lists its options.
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"

absolute() {
  case $1 in
    /*) printf '%s' "$1" ;;
    *) printf '%s' "$PWD/$1" ;;
  esac
}

# The experiment runs in the repository root; a relative --data is meant from here.
previous=""
for arg in "$@"; do
  shift
  if [ "$previous" = --data ]; then
    arg=$(absolute "$arg")
  elif [[ $arg == --data=* ]]; then
    arg=--data=$(absolute "${arg#--data=}")
  fi
  set -- "$@" "$arg"
  previous=$arg
done

cd "$root"
exec python -m fairseq_lrpe.experiments.quickstart "$@"
