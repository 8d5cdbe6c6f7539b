"""State dicts are only loaded into models of the same method."""

import json

import pytest
import torch

from fairseq_lrpe.config import PositionConfig
from fairseq_lrpe.models.fingerprint import MethodFingerprint
from fairseq_lrpe.utils.errors import UserError


def fingerprint(**flags):
    cfg = PositionConfig()
    for name, value in {"attention": "softmax", **flags}.items():
        setattr(cfg, name, value)
    return MethodFingerprint(cfg)


def without(flag, **flags):
    """Returns the state dict of a method from before the flag existed."""
    stored = json.loads(bytes(fingerprint(**flags).version.tolist()))
    del stored[flag]
    return {"version": torch.tensor(list(json.dumps(stored, sort_keys=True).encode()))}


@pytest.mark.parametrize("flags", [{"encoding": "shaw", "shaw_k": 5}, {"encoding": "t5"}], ids=str)
def test_other_methods_are_rejected(flags):
    with pytest.raises(UserError, match=r"checkpoint's method \(.*shaw_k 4.*\) differs from the model"):
        fingerprint(**flags).load_state_dict(fingerprint(encoding="shaw", shaw_k=4).state_dict())


def test_missing_option_has_its_default():
    state = without("kerple_power", encoding="kerple")
    model = fingerprint(encoding="kerple")
    model.load_state_dict(state)
    assert model.version.equal(fingerprint(encoding="kerple").version)
    with pytest.raises(UserError, match=r"differs from the model's \(.*kerple_power True"):
        fingerprint(encoding="kerple", kerple_power=True).load_state_dict(state)
    with pytest.raises(UserError, match="differs from the model"):
        fingerprint(encoding="t5").load_state_dict(state)
