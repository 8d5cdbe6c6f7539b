#!/usr/bin/env bash
# Runs what needs a GPU: tests, benchmarks, and tables that one GPU can train.
# Logs are written to results/gpu_check, or to the folder that is given:
#   bash scripts/gpu_check.sh [FOLDER]
# A failed step does not stop the others. The same command skips finished steps, and resumes trainings.
set -uo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
cd "$root"
out=${1:-results/gpu_check}
mkdir -p "$out"
failed=()

step() { # NAME COMMAND...: writes the output of a command to a log, unless the log is complete
  local log=$out/$1.log name=$1
  shift
  if [ -e "$log" ]; then
    echo "$name: finished before, see $log"
    return
  fi
  echo "$name: $*"
  if "$@" 2>&1 | tee "$log.part"; then
    mv "$log.part" "$log"
  else
    failed+=("$name")
  fi
}

step machine nvidia-smi
step tests python -m pytest -m gpu -q tests/test_gpu.py
for dtype in float32 float16 bfloat16; do
  step "attention-$dtype" lrpe bench linear-attention --dtype "$dtype" --plot "$out/$dtype.png"
done

lm=(linear_lm_base linear_lm_rope linear_lm_tmlr_type1 softmax_lm_base softmax_lm_rope transformer_lm)
sizes=(--vocab-size 267744 --rounds 20)
for length in 512 4096; do
  step "train-fp16-$length" lrpe bench train "${lm[@]}" "${sizes[@]}" --length "$length" -- --fp16
done
step train-bf16 lrpe bench train "${lm[@]:0:5}" "${sizes[@]}" -- --bf16
step generate lrpe bench generate "${lm[@]}" --length 1024

results=$out/results
step roper lrpe table roper --results "$results" "seeds=[1]"
step iclr_table2 lrpe table iclr_table2 --scale small --results "$results"
step tmlr_table5 lrpe table tmlr_table5 --scale small --results "$results"

if [ "${#failed[@]}" -gt 0 ]; then
  echo "failed: ${failed[*]}; run the same command again" >&2
  exit 1
fi
