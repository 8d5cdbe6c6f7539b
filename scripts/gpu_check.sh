#!/usr/bin/env bash
# Runs what needs a GPU: tests, benchmarks, and trainings of published size that one GPU can do.
#   bash scripts/gpu_check.sh [--dry-run] [--cpu] [--wheels FOLDER] [FOLDER]
# A call takes at most nine minutes; the same command continues, until it prints "all steps are finished".
# A failed step does not stop the others. Logs are written to results/gpu_check or to FOLDER; what is small
# enough to take away is copied to FOLDER/bring_back.
#   --dry-run        prints the commands
#   --cpu            tries the steps on a CPU: small benchmarks, and trainings of two updates
#   --wheels FOLDER  installs packages from the wheels in a folder, without a network (docs/install.md)
set -uo pipefail
usage() {
  echo "usage: bash scripts/gpu_check.sh [--dry-run] [--cpu] [--wheels FOLDER] [FOLDER]"
  echo "Runs what needs a GPU and writes logs to FOLDER (default: results/gpu_check in the repository)."
  exit "$1"
}
out='' dry='' cpu=''
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) usage 0 ;;
    --dry-run) dry=1 ;;
    --cpu) cpu=1 ;;
    --wheels)
      [ -d "${2:-}" ] || usage 1
      PIP_FIND_LINKS=$(cd "$2" && pwd)
      export PIP_FIND_LINKS PIP_NO_INDEX=1
      shift
      ;;
    -*) usage 1 ;;
    *)
      [ -z "$out" ] || usage 1
      out=$1
      ;;
  esac
  shift
done
if [ -z "$dry" ]; then
  source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
else # installs nothing
  root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
fi
out=${out:-$root/results/gpu_check}
[[ $out == /* ]] || out=$PWD/$out # before cd: a relative FOLDER is in the caller's folder
cd "$root" || exit
results=$out/results
limit=540    # seconds
over=124     # exit status of `timeout`
unfinished=3 # exit status if a step is to be continued
largest=16   # MiB of bring_back
failed=()
trap 'exit 130' INT # bash would continue with the next step, because Python handles the signal itself

step() { # NAME COMMAND...: writes the output of a command to a log, unless the log is complete
  local log=$out/$1.log name=$1 status
  shift
  if [ -n "$dry" ]; then
    echo "$name: $*"
    return
  fi
  if [ -e "$log" ]; then
    echo "$name: finished before, see $log"
    return
  fi
  if [ -e "$log.late" ]; then
    echo "$name: did not finish within nine minutes before, see $log.late"
    failed+=("$name")
    return
  fi
  echo "$name: $*"
  local begin=$SECONDS
  "$@" 2>&1 | tee "$log.part"
  status=${PIPESTATUS[0]}
  if [ "$status" = 0 ]; then
    mv "$log.part" "$log"
  elif [ "$status" != $over ]; then
    failed+=("$name")
  else
    # What cannot be resumed and had most of a call would not finish in the next one either.
    [ -n "${resumes:-}" ] || [ $begin -gt 60 ] || mv "$log.part" "$log.late"
    echo "$name: nine minutes are over; run the same command to continue"
    bring_back
    exit $unfinished
  fi
}

resumed() { # NAME COMMAND...: a step which continues where the last call stopped it
  local resumes=1
  step "$@"
}

within() { # COMMAND...: runs a command until the call's time is over
  local left=$((limit - SECONDS))
  [ $left -gt 0 ] || return $over
  timeout --foreground --kill-after 30 $left "$@"
}

together() { # EXPERIMENT ATTENTION METHOD...: trains methods at the same time; each leaves the GPU idle most of the time
  local experiment=$1 attention=$2 method pid status=0 pids=()
  shift 2
  for method in "$@"; do
    within lrpe train "$experiment" "$method" --attention "$attention" --seeds 1 --results "$results" "${updates[@]}" &
    pids+=($!)
  done
  trap 'kill "${pids[@]}"; wait; exit 130' INT # processes in the background ignore Ctrl-C
  for pid in "${pids[@]}"; do
    wait "$pid" || status=$?
  done
  return $status
}

bring_back() { # copies everything but checkpoints, the smallest files first
  rm -rf "$out/bring_back"
  local size file total=0
  while read -r size file; do
    total=$((total + size + 4096))
    [ $total -le $((largest << 20)) ] || break
    mkdir -p "$out/bring_back/$(dirname "$file")"
    cp "$out/$file" "$out/bring_back/$file"
  done < <(find "$out" -type f -not -path '*/checkpoints/*' -not -name '*.pt' -printf '%s %P\n' | sort -n)
  echo "to take away: $out/bring_back"
}

lm=(linear_lm_base linear_lm_rope linear_lm_tmlr_type1 softmax_lm_base softmax_lm_rope transformer_lm)
methods=(base rope tmlr_type1 tmlr_type2)
if [ -z "$cpu" ]; then
  # The six models stay in memory, about 12 GB in all: 8.5 GB for 6 models x 70 million parameters (50,265 types) x 20
  # bytes (weights and gradients in half and in full precision, Adam's averages), 2.5 GB for 4,096 tokens x 50,265
  # logits x 12 bytes (logits and their gradients, both in half and in full precision), and about 1 GB for other
  # activations.
  rounds=(--rounds 20) lengths=() updates=()
  short=(--length 512 --batch-size 8) long=(--length 4096 --batch-size 1) half=(--fp16)
else
  small=(--cpu --layers 1 --vocab-size 100)
  rounds=(--rounds 1) lengths=(--lengths 64 128 --positions 4 --cpu) updates=(updates=2 --cpu)
  short=("${small[@]}" --length 32) long=("${small[@]}" --length 64) half=()
fi
[ -n "$dry" ] || mkdir -p "$out"

[ -n "$cpu" ] || step machine within nvidia-smi
step tests within python -m pytest -m gpu -q -n 8 tests/test_gpu.py # each process compiles kernels
step launches within lrpe bench launches "${lm[@]}" "${rounds[@]}" "${short[@]}" --json "$out/launches.json" -- "${half[@]}"
for dtype in float32 float16 bfloat16; do
  step "attention-$dtype" within lrpe bench linear-attention "${lengths[@]}" --dtype "$dtype" --plot "$out/$dtype.png"
done
step train-fp16-512 within lrpe bench train "${lm[@]}" "${rounds[@]}" "${short[@]}" -- "${half[@]}"
step train-fp16-4096 within lrpe bench train "${lm[@]}" "${rounds[@]}" "${long[@]}" -- "${half[@]}"
[ -n "$cpu" ] || step train-bf16 within lrpe bench train "${lm[@]:0:5}" "${rounds[@]}" "${short[@]}" -- --bf16
[ -n "$cpu" ] || step train-triton within lrpe bench train "${lm[@]:0:2}" "${rounds[@]}" "${short[@]}" \
  -- "${half[@]}" --linear-backend triton
step train-compiled within lrpe bench train "${lm[@]:0:5}" "${rounds[@]}" "${short[@]}" -- "${half[@]}" --compile layers
step generate within lrpe bench generate "${lm[@]}" "${short[@]}" --rounds 3

for task in text listops image; do
  resumed "lra-$task" together "lra/$task" linear "${methods[@]}"
done
for task in addition index; do
  resumed "roper-$task" together "synthetic_lm/$task" softmax rope roper
done
resumed roper within lrpe table roper --results "$results" "${updates[@]}" "seeds=[1]"
resumed iclr_table2 within lrpe table iclr_table2 --scale small --results "$results" "${updates[@]}"
resumed tmlr_table5 within lrpe table tmlr_table5 --scale small --results "$results" "${updates[@]}"

[ -z "$dry" ] || exit 0
bring_back
if [ "${#failed[@]}" -gt 0 ]; then
  echo "failed: ${failed[*]}; run the same command again" >&2
  exit 1
fi
echo "all steps are finished"
