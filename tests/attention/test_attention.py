"""Compares both attention modules with loops over sentences, heads, queries and keys."""

import copy
import itertools
import math

import pytest
import torch
from fairseq.modules import MultiheadAttention
from tensors import assert_same, with_gradients
from torch import nn
from torch.utils._pytree import tree_leaves

from fairseq_lrpe.attention.fairseq_adapter import (
    FairseqLinearAttention,
    FairseqSelfAttention,
    FairseqSoftmaxAttention,
    build_attention,
)
from fairseq_lrpe.config import PositionConfig
from fairseq_lrpe.encodings import ENCODINGS, START, Encoding, build_encoding

H, D, B, L = 2, 4, 3, 7
E = H * D
PHI = {
    "elu": lambda x: torch.where(x > 0, x + 1, torch.exp(x)),
    "relu": lambda x: (x + x.abs()) / 2,
    "exp": lambda x: math.e**x,
    "softplus": lambda x: torch.log(1 + torch.exp(x)),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
}


class DistanceBias(Encoding):
    """Adds a learned value per head and distance to the scores."""

    def __init__(self, **shared):
        super().__init__(**shared)
        self.weight = nn.Parameter(torch.randn(self.num_heads, 2 * self.max_positions + 1))

    def bias(self, q, k, context):
        i = torch.arange(q.size(2))[:, None] + context.q_offset
        return self.weight[:, i - torch.arange(k.size(2)) + self.max_positions]


class Decaying(Encoding):
    """Weights pairs by γ_h^(i-j)."""

    def __init__(self, **shared):
        super().__init__(**shared)
        self.rate = nn.Parameter(torch.ones(self.num_heads))

    def log_decay(self, context=START):
        return -self.rate


class RotatingValues(Encoding):
    """o_i = Σ_j w_ij R(j-i) v_j: rotates values and outputs by 0.3 radians per position."""

    def rotate(self, x, offset, sign):
        angle = sign * 0.3 * torch.arange(offset, offset + x.size(2), dtype=x.dtype)[:, None]
        cos, sin = torch.cos(angle), torch.sin(angle)
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)

    def encode_values(self, v, context=START):
        return self.rotate(v, context.k_offset, 1)

    def decode_output(self, o, context=START, weights=None):
        return self.rotate(o, context.q_offset, -1)


CLASSES = {"distance_bias": DistanceBias, "decaying": Decaying, "rotating_values": RotatingValues}
CLASSES |= {"none": ENCODINGS["none"], "rope": ENCODINGS["rope"]}
LRPE = {
    "type1": {"core": "unitary", "learn_theta": True, "learn_householder": True},
    "type2": {"core": "orthogonal", "learn_theta": True},
    "type7": {"core": "permutation", "rotation": "odd_even"},
}
ATTENTION = {"linear": FairseqLinearAttention, "softmax": FairseqSoftmaxAttention}


def build(attention, name, causal=True, dtype=torch.float64, d=D, **kwargs):
    """Returns a module whose parameters are all random."""
    shared = {"num_heads": H, "head_dim": d, "causal": causal, "max_positions": 20}
    encoding = CLASSES.get(name, ENCODINGS["lrpe"])(**shared, **LRPE.get(name, {}))
    module = ATTENTION[attention](encoding, **kwargs)
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            if "proj" not in key:
                parameter.copy_(torch.rand_like(parameter) + 0.2)
            elif key.endswith("bias"):
                parameter.normal_()
    return module.to(dtype)


def linear(name, causal, norm, feature_map="elu"):
    return "linear", name, causal, {"linear_norm": norm, "feature_map": feature_map}


KINDS = [  # attention, encoding, causal, options
    ("softmax", "none", True, {}),
    ("softmax", "rope", False, {}),
    ("softmax", "type1", True, {}),
    ("softmax", "type7", False, {}),
    ("softmax", "distance_bias", True, {}),
    ("softmax", "distance_bias", False, {}),
    ("softmax", "rotating_values", True, {}),
    linear("none", False, "denominator"),
    linear("rope", True, "denominator"),
    linear("type1", False, "denominator", "relu"),
    linear("type1", True, "layernorm"),
    linear("type2", False, "content", "softplus"),
    linear("type7", True, "content", "sigmoid"),
    linear("type7", False, "layernorm"),
    linear("rope", True, "content", "exp"),
    linear("decaying", True, "denominator"),
    linear("decaying", True, "layernorm"),
    linear("decaying", True, "content"),
    linear("rotating_values", False, "denominator"),
    linear("rotating_values", True, "layernorm"),
]


def definition(module, name, x, padding=None, norm=None, feature_map="elu"):
    """Computes (L, B, E) -> (L, B, E) from the module's weights, encoded q and k, and the formulas."""
    causal, encoding, (length, batch, _) = module.causal, module.encoding, x.shape
    q, k, v = (
        (x @ p.weight.T + p.bias).unflatten(-1, (H, D)).permute(1, 2, 0, 3)
        for p in (module.q_proj, module.k_proj, module.v_proj)
    )
    if norm is not None:
        q, k = PHI[feature_map](q), PHI[feature_map](k)
    encoded_q, encoded_k = encoding(q, k)
    rows = torch.zeros(length, batch, E, dtype=x.dtype)
    for b, h, i in itertools.product(range(batch), range(H), range(length)):
        top, bottom, content = 0, 0, 0
        for j in range(length):
            if (causal and j > i) or (padding is not None and padding[b, j]):
                continue
            weight, plain = encoded_q[b, h, i] @ encoded_k[b, h, j], q[b, h, i] @ k[b, h, j]
            if norm is None:
                weight = weight / math.sqrt(D)
                weight = torch.exp(
                    weight + (encoding.weight[h, 20 + i - j] if name == "distance_bias" else 0)
                )
            elif name == "decaying":
                decay = torch.exp(encoding.log_decay()[h] * (i - j))
                weight, plain = decay * weight, decay * plain
            value = v[b, h, j]
            if name == "rotating_values":
                cos, sin = math.cos(0.3 * (j - i)), math.sin(0.3 * (j - i))
                matrix = torch.tensor([[cos, -sin], [sin, cos]], dtype=v.dtype)
                value = torch.cat([matrix @ v[b, h, j, 2 * t : 2 * t + 2] for t in range(D // 2)])
            top, bottom, content = top + weight * value, bottom + weight, content + plain
        if norm in (None, "denominator"):
            top = top / (bottom if norm is None or bottom > 1e-6 else 1e-6)
        elif norm == "content":
            top = top / content.clamp(min=1e-6)
        rows[i, b, h * D : (h + 1) * D] = top
    if norm == "layernorm":
        rows = rows - rows.mean(-1, keepdim=True)
        rows = rows / torch.sqrt((rows**2).mean(-1, keepdim=True) + 1e-5)
        rows = rows * module.norm.weight + module.norm.bias
    return rows @ module.out_proj.weight.T + module.out_proj.bias


every = pytest.mark.parametrize("attention, name, causal, kwargs", KINDS)


@every
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
    options = kwargs.get("linear_norm"), kwargs.get("feature_map", "elu")
    for mask in (None, padding):
        found = module(leaves[0], key_padding_mask=mask)[0]
        expected = definition(module, name, leaves[0], mask, *options)
        assert_same(with_gradients(found, leaves), with_gradients(expected, leaves))


@pytest.mark.parametrize("norm", ["denominator", "content"])
def test_denominators_are_clamped_at_1e_6(norm):
    module = build("linear", "type7", linear_norm=norm, feature_map="exp")
    with torch.no_grad():
        module.q_proj.bias[:D] = -8
        module.q_proj.bias[D:] = -20
    x = torch.randn(L, B, E, dtype=torch.float64)
    features = module.feature_map(module.q_proj(x).unflatten(-1, (H, D))).sum(-1)
    assert (features[..., 0] > 1e-5).all() and (features[..., 1] < 1e-6).all()
    assert_same(module(x)[0], definition(module, "type7", x, norm=norm, feature_map="exp"))


@pytest.mark.parametrize("name, norm", [("none", None), ("decaying", "content"), ("type1", "layernorm")])
def test_state(name, norm):
    """Reordered beams match full sequences. The size of the state is constant in linear attention."""
    module = build("linear", name, linear_norm=norm) if norm else build("softmax", name)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            sizes = check_reordered_prefixes(module)
        assert len(set(sizes)) == (1 if norm else len(sizes))


def check_reordered_prefixes(module):
    """Returns the number of elements per row of the state after each step."""
    x, state, sizes = torch.randn(3, B, E, dtype=torch.float64), {}, []
    padding = torch.zeros(B, 3, dtype=torch.bool)
    padding[1, 0] = True
    module(x, key_padding_mask=padding, incremental_state=state)
    # Reordering twice between two steps is allowed.
    for orders in ([[2, 0, 0]], [[1, 1, 2]], [[0, 2, 1, 1, 0]], [[1, 2, 0, 4, 4], [3, 0]]):
        for order in map(torch.tensor, orders):
            module.reorder_incremental_state(state, order)
            x, padding = x[:, order], padding[order]
        token = torch.randn(1, x.size(1), E, dtype=torch.float64)
        x, padding = torch.cat([x, token]), torch.nn.functional.pad(padding, (0, 1))
        out, _ = module(token, incremental_state=state)
        assert_same(out, module(x, key_padding_mask=padding)[0][-1:])
        numbers = sum(leaf.numel() for leaf in tree_leaves(state) if torch.is_tensor(leaf))
        sizes.append(numbers / x.size(1))
    return sizes


@pytest.mark.parametrize("attention", ATTENTION)
def test_each_layer_has_its_own_state(attention):
    first, second = build(attention, "rope"), build(attention, "rope")
    x, state = torch.randn(L, B, E, dtype=torch.float64), {}
    first.reorder_incremental_state(state, torch.tensor([1, 0]))
    assert not state
    expected = second(first(x)[0])[0]
    for i in range(L):
        token, _ = first(x[i : i + 1], incremental_state=state)
        token, _ = second(token, incremental_state=state)
        assert_same(token, expected[i : i + 1])


def fairseq_and_ours(causal, embed_dim=E, heads=H, **kwargs):
    theirs = MultiheadAttention(embed_dim, heads, self_attention=True, **kwargs)
    encoding = build_encoding("none", num_heads=heads, head_dim=embed_dim // heads, causal=causal)
    return theirs, FairseqSoftmaxAttention(encoding, **kwargs)


@pytest.mark.parametrize("causal, padded", [(False, True), (True, False), (True, True)])
def test_softmax_without_encoding_matches_fairseq(causal, padded):
    theirs, ours = fairseq_and_ours(causal)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
    ours.load_state_dict(theirs.state_dict())
    padding = None
    if padded:
        padding = torch.zeros(B, L, dtype=torch.bool)
        padding[0, 5:] = padding[2, 2:] = True
    hidden = torch.full((L, L), -math.inf, dtype=torch.float64).triu(1) if causal else None
    x, results = torch.randn(L, B, E, dtype=torch.float64, requires_grad=True), []
    for module in (ours.double(), theirs.double()):
        options = {"key_padding_mask": padding, "attn_mask": hidden, "need_weights": False}
        out, _ = module(query=x, key=x, value=x, incremental_state=None, **options)
        parameters = dict(module.named_parameters())
        results.append(with_gradients(out, [x, *(parameters[name] for name in sorted(parameters))]))
    assert_same(*results)


@pytest.mark.parametrize("attention", ATTENTION)
def test_initialization_matches_fairseq(attention):
    theirs, _ = fairseq_and_ours(True, 256, 4)
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
    assert_same(module(x)[0], definition(module, "rope", x))


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
    """All heads of a token whose output exceeds float16 are scaled together; other tokens are unchanged."""
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
    ({"encoding": "magic"}, "'magic'.*lrpe methods --flags"),
    ({"linear_norm": "batch"}, "'batch'.*denominator, layernorm, content"),
    ({"feature_map": "tanh"}, "'tanh'.*elu, relu"),
    ({"encoding": "t5"}, "'t5'.*use softmax attention, or.*rope"),
])  # fmt: skip
def test_invalid_flags_are_rejected(flags, message):
    with pytest.raises(ValueError, match=message):
        build_attention(PositionConfig(**flags), causal=True, **SIZES)


@pytest.mark.parametrize("attention", ATTENTION)
def test_fewer_keys_than_queries_are_rejected(attention):
    x = torch.randn(5, B, E, dtype=torch.float64)
    with pytest.raises(ValueError, match="at least as many keys as queries, got 4 and 5"):
        build(attention, "rope")(x, x[1:])
