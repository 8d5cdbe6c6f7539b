"""Sampling of tokens from a language model, one at a time."""

import math
from collections.abc import Callable, Iterator

import torch
from fairseq.modules import LearnedPositionalEmbedding
from torch import Tensor, nn

from fairseq_lrpe.models.decoder import Decoder
from fairseq_lrpe.utils.errors import UserError


def check_options(length: int, temperature: float, top_k: int, top_p: float) -> None:
    """Raises a UserError for an invalid option of sampling."""
    for name, value, valid, expected in (
        ("length", length, length >= 1, "at least 1 token"),
        ("temperature", temperature, 0 <= temperature < math.inf, "a number of at least 0 (0: most likely)"),
        ("top_k", top_k, top_k >= 0, "at least 1, or 0 for all tokens"),
        ("top_p", top_p, 0 < top_p <= 1, "above 0 and at most 1"),
    ):
        if not valid:
            raise UserError(f"{name} must be {expected}, not {value}")


def probabilities(logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Returns the distribution from which a token is sampled.

    The distribution is softmax(logits / temperature). With ``top_k``, only the ``top_k`` most likely tokens
    are kept, and their probabilities are divided by their sum. With ``top_p``, only the smallest set of most
    likely tokens whose probabilities then sum to at least ``top_p`` is kept (Holtzman et al. 2020, Sec. 3.1),
    and these probabilities are divided by their sum again. Of equally likely tokens, those with the smaller
    index are kept.

    Args:
        logits: (V,).
        temperature: positive divisor of the logits.
        top_k: maximum number of tokens; 0 means all.
        top_p: minimum total probability of the kept tokens; 1 means all.

    Returns:
        The probabilities (V,), in float32 or the wider dtype of the logits.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float))
    p = ((logits - logits.max()) / temperature).softmax(-1)
    if not 0 < top_k < len(p) and top_p == 1:
        return p
    p, order = p.sort(descending=True, stable=True)
    if top_k:
        p = p[:top_k]
        order = order[:top_k]
    if top_p < 1:
        p = p / p.sum()
        kept = int((p.cumsum(-1) - p < top_p).sum())
        p = p[:kept]
        order = order[:kept]
    return torch.zeros_like(logits).scatter(0, order, p / p.sum())


def chooser(temperature: float, top_k: int, top_p: float, seed: int | None, device: torch.device) -> Callable:
    """Returns a function that draws a token (1,) for logits (V,), the most likely one at temperature 0.

    The random numbers depend on ``seed`` only, or on torch's random state if it is None.
    """
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)

    def choose(logits):
        if temperature == 0:
            return logits.argmax(-1, keepdim=True)
        p = probabilities(logits, temperature, top_k, top_p)
        return torch.multinomial(p, 1, generator=generator)

    return choose


@torch.no_grad()
def sample(decoder: nn.Module, prompt: Tensor, length: int, choose: Callable, pad: int) -> Iterator[int]:
    """Yields ``length`` tokens that follow a prompt, each as soon as it is chosen.

    The cost and the memory of a token are those of a decoding step: constant with linear attention, except
    for the 8 bytes of the token itself. With --randomized-positions, the cost and the memory are those of the
    whole text.

    Args:
        decoder: decoder of a language model.
        prompt: tokens (n,), at least one.
        length: number of tokens.
        choose: function that returns the next token (1,) for logits (V,).
        pad: token that is never chosen.

    Raises:
        UserError: at the first token whose position the model does not support.
    """
    size = len(prompt)
    # Random positions depend on the length, so that each token needs all of the text.
    state = None if getattr(decoder, "randomized_positions", 0) else {}
    tokens = torch.cat([prompt, prompt.new_full((length,), pad)])[None]
    # fairseq's own decoders process only the last token of each call with a state.
    first = size if isinstance(decoder, Decoder) else 1
    for position in range(first, size + length):
        check_learned_positions(decoder, position)
        out = decoder(tokens[:, :position], incremental_state=state)[0]
        if position >= size:
            if decoder.adaptive_softmax is not None:  # the output has features instead of logits
                out = decoder.adaptive_softmax.get_log_prob(out, None)
            logits = out[0, -1]
            logits[pad] = -torch.inf
            token = choose(logits)
            tokens[0, position] = token
            yield int(token)


def check_learned_positions(decoder: nn.Module, length: int) -> None:
    """Raises a UserError if a sequence is too long for the decoder's learned positions."""
    positions = decoder.embed_positions
    if isinstance(positions, LearnedPositionalEmbedding) and length > positions.max_positions:
        raise UserError(
            f"learned positions support sequences of at most {positions.max_positions} tokens, not {length}: "
            "shorten the prompt, or generate fewer tokens"
        )
