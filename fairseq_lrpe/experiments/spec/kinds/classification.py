"""Classification of texts, pairs of texts and pictures from scratch, measured by what is predicted."""

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.inference import metrics
from fairseq_lrpe.experiments.spec.kinds.base import Curve, Kind
from fairseq_lrpe.utils.files import REPOSITORY


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
        if not (folder / layout.METADATA).is_file():
            return [folder / layout.METADATA]
        inputs = layout.read_metadata(folder)["inputs"]
        return [folder / name for name in layout.classified(self.splits(cfg), inputs)]

    def evaluate(self, job, name):
        """Returns the measures of the split's predictions, which stay in predictions-<name>.tsv."""
        file, split = job.folder / f"predictions-{name}.tsv", self.evaluations(job.cfg)[name]["split"]
        data = REPOSITORY / job.cfg.data
        job.call(metrics.prediction_command(job.checkpoint, data, {split: file}, job.launch.cpu), name)
        predicted, target = metrics.read_predictions(file)
        majority = metrics.majority_metrics(target)["accuracy"]
        return {**metrics.label_metrics(predicted, target), "majority": majority, "rows": len(target)}

    def told(self, cfg, measured):
        """Returns the accuracy, beside it what always the most frequent label would have."""
        if "accuracy" not in measured:
            return None
        majority = f"always the most frequent label {measured['majority']:.2f}"
        return f"accuracy {measured['accuracy']:.2f}, {majority}"


KIND = Classification()
