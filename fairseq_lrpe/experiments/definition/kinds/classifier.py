"""Classification of texts, text pairs and images from scratch, evaluated on the predicted labels."""

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.definition.kinds.base import Curve, Kind, in_folder
from fairseq_lrpe.utils.files import REPOSITORY, file_exists


class Classifier(Kind):
    """Kind of experiments that train classifiers with the task ``classification``.

    ``majority`` is the accuracy of always predicting the most frequent label.
    """

    task = "classification"
    family = "classifier"
    metrics = dict.fromkeys(("accuracy", "f1", "matthews", "majority"), "higher")
    curve = Curve("valid_accuracy", "validation accuracy", "higher")

    def data(self, cfg):
        folder = REPOSITORY / cfg.data
        if not file_exists(folder / layout.METADATA):
            return [folder / layout.METADATA]
        inputs = layout.read_metadata(folder)["inputs"]
        return in_folder(folder, layout.classified(self.splits(cfg), inputs))


KIND = Classifier()
