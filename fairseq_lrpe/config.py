"""Declares the flags that every model family shares: attention, encoding, and each encoding's options.

``python -m fairseq_lrpe.config`` explains them: fairseq-train's own --help ends before a model's flags.
"""

import re
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from dataclasses import Field, dataclass, field, fields, make_dataclass
from math import inf

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass

from fairseq_lrpe.encodings import ENCODINGS, Encoding, build_encoding, check_choice, encoding_options
from fairseq_lrpe.methods import ATTENTIONS, LINEAR_BACKENDS, LINEAR_NORMS
from fairseq_lrpe.ops import FEATURE_MAPS
from fairseq_lrpe.positions import POSITIONS

TOKEN_POSITIONS = ("sinusoidal", "learned", "none", *POSITIONS)  # the first two are fairseq's own


def flag(default, help: str) -> Field:
    """Returns a dataclass's field that fairseq makes a flag of."""
    return field(default=default, metadata={"help": help})


def option_flag(encoding: str, option: str) -> str:
    """Returns the flag of an encoding's option; the underscore of ``lambda_`` is Python's alone."""
    return f"{encoding}_{option.rstrip('_')}"


@dataclass
class _SharedConfig(FairseqDataclass):
    attention: str = flag("linear", f"kind of self-attention: {', '.join(ATTENTIONS)}")
    encoding: str = flag("none", f"positional encoding inside attention: {', '.join(ENCODINGS)}")
    linear_norm: str = flag(
        "denominator",
        "linear attention is divided by its encoded denominator (denominator), "
        "by that of the unencoded features (content), or not at all but layer-normed (layernorm)",
    )
    feature_map: str = flag(
        "elu", f"linear attention's feature map: {', '.join(FEATURE_MAPS)} (elu is 1 + elu)"
    )
    linear_backend: str = flag(
        "auto",
        "what computes linear attention: plain torch (chunk), the kernels of flash-linear-attention (fla), "
        "or these where they are installed and run, else torch (auto)",
    )
    token_positions: str = flag(
        "sinusoidal", f"absolute positions of the token embeddings: {', '.join(TOKEN_POSITIONS)}"
    )


PositionConfig = make_dataclass(
    "PositionConfig",
    [
        (option_flag(name, option), type(default), flag(default, cls.option_help[option]))
        for name, cls in ENCODINGS.items()
        for option, default in encoding_options(cls).items()
    ],
    bases=(_SharedConfig,),
    namespace={"__doc__": "Flags of attention and position; an encoding's option is --<encoding>-<option>."},
)
PositionConfig.__module__ = __name__


PARTS = ("encoder_attention", "decoder_attention", "encoding_in", "image_positions")
"""Flags of some families that say where PositionConfig's hold: in encoder or decoder, at which positions."""


def part_flags(cfg, part: str):
    """Returns ``cfg``'s flags as they hold for its "encoder" or its "decoder"."""
    if not hasattr(cfg, "encoding_in"):
        return cfg  # a model of one part
    flags = {f.name: getattr(cfg, f.name) for f in fields(PositionConfig)}
    flags["attention"] = getattr(cfg, f"{part}_attention") or cfg.attention
    if cfg.encoding_in not in (part, "both"):
        flags["encoding"] = "none"
    return Namespace(**flags)


def position_flags(cfg) -> dict:
    """Returns {flag: value} of ``cfg`` that say which method a model is: of options only its encoding's."""
    own = {option_flag(cfg.encoding, option) for option in encoding_options(ENCODINGS[cfg.encoding])}
    parts = {name: getattr(cfg, name) for name in PARTS if hasattr(cfg, name)}
    shared = {"attention", "encoding", "token_positions"}
    if "linear" in (cfg.attention, *parts.values()):
        shared |= {"linear_norm", "feature_map"}
    return {f.name: getattr(cfg, f.name) for f in fields(PositionConfig) if f.name in own | shared} | parts


def check_position(cfg, embed_dim: int, num_heads: int) -> None:
    """Refuses, by ValueError with the choices that work, flags that cannot be met at this width."""
    for name, choices in (
        ("attention", ATTENTIONS),
        ("encoding", ENCODINGS),
        ("linear_norm", LINEAR_NORMS),
        ("feature_map", FEATURE_MAPS),
        ("linear_backend", LINEAR_BACKENDS),
        ("token_positions", TOKEN_POSITIONS),
    ):
        check_choice(name.replace("_", " "), getattr(cfg, name), choices)
    if cfg.attention == "linear" and not ENCODINGS[cfg.encoding].decomposable:
        decomposable = [name for name, cls in ENCODINGS.items() if cls.decomposable]
        raise ValueError(
            f"encoding {cfg.encoding!r} works on the score matrix, which linear attention never forms: "
            f"use softmax attention, or one of {', '.join(decomposable)}"
        )
    if embed_dim % num_heads:
        raise ValueError(f"the embed dim {embed_dim} is not divisible by {num_heads} attention heads")
    if cfg.token_positions == "complex_order" and embed_dim % 2:
        raise ValueError(f"complex_order has two halves: the embed dim {embed_dim} must be even")


def check_options(cfg, given) -> None:
    """Refuses, by ValueError, ``given`` flags that are options of another encoding than the one asked for."""
    for name, cls in ENCODINGS.items():
        for option in encoding_options(cls):
            asked = option_flag(name, option)
            if asked in given and name != cfg.encoding:
                raise ValueError(
                    f"--{asked.replace('_', '-')} is an option of the encoding {name!r}, and the encoding is "
                    f"{cfg.encoding!r}: give --encoding {name} too, or leave it out"
                )


def encoding_from_config(cfg, *, embed_dim: int, num_heads: int, **shared) -> Encoding:
    """Returns the encoding that the flags of ``cfg`` ask for; ValueError where they cannot be met.

    ``shared``: causal, layer and max_positions, as :class:`fairseq_lrpe.encodings.Encoding` takes them.
    """
    check_position(cfg, embed_dim, num_heads)
    shared |= {"num_heads": num_heads, "head_dim": embed_dim // num_heads}
    for option in encoding_options(ENCODINGS[cfg.encoding]):
        shared[option] = getattr(cfg, option_flag(cfg.encoding, option))
    return build_encoding(cfg.encoding, **shared)


def check_between(name: str, value, least: float, most: float = inf) -> None:
    """Refuses, by ValueError, a flag's number that is not from ``least`` to ``most``; what is none passes."""
    # fairseq leaves the numbers of some flags as text.
    if re.fullmatch(r"-?[\d.]+", str(value)) and not least <= float(value) <= most:
        between = f"at least {least}" if most == inf else f"from {least} to {most}"
        raise ValueError(f"--{name.replace('_', '-')} must be {between}, not {value}")


SIZES = (
    *((size, 1, inf) for size in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")),
    *((size, 1, inf) for size in ("input_dim", "output_dim", "max_positions")),
    *((size, 1, inf) for size in ("max_source_positions", "max_target_positions")),
    *((share, 0, 1) for share in ("dropout", "attention_dropout", "activation_dropout", "layerdrop")),
)
"""Sizes and shares of a model's parts, or of all of it: (name, least, most)."""


def check_part(cfg, part: str) -> None:
    """Refuses, by ValueError, flags that the layers of a model's "encoder" or "decoder" cannot meet."""
    for name, least, most in SIZES:
        for own in (f"{part}_{name}", name):
            check_between(own, getattr(cfg, own, None), least, most)
    width, heads = (getattr(cfg, f"{part}_{name}") for name in ("embed_dim", "attention_heads"))
    causal = part == "decoder"
    encoding_from_config(part_flags(cfg, part), embed_dim=width, num_heads=heads, causal=causal)


if __name__ == "__main__":
    _parser = ArgumentParser("fairseq-train --user-dir fairseq_lrpe")
    _parser.formatter_class = ArgumentDefaultsHelpFormatter
    gen_parser_from_dataclass(_parser, PositionConfig())
    _parser.print_help()
