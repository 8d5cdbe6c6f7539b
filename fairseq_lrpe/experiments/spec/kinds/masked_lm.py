"""RoBERTa's pretraining, measured by the perplexity of hidden tokens."""

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.spec.kinds.base import Curve, Kind, validated

SEED = 1
"""Of the tokens that an evaluation hides: the same ones for every run."""


class MaskedLM(Kind):
    """Trains by fairseq's masked_lm."""

    task = "masked_lm"
    family = "roberta"
    metrics = {"perplexity": "lower", "loss": "lower"}
    curve = Curve("valid_ppl", "validation perplexity")

    def data(self, cfg):
        folder, *more = self.folders(cfg)
        files = [folder / name for name in layout.text(self.splits(cfg))]
        return [*files, *(shard / "train.bin" for shard in more)]

    def evaluate(self, job, name):
        """Returns the loss (to base 2) and the perplexity of the hidden tokens."""
        log = self.evaluated(job, name, "fairseq-validate", "valid_subset", task=self.task, seed=SEED)
        entry = validated(log, self.evaluations(job.cfg)[name]["split"])
        return {"perplexity": float(entry["ppl"]), "loss": float(entry["loss"])}


KIND = MaskedLM()
