"""Attention modules in torch's TransformerEncoderLayer and TransformerDecoderLayer."""

import contextlib
import re

import pytest
import torch
from support.tensors import assert_same, randn
from torch import nn

from fairseq_lrpe.attention import (
    LinearAttention,
    MultiheadLinearAttention,
    MultiheadSoftmaxAttention,
    SoftmaxAttention,
)

B, L, E, H = 3, 7, 16, 2
PLAIN = {MultiheadLinearAttention: LinearAttention, MultiheadSoftmaxAttention: SoftmaxAttention}
both = pytest.mark.parametrize("attention", PLAIN, ids=lambda cls: cls.__name__)
NO_GRADIENTS = {"grad": contextlib.nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}


def layer_of(attention, causal=False, **options):
    layer = nn.TransformerEncoderLayer(E, H, 32, dropout=0.0, batch_first=True, **options)
    layer.self_attn = attention(E, H, "lrpe", causal=causal)
    return layer.double().eval()


def definition(layer, x, padding=None):
    cls = PLAIN[type(layer.self_attn)]
    plain = cls(E, H, layer.self_attn.encoding).double()
    plain.load_state_dict(layer.self_attn.state_dict())
    x = layer.norm1(x + plain(x, key_padding_mask=padding))
    return layer.norm2(x + layer.linear2(layer.linear1(x).relu()))


@both
@pytest.mark.parametrize("mode, causal", [("grad", True), ("no_grad", False), ("inference", True)])
def test_encoder_layers_use_the_encoding(attention, mode, causal):
    """In inference, torch's fused kernel would compute attention from other parameters."""
    layer, x = layer_of(attention, causal), randn(B, L, E)
    mask = nn.Transformer.generate_square_subsequent_mask(L, dtype=torch.float64) if causal else None
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    padding = torch.zeros(B, L, dtype=torch.bool)
    padding[1, 5:] = True
    with NO_GRADIENTS[mode]():
        for given in (None, padding):
            seen = slice(None) if given is None else ~padding
            expected = definition(layer, x, given)
            assert_same(layer(x, mask, given)[seen], expected[seen])
            expected = definition(encoder.layers[1], expected, given)
            assert_same(encoder(x, mask, given)[seen], expected[seen])
            for other in (None, mask.isneginf()) if causal else ():
                assert_same(layer(x, other, given)[seen], definition(layer, x, given)[seen])


@both
@pytest.mark.parametrize("mode", NO_GRADIENTS)
def test_attention_replaced_after_the_encoder_was_created(attention, mode):
    """torch then passes nested tensors, unless gradients are computed or there is no padding."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(E, H, 32, batch_first=True), 1).double().eval()
    layer = encoder.layers[0]
    layer.self_attn = attention(E, H, "lrpe", causal=False).double()
    x, padding = randn(B, L, E), torch.zeros(B, L, dtype=torch.bool)
    padding[1, 5:] = True
    with NO_GRADIENTS[mode]():
        assert_same(encoder(x), definition(layer, x))
        if mode == "grad":
            found = encoder(x, src_key_padding_mask=padding)
            assert_same(found[~padding], definition(layer, x, padding)[~padding])
        else:
            with pytest.raises(ValueError, match="pass enable_nested_tensor=False"):
                encoder(x, src_key_padding_mask=padding)


@both
def test_decoder_layer_trains(attention):
    layer = nn.TransformerDecoderLayer(E, H, 32, dropout=0.0, batch_first=True)
    layer.self_attn = attention(E, H, "rope", causal=True)
    x = torch.randn(B, L, E, requires_grad=True)
    out = layer(x, torch.randn(B, 4, E), tgt_mask=nn.Transformer.generate_square_subsequent_mask(L))
    [gradient] = torch.autograd.grad((out[:, 2] @ torch.randn(E)).sum(), x, retain_graph=True)
    assert gradient[:, 3:].eq(0).all() and gradient[:, :3].ne(0).any()
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


X = torch.randn(B, L, E)
CAUSAL = torch.ones(L, L, dtype=torch.bool).triu(1)
MASK = "attn_mask must be the causal mask (length, length)"
NOT_CAUSAL = "this module is not causal: omit attn_mask and is_causal, or create it with causal"


@pytest.mark.parametrize("causal, arguments, message", [
    (True, {"key": X.clone()}, "only self-attention is supported"),
    (True, {"value": X.clone()}, "only self-attention is supported"),
    (True, {"need_weights": True}, "attention weights are not computed: pass need_weights=False"),
    (True, {"attn_mask": CAUSAL.T}, MASK),
    (True, {"attn_mask": CAUSAL[1:, 1:]}, MASK),
    (True, {"attn_mask": CAUSAL.expand(B * H, L, L)}, MASK),
    (True, {"attn_mask": -1.0 * CAUSAL}, "attn_mask must be bool, True at masked positions, or contain only"),
    (False, {"attn_mask": CAUSAL}, NOT_CAUSAL),
    (False, {"is_causal": True}, NOT_CAUSAL),
    (False, {"key_padding_mask": torch.ones(B, L)}, "key_padding_mask must be bool, True at masked"),
])  # fmt: skip
def test_unsupported_arguments(causal, arguments, message):
    module = MultiheadLinearAttention(E, H, "rope", causal=causal)
    with pytest.raises(ValueError, match=re.escape(message)):
        module(**{"query": X, "key": X, "value": X, **arguments})


def test_torch_has_the_same_arguments():
    theirs, ours = (cls.forward.__code__ for cls in (nn.MultiheadAttention, MultiheadLinearAttention))
    assert theirs.co_varnames[: theirs.co_argcount] == ours.co_varnames[: ours.co_argcount]
