"""Image classification, evaluated by fairseq-validate."""

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.definition.kinds.base import Curve, Kind, in_folder
from fairseq_lrpe.utils.files import REPOSITORY


class ViT(Kind):
    """Kind of experiments that train vision transformers with the task ``image_classification``.

    ``accuracy5`` is the top-5 accuracy, and ``parameters`` is the number of trained parameters in millions.
    """

    task = "image_classification"
    family = "vit"
    metrics = {"accuracy": "higher", "accuracy5": "higher", "parameters": "lower"}
    curve = Curve("valid_accuracy", "validation accuracy", "higher")

    def data(self, cfg):
        return in_folder(REPOSITORY / cfg.data, layout.labeled(self.splits(cfg)))


KIND = ViT()
