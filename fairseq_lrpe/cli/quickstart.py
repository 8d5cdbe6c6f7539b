"""Train four small language models with linear attention and compare their perplexities and speeds.

The text is the English documentation in Python's standard library, unless --data is given. With the default
text and updates, the last line says whether the runs reproduce the recorded results in docs/results. For
example:

  lrpe quickstart --data my_text --updates 200
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from fairseq_lrpe.cli import table
from fairseq_lrpe.cli.results import RECORDED
from fairseq_lrpe.experiments.spec.table import Table
from fairseq_lrpe.utils.cli import abs_path, exit_on_error, min_int, new_parser, resumable
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
    with exit_on_error("quickstart"), resumable():
        code = subprocess.run(list(map(str, command)), cwd=REPOSITORY).returncode
    if code:
        sys.exit(code)
    jobs = min(4, len(os.sched_getaffinity(0)))  # the table quickstart has four runs
    words = ["quickstart", "--results", out, "--jobs", jobs, "--cpu", "--plot", out / "quickstart.png"]
    words += [f"data={out / 'text' / 'bin'}", *([f"updates={args.updates}"] if args.updates else [])]
    table.main(list(map(str, words)))
    print(f"finished in {time.time() - start:.0f} s")
    if not args.data and not args.updates and RECORDED.is_dir():
        with exit_on_error("quickstart"):
            print_check(out)


def print_check(results: Path) -> None:
    """Prints whether the quickstart's runs reproduce the recorded ones."""
    from fairseq_lrpe.experiments.reporting import recording  # imports pandas, which takes long

    runs = [run.folder(results) for run in Table("quickstart").runs()]
    print(*recording.check(results, RECORDED, runs)[0], sep="\n")
