"""Keeps a model's method in its own state dict, so that weights never continue under another method."""

import json

import torch
from torch import nn

from fairseq_lrpe.config import position_flags


class MethodStamp(nn.Module):
    """Holds the position flags of ``cfg`` and refuses a state dict that was made with others.

    Several methods have the same parameters: loaded into one another they would go on silently. The flags
    are JSON in an integer buffer, which checkpoint averaging keeps; "version" in its name keeps fairseq's
    exponential moving average from averaging it.
    """

    def __init__(self, cfg):
        super().__init__()
        self.register_buffer("version", _encode(position_flags(cfg)))

    def _load_from_state_dict(self, state_dict, prefix, *args):
        stored = state_dict.get(f"{prefix}version")
        if stored is None:
            raise SystemExit(
                "fairseq_lrpe: the checkpoint carries no method, so it is not one of fairseq_lrpe's models: "
                "give --restore-file or --save-dir one that is, or a new --save-dir to start afresh"
            )
        if not torch.equal(stored.cpu(), self.version.cpu()):
            raise SystemExit(
                f"fairseq_lrpe: the checkpoint is of another method ({_show(stored)}) than the model "
                f"({_show(self.version)}): give the same --arch and flags, or a new --save-dir"
            )
        super()._load_from_state_dict(state_dict, prefix, *args)


def _encode(flags):
    return torch.tensor(list(json.dumps(flags, sort_keys=True).encode()))


def _show(stamp):
    flags = json.loads(bytes(stamp.tolist()))
    return ", ".join(f"{name} {value}" for name, value in flags.items())
