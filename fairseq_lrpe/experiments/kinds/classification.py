"""Classification of texts, pairs of texts and pictures from scratch, measured by what is predicted."""

from fairseq_lrpe import layouts
from fairseq_lrpe.experiments import predictions
from fairseq_lrpe.experiments.kinds.base import Curve, Kind
from fairseq_lrpe.files import REPOSITORY


class Classification(Kind):
    """Trains our classifiers by our task classification.

    ``majority`` is the accuracy of always predicting the most frequent label.
    """

    task = "classification"
    family = "classifier"
    metrics = dict.fromkeys(("accuracy", "f1", "matthews", "majority"), "higher")
    curve = Curve("valid_accuracy", "validation accuracy", "higher")

    def data(self, cfg):
        folder = REPOSITORY / cfg.data
        if not (folder / layouts.ABOUT).is_file():
            return [folder / layouts.ABOUT]
        inputs = layouts.about(folder)["inputs"]
        return [folder / name for name in layouts.classified(self.splits(cfg), inputs)]

    def evaluate(self, job, name):
        """Returns the measures of the split's predictions, which stay in predictions-<name>.tsv."""
        file, split = job.folder / f"predictions-{name}.tsv", self.evaluations(job.cfg)[name]["split"]
        data = REPOSITORY / job.cfg.data
        job.call(predictions.command(job.checkpoint, data, {split: file}, job.launch.cpu), name)
        predicted, target = predictions.read(file)
        majority = predictions.of_majority(target)["accuracy"]
        return {**predictions.of_labels(predicted, target), "majority": majority, "rows": len(target)}

    def told(self, cfg, measured):
        """Returns the accuracy, beside it what always the most frequent label would have."""
        if "accuracy" not in measured:
            return None
        majority = f"always the most frequent label {measured['majority']:.2f}"
        return f"accuracy {measured['accuracy']:.2f}, {majority}"


KIND = Classification()
