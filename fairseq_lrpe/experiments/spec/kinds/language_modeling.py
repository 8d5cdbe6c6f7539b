"""Language models, measured by perplexity, also in blocks of another length than in training."""

import math
import re
from pathlib import Path

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.spec.kinds.base import Curve, Kind
from fairseq_lrpe.utils.files import REPOSITORY

TABLES = ("learned", "multiplicative", "hierarchical")
"""Token positions whose parameters have a row for each position of training."""


class LanguageModeling(Kind):
    """Trains by fairseq's language_modeling; an evaluation's ``length`` is that of the blocks it cuts.

    Of each block the first ``context_window`` tokens are those before it, which are read and not predicted.
    The blocks do not overlap otherwise, so that every length and window predicts the same tokens.
    """

    task = "language_modeling"
    family = "lm"
    metrics = {"perplexity": "lower", "loss": "lower", "nats": "lower"}
    curve = Curve("valid_ppl", "validation perplexity")
    evaluation_keys = ("split", "length", "context_window")

    def check(self, cfg):
        for name, evaluation in self.evaluations(cfg).items():
            window = evaluation.get("context_window", 0)
            length = evaluation.get("length") or cfg.train.get("tokens_per_sample")
            if not isinstance(window, int) or not 0 <= window < (length or math.inf):
                what = f"a whole number from 0 on, below the {length} tokens of a block"
                raise ValueError(f"evaluations.{name}.context_window: {what} is needed, not {window!r}")

    def data(self, cfg):
        return [REPOSITORY / cfg.data / name for name in layout.text(self.splits(cfg))]

    def evaluate(self, job, name):
        """Returns the perplexity, the loss in bits and in nats, and how many tokens they are of."""
        evaluation, flags, expected = self.evaluations(job.cfg)[name], {}, None
        if "context_window" in evaluation:
            flags["context_window"] = evaluation["context_window"]
        if length := evaluation.get("length"):
            expected = check_length(job, evaluation["split"], length)
            # More than in a batch of training only where one block is longer.
            flags |= {"tokens_per_sample": length, "batch_size": None, "max_tokens": max(length, 2048)}
            if length > trained_length(model_of(job)):
                flags["model_overrides"] = f"{{'max_target_positions':{length}}}"
        return perplexity(self.evaluated(job, name, "fairseq-eval-lm", "gen_subset", **flags), expected)


def perplexity(log: Path, expected: int | None = None) -> dict[str, float]:
    """Returns what fairseq-eval-lm measured; ValueError if not of all ``expected`` tokens, or of none."""
    text = log.read_text()
    tokens = int(re.search(r"Evaluated ([\d,]+) tokens", text)[1].replace(",", ""))
    if not tokens or tokens != (expected or tokens):  # it leaves out silently what it finds too long
        raise ValueError(f"fairseq-eval-lm evaluated {tokens:,} tokens, not all of the split: see {log}")
    loss, perplexity = re.search(r"Loss \(base 2\): ([\w.]+), Perplexity: ([\w.]+)", text).groups()
    nats = math.log(2) * float(loss)
    return {"perplexity": float(perplexity), "loss": float(loss), "nats": nats, "tokens": tokens}


def model_of(job) -> dict:
    """Returns the flags of the job's trained model."""
    from fairseq_lrpe.fairseq_ext.checkpoint import read_checkpoint  # imports torch, which takes seconds

    model = read_checkpoint(job.checkpoint, "train the run first")["cfg"]["model"]
    if "token_positions" not in model:
        raise ValueError(f"{job.checkpoint} is of fairseq's own model: what it can read is not known")
    return model


def check_length(job, split: str, length: int) -> int:
    """Returns the tokens of a split; ValueError if the job's model cannot read blocks of ``length``."""
    from fairseq.data.indexed_dataset import make_dataset  # it takes seconds

    if length < 1:
        raise ValueError(f"a length must be at least 1, not {length}")
    limit, reason = longest(model_of(job))
    if length > limit:
        raise ValueError(f"this model reads at most {limit:,} tokens, not {length:,}: {reason}")
    path = REPOSITORY / job.cfg.data / split
    if not path.with_suffix(".idx").is_file():
        raise ValueError(f"the data of the run has no {split} split: {path}.idx is missing")
    dataset = make_dataset(str(path), impl="mmap")  # its sizes are gone when it is
    tokens = int(dataset.sizes.sum())
    if length > tokens:
        raise ValueError(f"the {split} split has {tokens:,} tokens, too few for a block of {length:,}")
    return tokens


def trained_length(model: dict) -> int:
    """Returns the longest sequence that the model of these flags was built for."""
    return model["max_target_positions"] or model["tokens_per_sample"]


def longest(model: dict) -> tuple[float, str]:
    """Returns the longest sequence that a trained model of these flags can read, and why.

    To read more than it was built for, fairseq has to build the model for that length (max_target_positions):
    what depends on it can not go on.
    """
    trained, positions = trained_length(model), model["token_positions"]
    if model["decoder_learned_pos"]:
        positions = "learned"
    if positions in TABLES:
        return trained, f"its {positions} token positions are a table of the {trained} positions of training"
    if model["encoding"] == "tupe":
        return trained, f"tupe has a table of the {trained} positions of training"
    if model["encoding"] == "cosformer":
        return trained, f"cosformer's cos(π(i−j)/2M) has M = {trained} in it and is negative beyond that"
    fixed = model["encoding"] == "lrpe" and model["lrpe_core"] != "permutation"
    if fixed and not model["lrpe_learn_theta"] and model["lrpe_theta_type"] in ("b", "c"):
        kind = model["lrpe_theta_type"]
        return trained, f"its fixed angles of type {kind} are made from the {trained} positions of training"
    if positions == "none" or model["no_token_positional_embeddings"]:
        return math.inf, "nothing in it has a length"
    return 100_000, "fairseq's token positions end there"


KIND = LanguageModeling()
