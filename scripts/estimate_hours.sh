#!/usr/bin/env bash
# Writes docs/results/estimated_hours.csv: the hours that one V100 needs for all runs of each table of a paper at the
# published size, as `bash scripts/table.sh TABLE --estimate` prints them. It takes minutes and has no options. Tables are left
# out if their vocabulary is not known before their data is prepared, or if they train no model. "at least" precedes the
# hours if the former applies to some of a table's experiments.
set -euo pipefail
if [ $# -gt 0 ]; then
  sed -n '2,/^set/{/^#/s/# //p}' "$0"
  [ "$1" = --help ] || [ "$1" = -h ] && exit 0 || exit 1
fi
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
cd "$root"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "table,hours" >"$work/hours.csv"
for file in $(grep -l "^paper:" configs/tables/*.yaml); do
  name=$(basename "$file" .yaml)
  echo "estimating $name ..."
  # The folder of results has no finished runs, so that all runs are estimated.
  if ! python -m fairseq_lrpe table "$name" --estimate --results "$work/results" >"$work/out" 2>"$work/error"; then
    grep -qE "not known before the data is prepared|train no model" "$work/error" && continue
    cat "$work/error" >&2
    exit 1
  fi
  hours=$(sed -n 's/^Not finished: \(.*\) hours on 1 × v100.*/\1/p' "$work/out")
  if grep -q "^Not estimated:" "$work/out"; then
    hours="at least $hours"
  fi
  echo "$name,\"$hours\"" >>"$work/hours.csv"
done
mv "$work/hours.csv" docs/results/estimated_hours.csv
