"""Export a trained language model as a folder that Hugging Face's Transformers reads.

The folder has the configuration, the weights, the tokenizer of the corpus, and a file with which
trust_remote_code=True loads the model. It must not exist. For example:

  lrpe export results/lm/mini/linear_rope/seed-1 linear-rope
"""

from fairseq_lrpe.utils.cli import abs_path, exit_on_error, new_parser


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe export", __doc__, "RUN FOLDER")
    parser.add_argument("run", type=abs_path, metavar="RUN", help="run folder, or checkpoint file")
    parser.add_argument("folder", type=abs_path, metavar="FOLDER", help="folder to create")
    args = parser.parse_args(arguments)
    with exit_on_error("export"):
        from fairseq_lrpe.experiments.inference.export import export

        export(args.run, args.folder)
    print(f"written: {args.folder}")
