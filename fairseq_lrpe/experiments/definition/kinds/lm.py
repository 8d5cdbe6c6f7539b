"""Language models, evaluated by perplexity at the training's block length or at other lengths."""

import functools
import math
import re
from collections.abc import Callable
from pathlib import Path

from pydantic import NonNegativeInt, PositiveInt

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.definition.kinds.base import Curve, Evaluation, Kind, TrainingSettings
from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.utils.errors import UserError, user_errors
from fairseq_lrpe.utils.files import REPOSITORY, file_exists

MAX_SINUSOIDAL = 100_000
"""Number of sinusoidal token positions of fairseq's models."""


class BlockEvaluation(Evaluation):
    length: PositiveInt | None = None  # tokens per block; the default is that of the training
    context_window: NonNegativeInt = 0  # number of tokens at the start of a block that are only context
    # How angles of rotations are scaled: TYPE, TYPE:FACTOR or TYPE:FACTOR:LENGTH of ``RopeScaling``. The
    # default factor is ``length`` divided by the length in training, or 1 if that is longer.
    rope_scaling: str | None = None


class LM(Kind):
    settings = TrainingSettings[BlockEvaluation]
    task = "language_modeling"
    family = "lm"
    metrics = {"perplexity": "lower", "bits": "lower", "nats": "lower"}
    curve = Curve("valid_ppl", "validation perplexity")

    def check(self, cfg):
        for name, evaluation in self.evaluations(cfg).items():
            length = evaluation.get("length") or cfg.train.get("tokens_per_sample") or math.inf
            if evaluation.get("context_window", 0) >= length:
                raise UserError(
                    f"evaluations.{name}.context_window must be below the {length} tokens of a block"
                )
            if evaluation.get("rope_scaling") and not evaluation.get("length"):
                raise UserError(f"evaluations.{name}.rope_scaling needs evaluations.{name}.length")

    def data(self, cfg):
        return [REPOSITORY / cfg.data / name for name in layout.text(self.splits(cfg))]

    def flags(self, job):
        for evaluation in self.evaluations(job.cfg).values():
            if text := evaluation.get("rope_scaling"):
                rope_scaling(text, evaluation["length"], _configured_model(job))
        return super().flags(job)

    def evaluate(self, job, name):
        evaluation, flags, expected = self.evaluations(job.cfg)[name], {}, None
        if "context_window" in evaluation:
            flags["context_window"] = evaluation["context_window"]
        if length := evaluation.get("length"):
            expected = check_length(job, evaluation["split"], length)
            # A batch has up to 2,048 tokens, or one block that is longer.
            flags |= {"tokens_per_sample": length, "batch_size": None, "max_tokens": max(length, 2048)}
            model = model_flags(job)
            overrides = {"max_target_positions": length} if length > trained_length(model) else {}
            if text := evaluation.get("rope_scaling"):
                overrides["rope_scaling"] = str(rope_scaling(text, length, model))
            if overrides:
                # Checkpoints of earlier versions have no key rope_scaling, which only a nested override adds.
                flags["model_overrides"] = repr({"model": overrides})
        log = self.run_evaluation(job, name, "fairseq-eval-lm", "gen_subset", **flags)
        return perplexity(log, expected)


def perplexity(log: Path, expected: int | None = None) -> dict[str, float]:
    """Returns {metric: value} from the log of fairseq-eval-lm.

    Raises a UserError if the number of evaluated tokens is 0 or not ``expected``, because fairseq-eval-lm
    skips samples that are too long for the model.
    """
    text = log.read_text("utf-8")
    tokens = int(re.search(r"Evaluated ([\d,]+) tokens", text)[1].replace(",", ""))
    if not tokens or tokens != (expected or tokens):
        wrong = f"fairseq-eval-lm evaluated only {tokens:,} tokens of the split"
        raise UserError(f"{wrong}, because it skips blocks that are too long for the model: see {log}")
    bits, perplexity = re.search(r"Loss \(base 2\): ([\w.]+), Perplexity: ([\w.]+)", text).groups()
    nats = math.log(2) * float(bits)
    return {"perplexity": float(perplexity), "bits": float(bits), "nats": nats, "tokens": tokens}


def model_flags(job) -> dict:
    from fairseq_lrpe.fairseq_ext.checkpoint import read_checkpoint  # imports torch, which takes seconds

    model = read_checkpoint(job.checkpoint, "train the run first")["cfg"]["model"]
    if "token_positions" not in model:
        wrong = "is fairseq's own model, whose maximum length is not known"
        raise UserError(f"{job.checkpoint} {wrong}: choose a method of this plugin")
    return model


def _configured_model(job) -> dict:
    """Returns the flags of a model that is not trained yet, without fairseq's defaults."""
    method = METHODS[job.run.method].flags if job.run.method in METHODS else {}
    return {"encoding": "none", "tokens_per_sample": 1, **method, **job.train_flags}


def check_length(job, split: str, length: int) -> int:
    from fairseq.data.indexed_dataset import make_dataset  # this import takes seconds

    limit, reason = max_length(model_flags(job))
    if length > limit:
        raise UserError(f"this model reads at most {limit:,} tokens, not {length:,}: {reason}")
    path = REPOSITORY / job.cfg.data / split
    if not file_exists(path.with_suffix(".idx")):
        raise UserError(f"{path}.idx does not exist: prepare the {split} split of the run's data")
    dataset = make_dataset(str(path), impl="mmap")  # must outlive its sizes, which are memory-mapped
    tokens = int(dataset.sizes.sum())
    if length > tokens:
        wrong = f"has {tokens:,} tokens, too few for a block of {length:,}"
        raise UserError(f"the {split} split {wrong}: use shorter blocks")
    return tokens


def trained_length(model: dict) -> int:
    """Returns the number of tokens that the model is built for, at least that of a block in training."""
    return model["max_target_positions"] or model["tokens_per_sample"]


def rope_scaling(text: str, length: int, model: dict):
    """Returns the ``RopeScaling`` of ``text``, TYPE[:FACTOR[:LENGTH]], for blocks of ``length`` tokens."""
    from fairseq_lrpe.encodings import build_encoding  # imports torch, which takes seconds
    from fairseq_lrpe.encodings.rotation import scale_rotations
    from fairseq_lrpe.ops.rope_scaling import RopeScaling

    trained = model["tokens_per_sample"]
    heads = model.get("decoder_attention_heads", 1)
    sizes = {"num_heads": heads, "head_dim": model.get("decoder_embed_dim", 64) // heads, "causal": True}
    sizes["layers"] = model.get("decoder_layers", 1)
    with user_errors():
        scaling = RopeScaling.parse(text, factor=max(1.0, length / trained), original_length=trained)
        scale_rotations(build_encoding(model["encoding"], **sizes, **_encoding_options(model)), scaling)
    return scaling


def max_length(model: dict) -> tuple[float, str]:
    """Returns (maximum number of tokens of a sequence that a model can read, reason); inf without a limit.

    For longer sequences than in training, fairseq builds the model for their length, which is impossible if
    the parameters or the encoding depend on it.
    """
    import torch  # takes seconds, as the modules that import it

    from fairseq_lrpe.attention import SoftmaxAttention
    from fairseq_lrpe.positions import POSITIONS, build_position

    trained, positions, encoding = trained_length(model), model["token_positions"], model["encoding"]
    if count := model.get("randomized_positions"):
        return count, f"it was trained with random positions below {count}"
    if model["decoder_learned_pos"] or positions == "learned":
        return trained, f"its learned token positions are a table of the {trained} training positions"
    width, heads = model.get("decoder_embed_dim", 64), model.get("decoder_attention_heads", 1)
    index = torch.arange(min(trained, 256))[None]
    x = torch.linspace(-1, 1, index.size(1) * width).sin().view(1, -1, width)
    if positions in POSITIONS:
        sizes = {"embed_dim": width, "vocab_size": 3, "causal": True}
        build = functools.partial(build_position, positions, **sizes)
        if _depends_on_length(build, trained, x, index, torch.full_like(index, 2)):
            return trained, f"its {positions} token positions depend on the {trained} training positions"
    width //= heads
    shared = {"causal": True, "layers": model.get("decoder_layers", 1)}
    build = functools.partial(SoftmaxAttention, width, 1, encoding, **shared, **_encoding_options(model))
    if _depends_on_length(build, trained, x[..., :width]):
        return trained, f"{encoding}'s formula or table depends on the {trained} training positions"
    if positions == "hierarchical" and trained**2 < MAX_SINUSOIDAL:
        return trained**2, f"its token positions combine two of the {trained} training positions"
    if positions == "none" or model["no_token_positional_embeddings"]:
        return math.inf, "no part of the model depends on the length"
    return MAX_SINUSOIDAL, "fairseq's sinusoidal token positions end there"


def _encoding_options(model: dict) -> dict:
    from fairseq_lrpe.config import option_flag
    from fairseq_lrpe.encodings import ENCODINGS, encoding_options

    encoding = model["encoding"]
    options = encoding_options(ENCODINGS[encoding])
    return {name: model.get(option_flag(encoding, name), default) for name, default in options.items()}


def _depends_on_length(build: Callable, trained: int, *inputs) -> bool:
    import torch  # takes seconds

    # Users' encodings and token positions do not have to declare it.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module, longer = (build(max_positions=n).eval() for n in (trained, 2 * trained))
        try:
            longer.load_state_dict(module.state_dict())
        except RuntimeError:  # a parameter has another size
            return True
        return not torch.equal(module(*inputs), longer(*inputs))


KIND = LM()
