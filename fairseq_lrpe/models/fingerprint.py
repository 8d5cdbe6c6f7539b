"""Fingerprint of a model's method, which prevents loading a checkpoint into a model of another method."""

import json

import torch
from torch import nn

from fairseq_lrpe.config import method_flags


class MethodFingerprint(nn.Module):
    """Stores the flags of a model's method in its state dict, and rejects a state dict with different flags.

    Several methods have the same parameters, so loading weights into a model of another method would go
    unnoticed. The flags are stored as JSON in an integer buffer, which checkpoint averaging does not change.
    The buffer's name contains "version" to exclude it from fairseq's exponential moving average.
    """

    def __init__(self, cfg):
        super().__init__()
        encoded = json.dumps(method_flags(cfg), sort_keys=True).encode()
        self.register_buffer("version", torch.tensor(list(encoded)))

    def _load_from_state_dict(self, state_dict, prefix, *args):
        stored = state_dict.get(f"{prefix}version")
        if stored is None:
            raise SystemExit(
                "fairseq_lrpe: the checkpoint has no method, so it is not of a model of fairseq_lrpe: pass "
                "another --restore-file, or a new --save-dir to train from scratch"
            )
        if not torch.equal(stored.cpu(), self.version.cpu()):
            raise SystemExit(
                f"fairseq_lrpe: the checkpoint is of another method ({_format(stored)}) than the model "
                f"({_format(self.version)}): pass the --arch and flags of the checkpoint, or a new --save-dir"
            )
        super()._load_from_state_dict(state_dict, prefix, *args)


def _format(version):
    flags = json.loads(bytes(version.tolist()))
    return ", ".join(f"{name} {value}" for name, value in flags.items())
