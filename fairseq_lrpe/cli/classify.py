"""Predict labels with a trained classifier, a fine-tuned model or a vision transformer.

For text, DATA is a folder of binarized data. The predictions for each SPLIT are written to its FILE, with the
index, prediction and target (if known) of one text per line. For a vision transformer, DATA is a folder of
images, and the predicted label and its probability are printed for each image. For example:

  lrpe classify checkpoint_best.pt data/glue/RTE/bin valid=predictions.tsv
"""

from fairseq_lrpe.fairseq_ext.checkpoint import read_checkpoint
from fairseq_lrpe.utils.cli import abs_path, exit_on_error, new_parser


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe classify", __doc__, "CHECKPOINT DATA [SPLIT=FILE ...] [options]")
    parser.add_argument("checkpoint", type=abs_path, help="trained model, such as checkpoint_best.pt")
    text = "folder of binarized text, such as data/glue/RTE/bin, or folder of images"
    parser.add_argument("data", type=abs_path, help=text)
    text = "for text: a split to predict, and the file for its predictions, such as valid=predictions.tsv"
    parser.add_argument("splits", nargs="*", metavar="SPLIT=FILE", help=text)
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    args = parser.parse_args(arguments)
    with exit_on_error("classify"):
        remedy = "train one with `lrpe train classification/...` or `lrpe finetune`"
        settings = read_checkpoint(args.checkpoint, remedy)["cfg"]["task"]
        if settings.get("_name") == "image_classification":
            from fairseq_lrpe.experiments.inference import classify_images

            classify_images.run(args.checkpoint, settings, args.data, args.cpu)
        else:
            from fairseq_lrpe.experiments.inference import predict

            predict.run(args.checkpoint, settings.get("_name"), args.data, args.splits, args.cpu)
