"""Train four small language models with linear attention and compare their perplexities and speeds.

The text is Grimms' fairy tales, which the package contains, unless --from is given. With the default
text and updates, the last line says whether the runs reproduce the recorded results in docs/results. For
example:

  lrpe quickstart --from my_text --updates 200
"""

import time

from data_prep import prepare
from fairseq_lrpe.cli import table
from fairseq_lrpe.cli.results import RECORDED
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.execution.launch import results_path
from fairseq_lrpe.utils.cli import abs_path, exit_on_error, min_int, new_parser
from fairseq_lrpe.utils.files import REPOSITORY
from fairseq_lrpe.utils.subprocesses import available_cores


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe quickstart", __doc__, "[options]")
    text = "folder with your own train.txt, valid.txt and test.txt (default: Grimms' fairy tales)"
    parser.add_argument("--from", dest="source", type=abs_path, metavar="FOLDER", help=text)
    text = "number of training updates of each model (default: see configs/lm/quickstart.yaml)"
    parser.add_argument("--updates", type=min_int(1), help=text)
    text = "output folder (default: results/quickstart, or results/quickstart-FOLDER with --from)"
    parser.add_argument("--results", type=results_path, help=text)
    args = parser.parse_args(arguments)
    name = f"quickstart-{args.source.name}" if args.source else "quickstart"
    results = args.results or REPOSITORY / "results" / name
    start = time.time()
    words = ["text", "--out", results / "text"]
    if args.source:
        words += ["--from", args.source]
    prepare.main(list(map(str, words)))
    jobs = min(4, available_cores())  # the table quickstart has four runs
    words = ["quickstart", "--results", results, "--jobs", jobs, "--cpu"]
    words += ["--plot", results / "quickstart.png", f"data={results / 'text' / 'bin'}"]
    if args.updates:
        words.append(f"updates={args.updates}")
    table.main(list(map(str, words)))
    print(f"finished in {time.time() - start:.0f} s")
    if not args.source and not args.updates and RECORDED.is_dir():
        from fairseq_lrpe.experiments.reporting import recording  # imports pandas, which takes long

        with exit_on_error("quickstart"):
            runs = [run.folder(results) for run in Table("quickstart").runs()]
            lines, _ = recording.check(results, RECORDED, runs)
            print(*lines, sep="\n")
