"""Flags that all model families share: those of attention, encodings and token positions.

``lrpe methods --flags`` prints their help, because fairseq-train --help does not show the flags of models.
"""

from dataclasses import Field, dataclass, field, fields, is_dataclass, make_dataclass
from typing import Optional

from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig

from fairseq_lrpe import extensions
from fairseq_lrpe.attention.linear import LINEAR_NORMS, LINEAR_RULES
from fairseq_lrpe.encodings import ENCODINGS, Encoding, build_encoding, encoding_options
from fairseq_lrpe.encodings.delta_rules import check_delta_rule
from fairseq_lrpe.encodings.rotation import scale_rotations
from fairseq_lrpe.methods import ATTENTIONS, DELTA_FLAGS
from fairseq_lrpe.ops import FEATURE_MAPS
from fairseq_lrpe.ops.feature_maps import check_divisor
from fairseq_lrpe.ops.linear.functional import LINEAR_BACKENDS
from fairseq_lrpe.ops.rope_scaling import SCALINGS, RopeScaling
from fairseq_lrpe.positions import POSITIONS
from fairseq_lrpe.utils.errors import UserError, user_errors
from fairseq_lrpe.utils.suggest import check_flag

extensions.load_or_exit()  # the flags below are those of the encodings that are registered now

ACTIVATIONS = ChoiceEnum(utils.get_available_activation_fns())
TOKEN_POSITIONS = ("sinusoidal", "learned", "none", *POSITIONS)  # the first two are implemented by fairseq


def flag(default, help: str, const: str | None = None) -> Field:
    """Returns a dataclass field from which fairseq makes a command-line flag.

    ``const`` is the value of the flag if the flag is given without a value. Write the type of an optional
    flag as ``Optional[str]``, because fairseq does not support ``str | None``.
    """
    return field(default=default, metadata={"help": help, "argparse_const": const})


def option_flag(encoding: str, option: str) -> str:
    """Returns the flag of an encoding's option, such as "gcdf_lambda" for ``lambda_`` of ``gcdf``."""
    return f"{encoding}_{option.rstrip('_')}"


@dataclass
class _SharedConfig(FairseqDataclass):
    attention: str = flag(
        "linear",
        f"kind of self-attention: {', '.join(ATTENTIONS)} (in translation models, only that of the encoder)",
    )
    encoding: str = flag("none", f"positional encoding inside attention: {', '.join(ENCODINGS)}")
    encoding_interval: int = flag(
        0, "number n, for which every n-th layer has --interval-encoding in place of --encoding (0: no layer)"
    )
    interval_encoding: str = flag(
        "none", "encoding of every n-th layer, given --encoding-interval n: none, log_scale or another one"
    )
    encoding_window: int = flag(
        0,
        "number of keys to which a query attends in the layers with --encoding, given --encoding-interval, "
        "in causal softmax attention (0: all keys)",
    )
    drop_encoding: bool = flag(
        False,
        "load checkpoints of models with an encoding into this model without one, to continue their training",
    )
    linear_norm: str = flag(
        "denominator",
        "normalization of linear attention: division by the sum of the weights (denominator) or by that of "
        "the unencoded q and k, including a decay (content), or instead a LayerNorm (layernorm) or an "
        "RMSNorm of each head (rmsnorm)",
    )
    linear_rule: str = flag(
        "additive",
        "rule by which linear attention updates its state: sums of keys and values, with a decay if the "
        "encoding has one (additive), or a delta rule without a decay (delta), with one of each head that "
        "depends on the input (gated_delta), or with one of each feature (kda)",
    )
    feature_map: str = flag(
        "elu", f"feature map of linear attention: {', '.join(FEATURE_MAPS)} (elu is 1 + elu(x))"
    )
    scale_queries: bool = flag(
        False, "divide the queries of linear attention by the square root of the head dimension"
    )
    linear_backend: str = flag(
        "auto",
        "backend of linear attention: plain torch (chunk), the kernels of flash-linear-attention (fla) or of "
        "this project (triton), or fla if it is installed and supported, and chunk otherwise (auto)",
    )
    token_positions: str = flag(
        "sinusoidal", f"absolute position embeddings of the tokens: {', '.join(TOKEN_POSITIONS)}"
    )
    rope_scaling: str = flag(
        "",
        "TYPE:FACTOR:LENGTH, a scaling of the angles of rotations for sequences that are FACTOR times as "
        f"long as the LENGTH in training; TYPE is one of {', '.join(SCALINGS)} (empty: no scaling)",
    )
    randomized_positions: int = flag(
        0,
        "number of positions, of which each batch uses a random subset in ascending order; 0 means that "
        "positions are 0, 1, .. (in translation models, for the encoder only)",
    )
    compile: str = flag(
        "",
        "compile each layer by torch.compile in training: layers (the value if none is given), or "
        "reduce-overhead, which also records CUDA graphs (empty: no compilation)",
        const="layers",
    )


def _encoding_flags():
    """Returns (name, type, field) of the flag of each option of each encoding."""
    flags = []
    for name, cls in ENCODINGS.items():
        for option, default in encoding_options(cls).items():
            field_of_option = flag(default, cls.option_help[option])
            flags.append((option_flag(name, option), type(default), field_of_option))
    return flags


PositionConfig = make_dataclass(
    "PositionConfig",
    _encoding_flags(),
    bases=(_SharedConfig,),
    namespace={"__doc__": "Flags of attention and positions, with --<encoding>-<option> for each option."},
)
PositionConfig.__module__ = __name__


@dataclass
class LayerConfig(PositionConfig):
    """Flags that all models with an encoder share, with the defaults of BERT base."""

    encoder_layers: int = flag(12, "number of encoder layers")
    encoder_embed_dim: int = flag(768, "encoder embedding dimension")
    encoder_ffn_embed_dim: int = flag(3072, "hidden dimension of the encoder's feed-forward layers")
    encoder_attention_heads: int = flag(12, "number of encoder attention heads")
    activation_fn: ACTIVATIONS = flag("gelu", "activation function of the feed-forward layers")  # noqa: RUF009
    dropout: float = flag(0.1, "dropout probability")
    attention_dropout: float = flag(0.1, "dropout probability of softmax attention weights")
    activation_dropout: float = flag(0.0, "dropout probability inside the feed-forward layers")


def _flat_fields(config):
    """Yields (name, field) for the flags of fairseq's TransformerConfig, such as "encoder_layerdrop"."""
    for f in fields(config):
        if is_dataclass(f.default):
            for name, nested in _flat_fields(f.default):
                yield f"{f.name}_{name}", nested
        elif f.name != "_name":
            yield f.name, f


TRANSFORMER_FLAGS = dict(_flat_fields(TransformerConfig))
"""{name: field} of the flags of fairseq's ``transformer``."""


def fairseq_flags(*names: str) -> type:
    """Returns a dataclass with the named flags of fairseq's ``transformer``; models add their own flags."""
    flags = []
    for name in names:
        f = TRANSFORMER_FLAGS[name]
        # fairseq's models split strings such as "0,2" themselves, and do not accept the parsed list.
        kind = Optional[str] if "List" in str(f.type) else f.type  # noqa: UP045
        flags.append((name, kind, field(default=f.default, metadata=f.metadata)))
    return make_dataclass("FairseqFlags", flags, bases=(FairseqDataclass,))


def layer_flags(*parts: str) -> type:
    """Returns a dataclass with fairseq's flags of the layers of an "encoder" or a "decoder", or of both."""
    names = ["checkpoint_activations", "offload_activations", "min_params_to_wrap"]
    names += ["quant_noise_pq", "quant_noise_pq_block_size", "quant_noise_scalar"]
    for part in parts:
        names += [f"{part}_layerdrop", f"{part}_layers_to_keep"]
    return fairseq_flags(*names)


def recomputes_activations(cfg) -> bool:
    """Returns whether the backward pass recomputes activations."""
    return getattr(cfg, "checkpoint_activations", False) or getattr(cfg, "offload_activations", False)


def with_defaults(config: type, **defaults) -> type:
    """Returns a subclass of a dataclass of flags with other default values."""
    original = {f.name: f for f in fields(config)}
    changed = []
    for name, value in defaults.items():
        f = original[name]
        changed.append((name, f.type, field(default=value, metadata=f.metadata)))

    def init(self, **given):
        config.__init__(self, **(defaults | given))

    # dataclasses would generate a docstring and methods for each of 600 architectures, which takes seconds.
    namespace = {"__doc__": config.__doc__, "__init__": init}
    generated = dict.fromkeys(("init", "repr", "eq", "match_args"), False)
    return make_dataclass(config.__name__, changed, bases=(config,), namespace=namespace, **generated)


def check_position(cfg, embed_dim: int, num_heads: int) -> None:
    """Raises a UserError for invalid flags, or if ``embed_dim`` is not a multiple of ``num_heads``."""
    for name, choices in (
        ("attention", ATTENTIONS),
        ("encoding", ENCODINGS),
        ("interval_encoding", ENCODINGS),
        ("linear_norm", LINEAR_NORMS),
        ("linear_rule", LINEAR_RULES),
        ("feature_map", FEATURE_MAPS),
        ("linear_backend", LINEAR_BACKENDS),
        ("token_positions", TOKEN_POSITIONS),
    ):
        check_flag(name.replace("_", " "), getattr(cfg, name), choices)
    if cfg.attention == "linear" and not ENCODINGS[cfg.encoding].decomposable:
        decomposable = [name for name, cls in ENCODINGS.items() if cls.decomposable]
        raise UserError(
            f"encoding {cfg.encoding!r} needs the score matrix, which linear attention does not compute: "
            "use softmax attention (--attention softmax, and in a translation model's decoder "
            f"--decoder-attention softmax), or one of the encodings {', '.join(decomposable)}"
        )
    if cfg.attention == "linear":
        with user_errors():
            check_divisor(cfg.feature_map, cfg.linear_norm)
        if cfg.linear_rule != "additive":
            _check_delta_flags(cfg)
    if num_heads < 1 or embed_dim % num_heads:
        raise UserError(
            f"the number of attention heads must divide the embedding dimension {embed_dim} and be positive, "
            f"not {num_heads}: change one of them"
        )


def _check_delta_flags(cfg):
    """Raises a UserError for flags of linear attention that a delta rule does not have."""
    if any(getattr(cfg, name) != value for name, value in DELTA_FLAGS.items()):
        raise UserError(
            f"--linear-rule {cfg.linear_rule} has SiLU, scaled queries and an RMSNorm of each head: pass "
            "--feature-map silu --scale-queries --linear-norm rmsnorm"
        )
    if cfg.linear_backend not in ("auto", "chunk"):
        raise UserError(
            f"--linear-rule {cfg.linear_rule} has no backend {cfg.linear_backend}: pass --linear-backend auto"
        )


def encoding_from_config(cfg, *, embed_dim: int, num_heads: int, **shared) -> Encoding:
    """Builds the encoding that the flags select; ``shared`` are the other arguments of :class:`Encoding`.

    Raises:
        UserError: if the flags are invalid or cannot be combined.
    """
    check_position(cfg, embed_dim, num_heads)
    shared |= {"num_heads": num_heads, "head_dim": embed_dim // num_heads}
    for option, default in encoding_options(ENCODINGS[cfg.encoding]).items():
        # An encoding that was registered after the flags were created has no flags for its options.
        shared[option] = getattr(cfg, option_flag(cfg.encoding, option), default)
    with user_errors():
        encoding = build_encoding(cfg.encoding, **shared)
        if cfg.rope_scaling:
            scale_rotations(encoding, RopeScaling.parse(cfg.rope_scaling))
        if cfg.attention == "linear" and cfg.linear_rule != "additive":
            check_delta_rule(cfg.linear_rule, encoding)
    return encoding
