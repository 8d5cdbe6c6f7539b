"""Predict labels with a trained classifier, a fine-tuned model or a vision transformer.

RUN is a run's folder or a checkpoint file. For a vision transformer, DATA is a folder of images, and the
predicted label and its probability are printed for each image. For other models, DATA is a folder of
binarized data. For each SPLIT, FILE gets one line per input with its index, the predicted label (a score for
STS-B) and, if the split has labels, the true one. For example:

  lrpe classify checkpoint_best.pt data/glue/RTE/bin valid=predictions.tsv
"""

from pathlib import Path

from fairseq_lrpe.utils.cli import abs_path, exit_on_error, new_parser
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import output_folder, write_atomic

TASKS = ("sentence_prediction", "classification", "image_classification")


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe classify", __doc__, "RUN DATA [SPLIT=FILE ...] [options]")
    parser.add_argument("run", type=abs_path, metavar="RUN", help="run folder, or checkpoint file")
    text = "folder to classify: binarized data, such as data/glue/RTE/bin, or images for a vision transformer"
    parser.add_argument("data", type=abs_path, metavar="DATA", help=text)
    text = "split to predict, and file to which its predictions are written (not for vision transformers)"
    parser.add_argument("splits", type=split_file, nargs="*", metavar="SPLIT=FILE", help=text)
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    args = parser.parse_args(arguments)
    with exit_on_error("classify"):
        from fairseq_lrpe.experiments.inference import classify, load

        checkpoint, settings = load.find(args.run, TASKS)
        if settings["_name"] == "image_classification":
            if args.splits:
                raise UserError("a vision transformer predicts a folder of images: omit SPLIT=FILE")
            print_images(load.load_model(checkpoint, cpu=args.cpu), args.data)
        elif not args.splits:
            raise UserError("no SPLIT=FILE was given: pass, for example, valid=predictions.tsv")
        else:
            model = load.load_model(checkpoint, data=args.data, cpu=args.cpu)
            for split, path in args.splits:
                with output_folder(path.parent):
                    write_atomic(path, classify.tsv(model.predict_split(split)))


def split_file(text: str) -> tuple[str, Path]:
    """Returns (split, path) for an argument SPLIT=FILE; raises UserError if it is invalid."""
    split, equals, path = text.partition("=")
    if not equals:
        raise UserError(f"expected SPLIT=FILE, such as valid=predictions.tsv, not {text!r}")
    if Path(path).is_dir():
        raise UserError(f"{path or repr(text)} is a folder: give the path of a file")
    return split, Path(path)


def print_images(model, folder: Path) -> None:
    """Prints the file, predicted label and probability of each image in a folder."""
    from fairseq_lrpe.data.image_files import find_images
    from fairseq_lrpe.experiments.inference.classify import classify_files

    files = find_images(folder)
    print("file\tlabel\tprobability")
    for file, (label, probability) in classify_files(model, files):
        print(f"{file.relative_to(folder)}\t{label}\t{probability:.4f}")
