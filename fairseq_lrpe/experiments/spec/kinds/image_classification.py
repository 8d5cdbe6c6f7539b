"""Classification of pictures, measured by fairseq-validate."""

import re

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.spec.kinds.base import Curve, Kind, validated
from fairseq_lrpe.utils.files import REPOSITORY

TRAINED = re.compile(r"num\. trained: ([\d,]+)\)")


class ImageClassification(Kind):
    """Trains our vision transformers by our task image_classification.

    ``accuracy5`` counts pictures whose label is among the five best. ``parameters`` are in millions.
    """

    task = "image_classification"
    family = "vit"
    metrics = {"accuracy": "higher", "accuracy5": "higher", "parameters": "lower"}
    curve = Curve("valid_accuracy", "validation accuracy", "higher")

    def data(self, cfg):
        return [REPOSITORY / cfg.data / name for name in layout.labelled(self.splits(cfg))]

    def evaluate(self, job, name):
        """Returns both accuracies in percent, and the parameters that fairseq-train counted."""
        log = self.evaluated(job, name, "fairseq-validate", "valid_subset", task=self.task)
        found = validated(log, self.evaluations(job.cfg)[name]["split"])
        parameters = int(TRAINED.search((job.folder / "train.log").read_text())[1].replace(",", ""))
        measured = {key: float(found[key]) for key in ("accuracy", "accuracy5")}
        return {**measured, "parameters": parameters / 1e6}


KIND = ImageClassification()
