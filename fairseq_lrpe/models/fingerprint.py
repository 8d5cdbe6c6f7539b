"""Fingerprint of a model's method, which prevents loading a checkpoint into a model of another method."""

import json

import torch
from torch import nn

from fairseq_lrpe.config import option_flag
from fairseq_lrpe.config_parts import method_flags
from fairseq_lrpe.encodings import ENCODINGS, encoding_options
from fairseq_lrpe.utils.errors import UserError


class MethodFingerprint(nn.Module):
    """Module that stores the flags of a model's method, and rejects a state dict with different flags.

    Several methods have the same parameters, so loading weights into a model of another method would go
    unnoticed. The flags are stored as JSON in an integer buffer, which checkpoint averaging does not change.

    If a model was trained before an option of its encoding existed, the option is missing in its state dict
    and counts as the default.
    """

    def __init__(self, cfg):
        super().__init__()
        self.defaults = _default_options(cfg.encoding)
        if cfg.encoding_interval:
            self.defaults |= _default_options(cfg.interval_encoding)
        encoded = json.dumps(method_flags(cfg), sort_keys=True).encode()
        self.register_buffer("version", torch.tensor(list(encoded)))

    def _load_from_state_dict(self, state_dict, prefix, *args):
        stored = state_dict.get(f"{prefix}version")
        if stored is None:  # as for any missing buffer, an error unless strict=False
            return super()._load_from_state_dict(state_dict, prefix, *args)
        if self.defaults | _flags(stored) != _flags(self.version):
            raise UserError(
                f"the checkpoint's method ({_format(stored)}) differs from the model's "
                f"({_format(self.version)}): pass the --arch and flags of the checkpoint, or a new --save-dir"
            )
        super()._load_from_state_dict({f"{prefix}version": self.version}, prefix, *args)


def without_encoding(state_dict: dict, model: nn.Module) -> dict:
    """Returns a state dict without the parameters and flags of encodings in attention.

    A fingerprint in the state dict is replaced by that of the model if they differ in the encoding only.

    Args:
        state_dict: the state dict of a model with any encoding.
        model: a model without an encoding.
    """
    kept = {key: value for key, value in state_dict.items() if ".encoding." not in key}
    for name, module in model.named_modules():
        key = f"{name}.version"
        if isinstance(module, MethodFingerprint) and key in kept:
            stored = _flags(kept[key])
            encodings = {stored["encoding"], stored.get("interval_encoding", "none")}
            dropped = {"encoding", "encoding_interval", "interval_encoding", "encoding_window"}
            for encoding in encodings & set(ENCODINGS):
                dropped |= _default_options(encoding).keys()
            rest = {flag: value for flag, value in stored.items() if flag not in dropped}
            if rest | {"encoding": "none"} == _flags(module.version):
                kept[key] = module.version
    return kept


def _default_options(encoding):
    """Returns {flag: default} of the options of an encoding."""
    options = encoding_options(ENCODINGS[encoding])
    return {option_flag(encoding, name): value for name, value in options.items()}


def _flags(version):
    return json.loads(bytes(version.tolist()))


def _format(version):
    return ", ".join(f"{name} {value}" for name, value in _flags(version).items())
