#!/usr/bin/env bash
# Sets up if need be, trains the small language models of the table quickstart side by side on the cores there
# are, and shows them: a table and a picture.
set -euo pipefail
usage="usage: quickstart.sh [--data FOLDER] [--updates N] [--out FOLDER]

  --data FOLDER  with train.txt, valid.txt and test.txt of your own (default: the English prose inside Python)
  --updates N    of each training (default: those of configs/lm/quickstart.yaml)
  --out FOLDER   where everything goes (default: results/quickstart, with --data results/quickstart-FOLDER)"
data="" out="" changes=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) echo "$usage"; exit ;;
    --data=* | --updates=* | --out=*) set -- "${1%%=*}" "${1#*=}" "${@:2}"; continue ;;
    --data | --updates | --out)
      [ $# -gt 1 ] || { echo "quickstart: $1 needs a value" >&2; exit 2; }
      case $1 in --data) data=$2 ;; --out) out=$2 ;; *) changes=("updates=$2") ;; esac
      shift 2 ;;
    *) printf 'quickstart: %s is none of its options\n%s\n' "$1" "$usage" >&2; exit 2 ;;
  esac
done
[ -z "$data" ] || data=$(realpath -m -- "$data")
[ -z "$out" ] || out=$(realpath -m -- "$out")
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
out=${out:-$root/results/quickstart${data:+-$(basename -- "$data")}}
SECONDS=0 jobs=$(nproc)
[ "$jobs" -lt 4 ] || jobs=4
python -m fairseq_lrpe.experiments.schedule quickstart --results "$out" --dry-run "${changes[@]}" >/dev/null
python -m data_prep text ${data:+--from "$data"} --out "$out/text"
python -m fairseq_lrpe.experiments.schedule quickstart --results "$out" --jobs "$jobs" --gpus 0 \
  "data=$out/text/bin" "${changes[@]}" --plot "$out/quickstart.png"
echo "$SECONDS s in all"
