"""Attention computes on the device of its inputs, and waits for no copy and no value."""

import pytest
import torch
from support.tensors import assert_same, with_gradients
from support.transfers import Transfers

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention
from fairseq_lrpe.encodings import ENCODINGS, TableEncoding, table

CASES = [(SoftmaxAttention, name) for name in ENCODINGS]
CASES += [(LinearAttention, name) for name, cls in ENCODINGS.items() if cls.decomposable]
IDS = [f"{name}-{cls.__name__}" for cls, name in CASES]


@pytest.mark.parametrize("cls, name", CASES, ids=IDS)
def test_no_transfers(cls, name):
    """Constants are computed on the device while a mode is active, as in torch.compile."""
    module = cls(32, 4, name, causal=True, layer=1, layers=4, max_positions=1024).half().to("meta")
    x = torch.empty(2, 600, 32, device="meta", dtype=torch.half)
    with Transfers() as transfers:
        module(x)
    assert not transfers.found


TABLES = [name for name, cls in ENCODINGS.items() if issubclass(cls, TableEncoding)]


@pytest.mark.parametrize("name", TABLES)
def test_queries_and_keys_are_encoded_together(name, monkeypatch):
    """On a GPU, one call encodes both."""
    module = SoftmaxAttention(32, 4, name, causal=True, layer=1, layers=4, max_positions=64).double()
    x = torch.randn(2, 9, 32, dtype=torch.float64, requires_grad=True)
    leaves = [x, *module.parameters()]
    found = []
    for starts_kernels in (False, True):
        monkeypatch.setattr(table, "_starts_kernels", lambda x, answer=starts_kernels: answer)
        found.append(with_gradients([module(x)], leaves))
    assert_same(*found)
