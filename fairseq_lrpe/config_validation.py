"""Validation of the flags that all model families share."""

from math import inf

from fairseq_lrpe.config import encoding_from_config, option_flag, recomputes_activations
from fairseq_lrpe.config_parts import layer_config, part_config
from fairseq_lrpe.encodings import ENCODINGS, Encoding, encoding_options
from fairseq_lrpe.encodings.base import check_positions
from fairseq_lrpe.positions import POSITIONS
from fairseq_lrpe.utils.errors import UserError, user_errors


def check_range(name: str, value: float, minimum: float, maximum: float = inf) -> None:
    """Raises a UserError if the value of a flag is not from ``minimum`` to ``maximum``."""
    if not minimum <= value <= maximum:
        allowed = f"at least {minimum}" if maximum == inf else f"from {minimum} to {maximum}"
        raise UserError(f"--{name.replace('_', '-')} must be {allowed}, not {value}")


def check_options(cfg, given) -> None:
    """Raises a UserError if a ``given`` flag is an option of an encoding that is not selected."""
    for name, cls in ENCODINGS.items():
        for option in encoding_options(cls):
            option = option_flag(name, option)
            selected = (cfg.encoding, cfg.interval_encoding) if cfg.encoding_interval else (cfg.encoding,)
            if option in given and name not in selected:
                raise UserError(
                    f"--{option.replace('_', '-')} is an option of the encoding {name!r}, but the encoding "
                    f"is {cfg.encoding!r}: omit it, or pass --encoding {name}, too"
                )


def check_part(cfg, part: str, **shared) -> None:
    """Raises a UserError if the flags are invalid for the layers of a model's "encoder" or "decoder".

    ``shared`` has further arguments of :class:`Encoding`.
    """
    if getattr(cfg, f"{part}_xformers_att_config", None):
        raise UserError(f"--{part}-xformers-att-config replaces the attention of --attention: omit it")
    if cfg.drop_encoding and cfg.encoding != "none":
        raise UserError(
            f"--drop-encoding requires a model without an encoding, not {cfg.encoding}: pass --encoding none"
        )
    part_flags = part_config(cfg, part)
    layers = max(1, getattr(cfg, f"{part}_layers"))
    shared |= {
        "embed_dim": getattr(cfg, f"{part}_embed_dim"),
        "num_heads": getattr(cfg, f"{part}_attention_heads"),
        "causal": part == "decoder",
        "layers": layers,
    }
    encoding = encoding_from_config(part_flags, **shared)
    check_interval(part_flags, layers, part)
    if part_flags.encoding_interval:
        encoding_from_config(layer_config(part_flags, part_flags.encoding_interval), **shared)
    if part_flags.randomized_positions:
        check_range("randomized_positions", part_flags.randomized_positions, 1)
        check_randomized_positions(cfg, encoding)
    position = POSITIONS.get(cfg.token_positions)
    if position and position.every_layer and recomputes_activations(cfg):
        raise UserError(
            "--checkpoint-activations and --offload-activations are not supported with the token "
            f"positions {cfg.token_positions}: omit them"
        )


def check_interval(cfg, layers: int, part: str) -> None:
    """Raises a UserError if --encoding-interval leaves all layers of a part with the same encoding."""
    interval = cfg.encoding_interval
    window = cfg.encoding_window
    if not interval:
        if window:
            raise UserError("--encoding-window requires --encoding-interval: pass both, or omit it")
        return
    check_range("encoding_interval", interval, 2)
    if interval > layers:
        raise UserError(
            f"--encoding-interval {interval} changes no layer, because the {part} has {layers}: pass a "
            f"number from 2 to {layers}"
        )
    if cfg.encoding == cfg.interval_encoding:
        raise UserError(
            f"--encoding-interval would change nothing, because all layers have the encoding {cfg.encoding}: "
            "pass another --encoding or --interval-encoding"
        )
    check_range("encoding_window", window, 0)
    if window and (cfg.attention != "softmax" or part != "decoder"):
        raise UserError(
            "--encoding-window requires causal softmax attention: omit it, or pass --arch softmax_lm_..."
        )
    if cfg.randomized_positions:
        raise UserError("--randomized-positions does not support --encoding-interval: omit one of them")


def check_randomized_positions(cfg, encoding: Encoding) -> None:
    """Raises a UserError if --randomized-positions would change nothing, or is not supported."""
    name = encoding.name
    with user_errors():
        check_positions(encoding, "--randomized-positions")
    if cfg.attention == "linear" and cfg.linear_rule != "additive":
        raise UserError(
            f"--randomized-positions does not support --linear-rule {cfg.linear_rule}, which accumulates "
            "values from token to token: omit one"
        )
    without = cfg.token_positions in ("none", "convolution", "rnn")
    if name == "none" and (without or getattr(cfg, "no_token_positional_embeddings", False)):
        raise UserError(
            "--randomized-positions would change nothing, because the model has neither an encoding nor "
            "token positions that use positions: pass --encoding, or --token-positions sinusoidal without "
            "--no-token-positional-embeddings"
        )
    if name == "tupe" and encoding.cls:
        raise UserError(
            "with --randomized-positions, the first token is not at position 0, which TUPE treats "
            "separately: pass --no-tupe-cls"
        )
    for other in ("rope-scaling", "checkpoint-activations", "offload-activations", "mask-decoder"):
        if getattr(cfg, other.replace("-", "_"), False):
            raise UserError(f"--randomized-positions does not support --{other}: omit one")
