"""Pretraining of RoBERTa, evaluated by the perplexity of masked tokens."""

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.definition.kinds.base import Curve, Kind

SEED = 1
"""Seed of the masks in evaluations, so that all runs are evaluated on the same masked tokens."""


class Roberta(Kind):
    task = "masked_lm"
    family = "roberta"
    metrics = {"perplexity": "lower", "bits": "lower"}
    curve = Curve("valid_ppl", "validation perplexity")

    def data(self, cfg):
        folder, *more = self.folders(cfg)
        files = [folder / name for name in layout.text(self.splits(cfg))]
        return [*files, *(shard / "train.bin" for shard in more)]

    def evaluate(self, job, name):
        entry = self.validate(job, name, seed=SEED)
        return {"perplexity": float(entry["ppl"]), "bits": float(entry["loss"])}


KIND = Roberta()
