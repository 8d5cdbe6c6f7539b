"""Attention weights by their definition, compared with the attention modules."""

import pytest
import torch
from support.tensors import assert_same, randn

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention
from fairseq_lrpe.attention.weights import attention_weights
from fairseq_lrpe.encodings import Context
from fairseq_lrpe.ops.position_index import PositionIndex

CASES = [(LinearAttention, name, {"linear_norm": "content"}) for name in ("rope", "alibi", "xpos", "per")]
CASES += [(LinearAttention, "alibi", {}), (SoftmaxAttention, "xpos", {})]
POSITIONS = torch.tensor([0, 2, 3, 8, 9, 30, 31])


@pytest.mark.parametrize("cls, name, options", CASES)
@pytest.mark.parametrize("positions", [0, PositionIndex(POSITIONS, POSITIONS, 40)], ids=["all", "some"])
def test_modules_sum_the_values_with_these_weights(cls, name, options, positions):
    module = cls(16, 2, name, causal=True, **options).double().eval()
    q, k, v = randn(3, 2, 2, len(POSITIONS), 8)
    context = Context(positions, positions)
    weights = attention_weights(module, q, k, context)
    assert_same(weights @ v, module.attend(q, k, v, context, None, False)[0])
