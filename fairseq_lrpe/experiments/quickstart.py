"""Trains the language models of the table quickstart side by side and shows them: ``scripts/quickstart.sh``.

Their text is the English prose inside Python, or your own.
"""

import argparse
import os
import subprocess
import sys
import time

from fairseq_lrpe.experiments import schedule
from fairseq_lrpe.files import REPOSITORY
from fairseq_lrpe.programs import absolute, at_least


def main():
    parser = argparse.ArgumentParser(prog="quickstart.sh", description=__doc__)
    parser.add_argument("--data", type=absolute, help="with your own train.txt, valid.txt and test.txt")
    parser.add_argument("--updates", type=at_least(1), help="default: configs/lm/quickstart.yaml's")
    parser.add_argument("--out", type=absolute, help="where all goes (default: results/quickstart[-DATA])")
    args = parser.parse_args()
    name, started = f"quickstart-{args.data.name}" if args.data else "quickstart", time.time()
    out = args.out or REPOSITORY / "results" / name
    given = ["--from", args.data] if args.data else []
    words = [sys.executable, "-m", "data_prep", "text", *given, "--out", out / "text"]
    if failed := subprocess.run(list(map(str, words)), cwd=REPOSITORY).returncode:
        sys.exit(failed)
    jobs = min(4, len(os.sched_getaffinity(0)))  # the table has four runs
    words = ["quickstart", "--results", out, "--jobs", jobs, "--gpus", 0, "--plot", out / "quickstart.png"]
    words += [f"data={out / 'text' / 'bin'}", *([f"updates={args.updates}"] if args.updates else [])]
    schedule.main(list(map(str, words)))
    print(f"{time.time() - started:.0f} s in all")


if __name__ == "__main__":
    main()
