"""Translate text or generate questions: print one line of output for each line of standard input.

Translation models read sentences. Question generation models read lines with an answer, a tab, and a text
that contains the answer; long texts are truncated around the answer, with a warning. For example:

  echo "A dog runs." | lrpe generate results/mt/multi30k/linear_base/seed-1/checkpoints/checkpoint_best.pt
"""

from fairseq_lrpe.experiments.inference.generate import GENERATORS
from fairseq_lrpe.fairseq_ext.checkpoint import read_checkpoint
from fairseq_lrpe.utils.cli import abs_path, exit_on_error, min_int, new_parser, read_stdin_lines


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe generate", __doc__, "CHECKPOINT [options] < TEXT")
    parser.add_argument("checkpoint", type=abs_path, help="translation or question generation model")
    parser.add_argument("--beam", type=min_int(1), default=5, help="beam size (default: %(default)s)")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    args = parser.parse_args(arguments)
    with exit_on_error("generate"):
        remedy = "train one with `lrpe train mt/...` or `lrpe train questions/...`"
        settings = read_checkpoint(args.checkpoint, remedy)["cfg"]["task"]
        task = settings.get("_name")
        if task not in GENERATORS:
            expected = f"a model of {' or '.join(GENERATORS)}"
            raise ValueError(f"{args.checkpoint} was trained on the task {task}: expected {expected}")
        flags = {"beam": args.beam, "cpu": args.cpu}
        for line in GENERATORS[task](read_stdin_lines(), args.checkpoint, settings, **flags):
            print(line)
