"""The scores of softmax attention with any encoding."""

from torch import Tensor

from fairseq_lrpe.encodings.base import Encoding, overrides
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.decay_scores import decay_scores, prepare_decay
from fairseq_lrpe.encodings.mixins import ScoresMixin
from fairseq_lrpe.ops.position_index import as_positions


def modifies_scores(encoding: Encoding) -> bool:
    """Returns whether the scores of softmax attention can differ from scale·q·kᵀ."""
    decays = encoding.causal and overrides(encoding, "log_decay")
    return decays or overrides(encoding, "bias") or isinstance(encoding, ScoresMixin)


def prepare_scores(encoding: Encoding, q: Tensor, k: Tensor, context: Context) -> Context:
    """Returns the context with ``log_decay`` and ``prepared``, for the calls of ``bias`` and ``scores``.

    If the positions are far apart, tables of distances then have only the distances between them.
    """
    context = context._replace(q_offset=as_positions(context.q_offset).with_distances())
    if context.log_decay is None:
        context = context._replace(log_decay=encoding.log_decay(context))
    prepare = encoding.prepare if isinstance(encoding, ScoresMixin) else prepare_decay
    return context._replace(prepared=prepare(q, k, context))


def block_scores(encoding: Encoding, q: Tensor, k: Tensor, context: Context) -> Tensor | None:
    """Returns the scaled scores of a block of queries if they are not scale·q·kᵀ + bias, else None.

    Args:
        encoding: the encoding.
        q: a block of queries (B, H, Lq, d), encoded.
        k: keys (B, H, Lk, d), encoded, at positions 0..Lk-1.
        context: the context of the block, which :func:`prepare_scores` returned for all queries.
    """
    if isinstance(encoding, ScoresMixin):
        return encoding.scores(q, k, context)
    return decay_scores(encoding.scale, q, k, context)


def softmax_scores(encoding: Encoding, q: Tensor, k: Tensor, context: Context = START) -> Tensor:
    """Returns the scaled scores (B, H, Lq, Lk) of softmax attention for encoded q and k, as one block.

    If the encoding is causal, entries of keys after their query are arbitrary.
    """
    context = prepare_scores(encoding, q, k, context)
    scores = block_scores(encoding, q, k, context)
    if scores is not None:
        return scores
    scores = encoding.scale * (q @ k.mT)
    bias = encoding.bias(q, k, context)
    return scores if bias is None else scores + bias


def query_bias(encoding: Encoding) -> Tensor | None:
    """Returns u (H, d) if the encoding of queries and keys only adds u to the queries, otherwise None."""
    return encoding.query_bias if isinstance(encoding, ScoresMixin) else None


def log_weights(encoding: Encoding) -> bool:
    """Returns whether the scores are logarithms of weights, to which no softmax is applied."""
    return isinstance(encoding, ScoresMixin) and encoding.log_weights


def cached_keys(encoding: Encoding, k: Tensor, context: Context) -> Tensor:
    """Returns the keys to store for the next call; see :meth:`ScoresMixin.cached_keys`."""
    return encoding.cached_keys(k, context) if isinstance(encoding, ScoresMixin) else k
