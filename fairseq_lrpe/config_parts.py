"""Flags of the parts and layers of a model, and those that identify its method."""

from argparse import Namespace
from dataclasses import fields

from omegaconf import DictConfig

from fairseq_lrpe.config import PositionConfig, option_flag
from fairseq_lrpe.encodings import ENCODINGS, encoding_options

PLACEMENT_FLAGS = ("encoder_attention", "decoder_attention", "encoding_in", "image_positions")
"""Flags of some families that select a part's attention, the parts with an encoding, or patch positions."""


def has_flag(cfg, name: str) -> bool:
    """Returns whether a configuration has a flag. In omegaconf 2.0, a missing flag reads as None."""
    return name in cfg if isinstance(cfg, DictConfig) else hasattr(cfg, name)


def part_config(cfg, part: str):
    """Returns the flags of attention and positions for a ``part`` of a model, "encoder" or "decoder"."""
    if not has_flag(cfg, "encoding_in"):
        return cfg  # the model has only one part
    flags = {f.name: getattr(cfg, f.name) for f in fields(PositionConfig)}
    flags["attention"] = getattr(cfg, f"{part}_attention") or cfg.attention
    if cfg.encoding_in not in (part, "both"):
        flags |= {"encoding": "none", "rope_scaling": "", "encoding_interval": 0, "encoding_window": 0}
    if part == "decoder":  # it generates texts whose lengths are not known
        flags["randomized_positions"] = 0
    return Namespace(**flags)


def layer_config(cfg, layer: int):
    """Returns the flags of a layer, counted from 1, which differ from those of a part in its encoding."""
    if not has_other_encoding(cfg, layer):
        return cfg
    flags = {f.name: getattr(cfg, f.name) for f in fields(PositionConfig)}
    return Namespace(**flags | {"encoding": cfg.interval_encoding, "rope_scaling": "", "encoding_window": 0})


def has_other_encoding(cfg, layer: int) -> bool:
    """Returns whether a layer, counted from 1, has --interval-encoding in place of --encoding."""
    return bool(cfg.encoding_interval) and layer % cfg.encoding_interval == 0


def method_flags(cfg) -> dict:
    """Returns {flag: value} of the flags that identify a method, without options of other encodings."""
    names = {"attention", "encoding", "token_positions"}
    for option in encoding_options(ENCODINGS[cfg.encoding]):
        names.add(option_flag(cfg.encoding, option))
    placement = {name: getattr(cfg, name) for name in PLACEMENT_FLAGS if has_flag(cfg, name)}
    if "linear" in (cfg.attention, *placement.values()):
        names |= {"linear_norm", "feature_map"}
        if getattr(cfg, "scale_queries", False):  # not stored in checkpoints of models without it
            names.add("scale_queries")
        if getattr(cfg, "linear_rule", "additive") != "additive":  # likewise
            names.add("linear_rule")
    if getattr(cfg, "encoding_interval", 0):  # likewise
        names |= {"encoding_interval", "interval_encoding", "encoding_window"}
        for option in encoding_options(ENCODINGS[cfg.interval_encoding]):
            names.add(option_flag(cfg.interval_encoding, option))
    if getattr(cfg, "mask_decoder", False):  # not stored in checkpoints of models without it
        placement["mask_decoder"] = True
    if count := getattr(cfg, "randomized_positions", 0):  # likewise
        placement["randomized_positions"] = count
    flags = {f.name: getattr(cfg, f.name) for f in fields(PositionConfig) if f.name in names}
    return flags | placement
