#!/usr/bin/env bash
# Runs what needs a GPU: tests, benchmarks, and tables that one GPU can train.
# Logs are written to results/gpu_check, or to the folder that is given:
#   bash scripts/gpu_check.sh [FOLDER]
# A failed step does not stop the others. The same command skips finished steps, and resumes trainings.
set -uo pipefail
if [[ $# -gt 1 || ${1:-} == -* ]]; then # there are no options, and --help must not start the checks
  echo "usage: bash scripts/gpu_check.sh [FOLDER]"
  echo "Runs what needs a GPU and writes logs to FOLDER (default: results/gpu_check in the repository)."
  [[ $1 == -h || $1 == --help ]]
  exit
fi
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
out=${1:-$root/results/gpu_check}
[[ $out == /* ]] || out=$PWD/$out # before cd: a relative FOLDER is in the caller's folder
cd "$root" || exit
mkdir -p "$out"
failed=()
trap 'exit 130' INT # bash would continue with the next step, because Python handles the signal itself

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
step tests python -m pytest -m gpu -q -n 8 tests/test_gpu.py # each process compiles kernels
for dtype in float32 float16 bfloat16; do
  step "attention-$dtype" lrpe bench linear-attention --dtype "$dtype" --plot "$out/$dtype.png"
done

lm=(linear_lm_base linear_lm_rope linear_lm_tmlr_type1 softmax_lm_base softmax_lm_rope transformer_lm)
# The six models stay in memory, about 12 GB in all: 8.5 GB for 6 models x 70 million parameters (50,265 types) x 20 bytes
# (weights and gradients in half and in full precision, Adam's averages), 2.5 GB for 4,096 tokens x 50,265 logits x
# 12 bytes (logits and their gradients, both in half and in full precision), and about 1 GB for other activations.
for length in 512 4096; do
  sizes=(--rounds 20 --length "$length" --batch-size $((4096 / length)))
  step "train-fp16-$length" lrpe bench train "${lm[@]}" "${sizes[@]}" -- --fp16
done
step train-bf16 lrpe bench train "${lm[@]:0:5}" --rounds 20 --length 512 --batch-size 8 -- --bf16
step generate lrpe bench generate "${lm[@]}" --length 512 --rounds 3

results=$out/results
step roper lrpe table roper --jobs 4 --results "$results" "seeds=[1]"
step iclr_table2 lrpe table iclr_table2 --scale small --results "$results"
step tmlr_table5 lrpe table tmlr_table5 --scale small --results "$results"

if [ "${#failed[@]}" -gt 0 ]; then
  echo "failed: ${failed[*]}; run the same command again" >&2
  exit 1
fi
