"""Compares both attention modules with their formulas, and with fairseq's attention."""

import copy

import pytest
import torch
from fairseq.modules import MultiheadAttention
from support.tensors import assert_same, with_gradients

from fairseq_lrpe.attention.fairseq_adapter import (
    FairseqLinearAttention,
    FairseqSelfAttention,
    FairseqSoftmaxAttention,
    build_attention,
)
from fairseq_lrpe.config import PositionConfig
from fairseq_lrpe.encodings import build_encoding, softmax_scores
from fairseq_lrpe.encodings.transformations import decode_output, encode_values
from fairseq_lrpe.ops import FEATURE_MAPS

H, D, B, L = 2, 4, 3, 7
E = H * D
LRPE = {
    "type1": {"core": "unitary", "learn_theta": True, "learn_householder": True},
    "type2": {"core": "orthogonal", "learn_theta": True},
    "type7": {"core": "permutation", "rotation": "odd_even"},
}
ATTENTION = {"linear": FairseqLinearAttention, "softmax": FairseqSoftmaxAttention}


def build(attention, name, causal=True, dtype=torch.float64, d=D, **kwargs):
    """Returns a module whose parameters are all random."""
    shared = {"num_heads": H, "head_dim": d, "causal": causal, "max_positions": 20, "layers": 2}
    encoding = build_encoding("lrpe" if name in LRPE else name, **shared, **LRPE.get(name, {}))
    module = ATTENTION[attention](encoding, **kwargs)
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            if "proj" not in key:
                parameter.copy_(torch.rand_like(parameter) + 0.2)
            elif key.endswith("bias"):
                parameter.normal_()
    return module.to(dtype)


def linear(name, causal, norm, feature_map="elu", **options):
    return "linear", name, causal, {"linear_norm": norm, "feature_map": feature_map, **options}


KINDS = [  # attention, encoding, causal, options
    ("softmax", "none", True, {}),
    ("softmax", "none", False, {}),
    ("softmax", "rope", False, {}),
    ("softmax", "type1", True, {}),
    ("softmax", "type7", False, {}),
    ("softmax", "t5", True, {}),
    ("softmax", "t5", False, {}),
    ("softmax", "roper", True, {}),
    ("softmax", "rope_values", False, {}),
    linear("none", False, "denominator"),
    linear("rope", True, "denominator"),
    linear("type1", False, "denominator", "relu"),
    linear("type1", True, "layernorm"),
    linear("type2", False, "content", "softplus"),
    linear("type7", True, "content", "sigmoid"),
    linear("type7", False, "layernorm"),
    linear("rope", True, "content"),
    linear("alibi", True, "denominator"),
    linear("lrpe_decay", True, "layernorm"),
    linear("alibi", True, "content"),
    linear("roper", False, "denominator"),
    linear("roper", True, "layernorm"),
    linear("roper", True, "rmsnorm"),
    linear("rope", False, "rmsnorm", "identity"),
    linear("type1", True, "rmsnorm", "silu", scale_queries=True),
    linear("alibi", True, "layernorm", "identity", scale_queries=True),
    linear("none", False, "denominator", "softmax", scale_queries=True),
]


def definition(module, x, padding=None, linear_norm=None, feature_map="elu", scale_queries=False):
    encoding, length = module.encoding, len(x)
    q, k, v = (
        (x @ p.weight.T + p.bias).unflatten(-1, (H, D)).permute(1, 2, 0, 3)
        for p in (module.q_proj, module.k_proj, module.v_proj)
    )
    hidden = torch.zeros(B, length, dtype=torch.bool) if padding is None else padding
    distance = torch.arange(length)[:, None] - torch.arange(length)
    hidden = hidden[:, None, None] | (distance < 0) if module.causal else hidden[:, None, None]
    if linear_norm is None:
        weights = softmax_scores(encoding, *encoding(q, k)).masked_fill(hidden, -torch.inf).exp()
    else:
        q, k = FEATURE_MAPS[feature_map](q), FEATURE_MAPS[feature_map](k)
        q = q / D**0.5 if scale_queries else q
        decay = encoding.log_decay()
        decay = 1 if decay is None else torch.exp(decay[:, None, None] * distance)
        plain, (q, k) = decay * (q @ k.mT), encoding(q, k)
        weights = (decay * (q @ k.mT)).masked_fill(hidden, 0.0)
    o = weights @ encode_values(encoding, v)
    if linear_norm in (None, "denominator"):
        o = o / weights.sum(-1, keepdim=True).clamp(min=1e-6 if linear_norm else 0)
    elif linear_norm == "content":
        o = o / plain.masked_fill(hidden, 0.0).sum(-1, keepdim=True).clamp(min=1e-6)
    o = decode_output(encoding, o)
    if linear_norm == "rmsnorm":
        o = o / torch.sqrt((o**2).mean(-1, keepdim=True) + 1e-5) * module.norm.weight
    rows = o.permute(2, 0, 1, 3).flatten(2)
    if linear_norm == "layernorm":
        rows = rows - rows.mean(-1, keepdim=True)
        rows = rows / torch.sqrt((rows**2).mean(-1, keepdim=True) + 1e-5)
        rows = rows * module.norm.weight + module.norm.bias
    return rows @ module.out_proj.weight.T + module.out_proj.bias


@pytest.mark.parametrize("attention, name, causal, kwargs", KINDS)
@pytest.mark.parametrize("long", [False, True])
def test_outputs_and_gradients_match_definition(attention, name, causal, kwargs, long, monkeypatch):
    """In long sequences, some recompute the encoding in the backward pass, and others pad the values."""
    if long:
        monkeypatch.setattr("fairseq_lrpe.attention.linear._MIN_CHECKPOINT_KEYS", 0)
        monkeypatch.setattr("fairseq_lrpe.attention.softmax._MIN_FLASH_KEYS", 0)
    module = build(attention, name, causal, **kwargs)
    leaves = [torch.randn(L, B, E, dtype=torch.float64, requires_grad=True), *module.parameters()]
    padding = torch.zeros(B, L, dtype=torch.bool)
    padding[1, L - 2 :] = padding[2, 3] = True
    for mask in (None, padding):
        found = module(leaves[0], key_padding_mask=mask)[0]
        expected = definition(module, leaves[0], mask, **kwargs)
        assert_same(with_gradients(found, leaves), with_gradients(expected, leaves))


@pytest.mark.parametrize("norm", ["denominator", "content"])
def test_denominators_are_clamped_at_1e_6(norm):
    module = build("linear", "type7", linear_norm=norm)
    with torch.no_grad():
        module.q_proj.bias[:D] = -8
        module.q_proj.bias[D:] = -20
    x = torch.randn(L, B, E, dtype=torch.float64)
    features = module.feature_map(module.q_proj(x).unflatten(-1, (H, D))).sum(-1)
    assert (features[..., 0] > 1e-5).all() and (features[..., 1] < 1e-6).all()
    assert_same(module(x)[0], definition(module, x, linear_norm=norm))


@pytest.mark.parametrize("attention", ATTENTION)
def test_initialization_matches_fairseq(attention):
    theirs = MultiheadAttention(256, 4, self_attention=True)
    encoding = build_encoding("none", num_heads=4, head_dim=64, causal=True)
    ours, theirs = ATTENTION[attention](encoding).state_dict(), theirs.state_dict()
    assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in theirs.items()}
    for key, start in theirs.items():
        uniform = 0.02 if key.endswith("weight") else 0.15
        torch.testing.assert_close(ours[key].std(), start.std(), rtol=uniform, atol=0)
        torch.testing.assert_close(ours[key].abs().max(), start.abs().max(), rtol=uniform, atol=0)


def test_dropout_is_applied_in_training_only():
    module = build("softmax", "rope", dropout=0.5)
    x = torch.randn(L, B, E, dtype=torch.float64)
    assert not torch.allclose(module(x)[0], module(x)[0])
    module.eval()
    assert_same(module(x)[0], definition(module, x))


@pytest.mark.parametrize("name, causal, dtype, autocast", [
    ("none", False, torch.float16, False),
    ("rope", True, torch.float16, True),
    ("type1", False, torch.bfloat16, True),
    ("type2", True, torch.bfloat16, False),
])  # fmt: skip
def test_linear_attention_in_half_precision_on_2048_tokens(name, causal, dtype, autocast):
    own_dtype = torch.float32 if autocast else dtype
    module = build("linear", name, causal, own_dtype, d=16, linear_norm="layernorm")
    x = torch.randn(2048, 1, H * 16).to(own_dtype)
    with torch.autocast("cpu", dtype=dtype, enabled=autocast):
        out, _ = module(x)
    assert out.dtype == dtype and torch.isfinite(out).all()
    expected, _ = copy.deepcopy(module).float()(x.float())
    error = (out.float() - expected).norm() / expected.norm()
    assert error < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("linear_norm", ["denominator", "content"])
def test_denominator_near_zero_stays_in_float16_range(linear_norm, monkeypatch):
    module = build("linear", "rope", True, torch.float16, d=16, linear_norm=linear_norm)
    x = 3 * torch.randn(1000, 2, H * 16).half()
    merged = []
    monkeypatch.setattr(
        module, "merge_heads", lambda o: merged.append(o) or FairseqSelfAttention.merge_heads(module, o)
    )
    assert module(x)[0].isfinite().all()
    half = merged.pop()
    monkeypatch.setattr("fairseq_lrpe.attention.linear._limit_magnitude", lambda o: o)
    module(x)
    exact = merged.pop()

    largest = exact.abs().amax((1, 3))
    torch.testing.assert_close(half.abs().amax((1, 3)), largest.clamp(max=1024), rtol=1e-6, atol=0)
    beyond = largest > 2**16
    assert beyond.any() == (linear_norm == "denominator") and (largest < 1024).any()
    directions = torch.cosine_similarity(*(o.permute(0, 2, 1, 3).flatten(2) for o in (half, exact)), dim=-1)
    torch.testing.assert_close(directions, torch.ones_like(directions), rtol=0, atol=1e-6)


SIZES = {"embed_dim": E, "num_heads": H, "layer": 2, "max_positions": 33, "dropout": 0.25}


def test_build_attention_from_flags():
    cfg = PositionConfig(attention="linear", encoding="lrpe", linear_norm="content", feature_map="relu")
    cfg.lrpe_core = "mixed"
    linear = build_attention(cfg, causal=True, **SIZES)
    assert isinstance(linear, FairseqLinearAttention) and linear.linear_norm == "content"
    assert linear.causal and linear.encoding.core == "mixed"
    assert (linear.encoding.layer, linear.encoding.max_positions) == (2, 33)
    assert linear.feature_map(torch.tensor([-1.0, 2.0])).tolist() == [0, 2]
    softmax = build_attention(PositionConfig(attention="softmax", encoding="t5"), causal=False, **SIZES)
    assert isinstance(softmax, FairseqSoftmaxAttention) and softmax.dropout == 0.25 and not softmax.causal
    assert softmax.encoding.name == "t5"


@pytest.mark.parametrize("flags, message", [
    ({"attention": "quick"}, "'quick'.*linear, softmax"),
    ({"linear_norm": "batch"}, "'batch'.*denominator, layernorm, content, rmsnorm"),
    ({"feature_map": "tanh"}, "'tanh'.*elu, relu"),
    ({"feature_map": "identity"}, "'identity' has negative values.*use the linear norm layernorm or rmsnorm"),
    ({"feature_map": "silu", "linear_norm": "content"}, "'silu' has negative values.*instead of content"),
])  # fmt: skip
def test_invalid_flags_are_rejected(flags, message):
    with pytest.raises(ValueError, match=message):
        build_attention(PositionConfig(**flags), causal=True, **SIZES)


@pytest.mark.parametrize("attention", ATTENTION)
def test_padding_of_more_keys_than_queries_after_a_memory(attention):
    module, memory, x = build(attention, "rope"), *torch.randn(2, L, B, E, dtype=torch.float64)
    padding = torch.zeros(B, L, dtype=torch.bool)
    padding[1, :2] = True
    found, _ = module(x[4:], x, memory=memory, key_padding_mask=padding)
    padding = torch.cat([torch.zeros_like(padding), padding], dim=1)
    assert_same(found, module(x[4:], torch.cat([memory, x]), key_padding_mask=padding)[0])


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("padded", [[0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]], ids=str)
@torch.no_grad()
def test_calls_without_padding_need_no_mask_while_decoding(attention, padded):
    """Each of three calls has padding in a row of its own, or no mask."""
    module = build(attention, "rope")
    x = torch.randn(L, B, E, dtype=torch.float64)
    padding = torch.zeros(B, L, dtype=torch.bool)
    parts = [slice(0, 3), slice(3, 5), slice(5, L)]
    for number in padded:
        padding[number, parts[number].start] = True
    outputs = []
    state = None
    for number, part in enumerate(parts):
        mask = padding[:, part] if number in padded else None
        out, state = module(x[part], key_padding_mask=mask, state=state, return_state=True)
        outputs.append(out)
    expected, _ = module(x, key_padding_mask=padding)
    assert_same(torch.cat(outputs)[~padding.T], expected[~padding.T])


@pytest.mark.parametrize("attention", ATTENTION)
def test_fewer_keys_than_queries_are_rejected(attention):
    x = torch.randn(5, B, E, dtype=torch.float64)
    with pytest.raises(ValueError, match="at least as many keys as queries, got 4 and 5"):
        build(attention, "rope")(x, x[1:])
