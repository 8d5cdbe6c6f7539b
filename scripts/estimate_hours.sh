#!/usr/bin/env bash
# Writes docs/results/estimated_hours.csv: the hours that one V100 needs for all runs of each table of a paper at the
# published size, as estimated by `bash scripts/table.sh TABLE --estimate`. A table is left out if its vocabulary is not
# known before its data is prepared, and "at least" precedes the hours if this applies to some of its experiments.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
cd "$root"
nothing=$(mktemp -d) # a folder of results without finished runs
trap 'rm -rf "$nothing"' EXIT
{
  echo "table,hours"
  for file in $(grep -l "^paper:" configs/tables/*.yaml); do
    name=$(basename "$file" .yaml)
    echo "estimating $name ..." >&2
    estimate=$(python -m fairseq_lrpe table "$name" --estimate --results "$nothing" 2>/dev/null) || continue
    hours=$(sed -n 's/^Not finished: \(.*\) hours on 1 × v100.*/\1/p' <<<"$estimate")
    grep -q "^Not estimated:" <<<"$estimate" && hours="at least $hours"
    echo "$name,\"$hours\""
  done
} >"$nothing/hours.csv"
mv "$nothing/hours.csv" docs/results/estimated_hours.csv
