"""Draw the attention of a trained language model in a text.

Each layer has a picture with a panel for each head, in which a row is a query and a column a key. In linear
attention without a denominator, weights are relative to those without the encoding, and can be negative. For
example:

  lrpe attention results/lm/mini/linear_rope/seed-1 --text "The city is in the north ." --out attention
  lrpe attention results/lm/mini/linear_rope/seed-1 --text "The city is in the north ." --out attention.png
"""

from fairseq_lrpe.utils.cli import abs_path, exit_on_error, new_parser


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe attention", __doc__, "RUN --text TEXT --out OUT [--cpu]")
    parser.add_argument("run", type=abs_path, metavar="RUN", help="run folder, or checkpoint file")
    parser.add_argument("--text", required=True, help="text in the form of the corpus")
    text = (
        "new folder for a picture of each layer, or a .png, .pdf or .svg file for one picture of all layers"
    )
    parser.add_argument("--out", type=abs_path, required=True, metavar="OUT", help=text)
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    args = parser.parse_args(arguments)
    with exit_on_error("attention"):
        from fairseq_lrpe.experiments.inference.attention_pictures import draw

        draw(args.run, args.text, args.out, args.cpu)
    print(f"written: {args.out}")
