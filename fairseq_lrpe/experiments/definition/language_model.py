"""The lengths that a language model can read, derived from its flags."""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from fairseq_lrpe.utils.errors import user_errors

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fairseq_lrpe.ops.rope_scaling import RopeScaling

MAX_SINUSOIDAL = 100_000
"""Number of sinusoidal token positions of fairseq's models."""
PROBED = 256
"""Number of positions at which the outputs of a module and of one built for more positions are compared."""


class ModelFlags:
    """The flags of a language model.

    Args:
        flags: {name with underscores: value} of a checkpoint. Before the training, the flags that an
            experiment sets are sufficient for :meth:`rope_scaling`.
    """

    def __init__(self, flags: dict):
        self.flags = flags

    @property
    def encoding(self) -> str:
        return self.flags["encoding"]

    @property
    def tokens_per_sample(self) -> int:
        """Number of tokens in a block during training."""
        return self.flags["tokens_per_sample"]

    @property
    def trained_length(self) -> int:
        """Maximum number of tokens for which the model was built, by default ``tokens_per_sample``."""
        return self.flags["max_target_positions"] or self.tokens_per_sample

    @property
    def width(self) -> int:
        return self.flags.get("decoder_embed_dim", 64)

    @property
    def heads(self) -> int:
        return self.flags.get("decoder_attention_heads", 1)

    @property
    def layers(self) -> int:
        return self.flags.get("decoder_layers", 1)

    def encoding_options(self) -> dict[str, object]:
        """Returns {option: value} of the model's encoding."""
        from fairseq_lrpe.config import option_flag  # imports torch, which takes seconds
        from fairseq_lrpe.encodings import ENCODINGS, encoding_options

        options = {}
        for name, default in encoding_options(ENCODINGS[self.encoding]).items():
            options[name] = self.flags.get(option_flag(self.encoding, name), default)
        return options

    def rope_scaling(self, text: str, length: int) -> "RopeScaling":
        """Returns the scaling of ``text``, TYPE[:FACTOR[:LENGTH]], for blocks of ``length`` tokens.

        Raises:
            UserError: if the text is invalid, or the model's encoding cannot be scaled.
        """
        from fairseq_lrpe.encodings import build_encoding
        from fairseq_lrpe.encodings.delta_rules import check_norms
        from fairseq_lrpe.encodings.rotation import scale_rotations
        from fairseq_lrpe.ops.rope_scaling import RopeScaling

        trained = self.tokens_per_sample
        head_dim = self.width // self.heads
        sizes = {"num_heads": self.heads, "head_dim": head_dim, "causal": True, "layers": self.layers}
        with user_errors():
            scaling = RopeScaling.parse(text, factor=max(1.0, length / trained), original_length=trained)
            encoding = build_encoding(self.encoding, **sizes, **self.encoding_options())
            scale_rotations(encoding, scaling)
            if self.flags.get("linear_rule", "additive") != "additive":
                check_norms(encoding)
        return scaling

    def max_length(self) -> tuple[float, str]:
        """Returns the maximum number of tokens that the model can read, or infinity, and the reason.

        To read sequences that are longer than in training, fairseq builds the model anew for their length.
        This fails, or changes the results, if parameters or the encoding depend on the length.
        """
        trained = self.trained_length
        positions = self.flags["token_positions"]
        randomized = self.flags.get("randomized_positions")
        if randomized:
            return randomized, f"it was trained with random positions below {randomized}"
        if self.flags["decoder_learned_pos"] or positions == "learned":
            return trained, f"its learned token positions are a table of the {trained} training positions"
        if self._positions_depend_on_length():
            return trained, f"its {positions} token positions depend on the {trained} training positions"
        if self._attention_depends_on_length():
            reason = f"{self.encoding}'s formula or table depends on the {trained} training positions"
            return trained, reason
        if positions == "hierarchical" and trained**2 < MAX_SINUSOIDAL:
            return trained**2, f"its token positions combine two of the {trained} training positions"
        if positions == "none" or self.flags["no_token_positional_embeddings"]:
            return math.inf, "no part of the model depends on the length"
        return MAX_SINUSOIDAL, "fairseq's sinusoidal token positions end there"

    def _positions_depend_on_length(self):
        import torch

        from fairseq_lrpe.positions import POSITIONS, build_position

        name = self.flags["token_positions"]
        if name not in POSITIONS:
            return False
        build = partial(build_position, name, embed_dim=self.width, vocab_size=3, causal=True)
        x = _probe(self.trained_length, self.width)
        index = torch.arange(x.size(1))[None]
        return _depends_on_length(build, self.trained_length, x, index, torch.full_like(index, 2))

    def _attention_depends_on_length(self):
        from fairseq_lrpe.attention import SoftmaxAttention

        head_dim = self.width // self.heads
        options = {"causal": True, "layers": self.layers, **self.encoding_options()}
        build = partial(SoftmaxAttention, head_dim, 1, self.encoding, **options)
        x = _probe(self.trained_length, self.width)[..., :head_dim]
        return _depends_on_length(build, self.trained_length, x)


def _probe(length, width):
    """Returns fixed inputs (1, L, width) for the first L = min(length, PROBED) positions."""
    import torch

    count = min(length, PROBED)
    return torch.linspace(-1, 1, count * width).sin().view(1, -1, width)


def _depends_on_length(build: "Callable[..., nn.Module]", trained: int, *inputs: "Tensor") -> bool:
    """Returns whether a module built for more positions has other parameters or other outputs."""
    import torch

    # Users' encodings and token positions do not have to declare whether they depend on the length.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module = build(max_positions=trained).eval()
        longer = build(max_positions=2 * trained).eval()
        try:
            longer.load_state_dict(module.state_dict())
        except RuntimeError:  # a parameter has another size
            return True
        return not torch.equal(module(*inputs), longer(*inputs))
