"""Train four small language models with linear attention and compare their perplexities and speeds.

The text is the English documentation in Python's standard library, unless --data is given. For example:

  lrpe quickstart --data my_text --updates 200
"""

import os
import subprocess
import sys
import time

from fairseq_lrpe.cli import table
from fairseq_lrpe.utils.cli import abs_path, min_int, new_parser
from fairseq_lrpe.utils.files import REPOSITORY


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe quickstart", __doc__, "[options]")
    parser.add_argument("--data", type=abs_path, help="folder with train.txt, valid.txt and test.txt")
    text = "training updates of each model (default: see configs/lm/quickstart.yaml)"
    parser.add_argument("--updates", type=min_int(1), help=text)
    parser.add_argument("--out", type=abs_path, help="output folder (default: results/quickstart[-DATA])")
    args = parser.parse_args(arguments)
    name, start = f"quickstart-{args.data.name}" if args.data else "quickstart", time.time()
    out = args.out or REPOSITORY / "results" / name
    source = ["--from", args.data] if args.data else []
    command = [sys.executable, "-m", "fairseq_lrpe", "prepare", "text", *source, "--out", out / "text"]
    if code := subprocess.run(list(map(str, command)), cwd=REPOSITORY).returncode:
        sys.exit(code)
    jobs = min(4, len(os.sched_getaffinity(0)))  # the table quickstart has four runs
    words = ["quickstart", "--results", out, "--jobs", jobs, "--gpus", 0, "--plot", out / "quickstart.png"]
    words += [f"data={out / 'text' / 'bin'}", *([f"updates={args.updates}"] if args.updates else [])]
    table.main(list(map(str, words)))
    print(f"finished in {time.time() - start:.0f} s")
