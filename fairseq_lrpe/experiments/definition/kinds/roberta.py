"""Pretraining of RoBERTa, evaluated by the perplexity of masked tokens."""

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.definition.kinds.base import Curve, Kind, in_folder


class Roberta(Kind):
    task = "masked_lm"
    family = "roberta"
    metrics = {"perplexity": "lower", "bits": "lower"}
    curve = Curve("valid_ppl", "validation perplexity")
    validation_flags = {"seed": 1}  # of the masks, so that all runs are evaluated on the same masked tokens

    def data(self, cfg):
        folder, *shards = self.folders(cfg)
        files = in_folder(folder, layout.text(self.splits(cfg)))
        return [*files, *(shard / "train.bin" for shard in shards)]


KIND = Roberta()
