"""Predict labels with a trained classifier, a fine-tuned model or a vision transformer.

RUN is a run's folder or a checkpoint file. For text, DATA is a folder of binarized data. The predictions for
each SPLIT are written to its FILE, with the index, prediction and target (if known) of one text per line. For
a vision transformer, DATA is a folder of images, and the predicted label and its probability are printed for
each image. For example:

  lrpe classify checkpoint_best.pt data/glue/RTE/bin valid=predictions.tsv
"""

from pathlib import Path

from fairseq_lrpe.utils.cli import abs_path, exit_on_error, new_parser
from fairseq_lrpe.utils.errors import UserError

TASKS = ("sentence_prediction", "classification", "image_classification")


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe classify", __doc__, "RUN DATA [SPLIT=FILE ...] [options]")
    parser.add_argument("run", type=abs_path, metavar="RUN", help="run folder, or checkpoint file")
    text = "folder of binarized text, such as data/glue/RTE/bin, or folder of images"
    parser.add_argument("data", type=abs_path, metavar="DATA", help=text)
    text = "for text: a split to predict, and the file for its predictions, such as valid=predictions.tsv"
    parser.add_argument("splits", nargs="*", default=[], metavar="SPLIT=FILE", help=text)
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    args = parser.parse_args(arguments)
    with exit_on_error("classify"):
        from fairseq_lrpe.experiments.inference import load, trained

        for pair in args.splits:
            if "=" not in pair:
                raise UserError(f"expected SPLIT=FILE, such as valid=predictions.tsv, not {pair!r}")
        remedy = "train one with `lrpe train classification/...` or `lrpe finetune`"
        found = load.find(args.run, TASKS, remedy)
        if found.task == "image_classification":
            print_images(found, args.data, args.cpu)
            return
        if not args.splits:
            raise UserError("no SPLIT=FILE was given: pass, for example, valid=predictions.tsv")
        write_splits(trained.build(found, args.data, args.cpu), args.splits)


def print_images(found, folder: Path, cpu: bool) -> None:
    """Prints the file, label and probability of each image in a folder."""
    from fairseq_lrpe.data.image_files import find_images
    from fairseq_lrpe.experiments.inference import classify, trained

    files = find_images(folder)
    model = trained.build(found, cpu=cpu)
    print("file\tlabel\tprobability")
    for file, (label, probability) in classify.classify_files(model, files):
        print(f"{file.relative_to(folder)}\t{label}\t{probability:.4f}")


def write_splits(model, splits: list[str]) -> None:
    """Writes the predictions for each SPLIT=FILE in ``splits``."""
    from fairseq_lrpe.experiments.inference import classify

    for pair in splits:
        split, _, path = pair.partition("=")
        rows = getattr(model.task, "about", {}).get("rows")
        if rows and split not in rows:
            raise UserError(f"{model.data} has no split {split!r}: choose from {', '.join(rows)}")
        classify.write(Path(path), model.predict_split(split))
