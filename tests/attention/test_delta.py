"""Linear attention with delta rules against a loop over the definition, with each encoding it supports."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from support.pairwise_scores import in_parts, rotated
from support.tensors import assert_same, randn, randomized, with_gradients
from support.tiny_models import build_small

from fairseq_lrpe.attention import DeltaAttention, LinearAttention, MultiheadDeltaAttention, SoftmaxAttention
from fairseq_lrpe.attention.fairseq_adapter import build_attention
from fairseq_lrpe.attention.weights import attention_weights
from fairseq_lrpe.config import PositionConfig
from fairseq_lrpe.config_parts import method_flags
from fairseq_lrpe.encodings import ENCODINGS, START, InputsMixin, build_encoding
from fairseq_lrpe.encodings.delta_rules import check_delta_rule
from fairseq_lrpe.encodings.rotation import scale_rotations
from fairseq_lrpe.experiments.inference.load import _scale_rotations
from fairseq_lrpe.methods import METHODS, architecture, check_method
from fairseq_lrpe.ops.position_index import PositionIndex
from fairseq_lrpe.ops.rope_scaling import RopeScaling
from fairseq_lrpe.utils.errors import UserError

H, D = 2, 4
E = H * D
RULES = ["delta", "gated_delta", "kda"]
ROTATIONS = {
    "none": ("none", {}),
    "rope": ("rope", {}),
    "unitary": ("lrpe", {"core": "unitary", "learn_theta": True}),
    "orthogonal": ("lrpe", {"core": "orthogonal", "learn_theta": True, "learn_householder": True}),
}
OTHERS = {
    "mixed": ("lrpe", {"core": "mixed"}),
    "fft": ("lrpe", {"core": "unitary", "rotation": "fft"}),
    "permutation": ("lrpe", {"core": "permutation"}),
    "p_rope": ("p_rope", {"p": 0.5}),
    "rope_mixed": ("rope_mixed", {}),
    "liere": ("liere", {}),
    "selective_rope": ("selective_rope", {"gate": True}),
}
CASES = [
    (rule, case)
    for case in (*ROTATIONS, *OTHERS)
    for rule in RULES
    if rule != "kda" or case not in ("permutation", "liere")
]
every_case = pytest.mark.parametrize("rule, case", CASES)


def build(rule, case, cls=DeltaAttention, **options):
    """Returns a module in float64 whose parameters are random, and large enough to matter."""
    torch.manual_seed(0)
    name, own = (ROTATIONS | OTHERS)[case]
    module = cls(E, H, name, causal=True, rule=rule, **own, **options)
    return randomized(module, 0.6).double().eval()


def householder(x, v):
    return x - 2 * v * (v @ x) / (v @ v)


def encoded(module, case, x, position):
    """Returns a query or key (D,) at a position."""
    encoding = module.encoding
    if case == "none":
        return x
    if case == "rope":
        return rotated(x, position * 10000 ** (-2 * torch.arange(D // 2, dtype=x.dtype) / D))
    x = householder(x, encoding.v)
    angles = position * encoding.theta
    if case == "orthogonal":
        return rotated(x, angles)
    return torch.cat([x * angles.cos(), x * angles.sin()])


def decay(module, case, x, h):
    """Returns the decay of each encoded feature."""
    gates = module.gates
    width = 2 * D if case == "unitary" else D
    if module.rule == "delta":
        return torch.ones(width, dtype=x.dtype)
    rate = gates.log_rate[h, 0].exp()
    if module.rule == "gated_delta":
        log = -rate * torch.log1p((gates.decay.weight[h] @ x + gates.step_bias[h, 0]).exp())
        return log.exp().expand(width)
    inner, outer = gates.decay
    logits = (outer.weight @ (inner.weight @ x))[h * D : (h + 1) * D] + gates.step_bias[h]
    alpha = (-rate * torch.log1p(logits.exp())).exp()
    if case == "unitary":
        return torch.cat([alpha, alpha])
    if case != "none":  # pairs share the geometric mean
        alpha = (alpha[::2] * alpha[1::2]).sqrt().repeat_interleave(2)
    return alpha


def definition(module, case, x):
    """Computes attention of a sentence (n, E), token by token."""
    outputs = []
    width = 2 * D if case == "unitary" else D
    states = [torch.zeros(width, D, dtype=x.dtype)] * H
    for t in range(len(x)):
        rows = {}
        for name in ("q", "k", "v"):
            projection = getattr(module, f"{name}_proj").weight
            kernel = getattr(module, f"{name}_convolution")
            y = sum(kernel[3 - n] * (projection @ x[t - n]) for n in range(min(3, t) + 1))
            rows[name] = (y / (1 + (-y).exp())).view(H, D)
        heads = []
        for h in range(H):
            q = encoded(module, case, rows["q"][h] / rows["q"][h].norm(), t)
            k = encoded(module, case, rows["k"][h] / rows["k"][h].norm(), t)
            beta = 1 / (1 + (-(module.gates.beta.weight[h] @ x[t])).exp())
            s = decay(module, case, x[t], h)[:, None] * states[h]
            states[h] = s - beta * torch.outer(k, k @ s) + beta * torch.outer(k, rows["v"][h])
            o = states[h].T @ q / math.sqrt(D)
            heads.append(o / (o.square().mean() + 1e-5).sqrt() * module.norm.weight)
        outputs.append(module.out_proj.weight @ torch.cat(heads) + module.out_proj.bias)
    return torch.stack(outputs)


@pytest.mark.parametrize("case", ROTATIONS)
@pytest.mark.parametrize("rule", RULES)
def test_attention_and_gradients_match_definition(rule, case):
    module = build(rule, case)
    x = randn(2, 11, E).requires_grad_()
    leaves = [x, *module.parameters()]
    expected = [definition(module, case, sentence) for sentence in x]
    assert_same(with_gradients(module(x), leaves), with_gradients(torch.stack(expected), leaves))


@every_case
def test_decoding_in_parts(rule, case):
    """Chunks have 64 rows."""
    module = build(rule, case)
    x = randn(2, 150, E)
    whole = module(x)
    for sizes in ([1] * 150, [1, 2, 70, 1, 76], [149, 1]):
        out, state = in_parts(module, x, sizes)
        assert_same(out, whole)
    assert state.past["sums"].shape == (2, H, 2 * D if case in ("unitary", "fft") else D, D)
    assert state.inputs.shape == (2, 3, E)


@every_case
def test_padding(rule, case):
    """Left padding shifts positions, right padding has no effect, and padding in between has values of 0."""
    module = build(rule, case)
    x = randn(3, 12, E)
    padding = torch.zeros(3, 12, dtype=torch.bool)
    padding[0, 9:] = True
    padding[1, :4] = True
    padding[2, 5:7] = True
    out = module(x, key_padding_mask=padding)
    assert_same(out[0, :9], module(x[:1, :9])[0])
    assert_same(out[1, 4:], module(x[1:2, 4:])[0])
    found, _ = in_parts(module, x, [3, 2, 1, 1, 5], padding)
    assert_same(found[~padding], out[~padding])
    changed = x.masked_fill(padding[..., None], 7.0)
    assert_same(module(changed, key_padding_mask=padding)[~padding], out[~padding])


@every_case
def test_memory_equals_a_longer_sequence(rule, case):
    module = build(rule, case)
    x = randn(2, 12, E)
    for length in (1, 2, 5):
        assert_same(module(x[:, length:], memory=x[:, :length]), module(x)[:, length:])


@pytest.mark.parametrize("case", [case for case in ROTATIONS | OTHERS if case != "selective_rope"])
def test_restarted_positions(case):
    """Only differences of positions matter, so that a text continues at position 0."""
    module = build("kda" if case not in ("permutation", "liere") else "gated_delta", case)
    x = randn(2, 40, E)
    _, state = module(x[:, :25], return_state=True)
    state = module.restart_positions(state)
    assert state.length == 0
    assert_same(module(x[:, 25:], state=state), module(x)[:, 25:])


def test_states_cannot_restart_with_selective_rope():
    module = build("delta", "selective_rope")
    _, state = module(randn(2, 5, E), return_state=True)
    with pytest.raises(ValueError, match="selective_rope cannot shift the positions"):
        module.restart_positions(state)


@every_case
def test_encodings_keep_norms_and_rotate_features_together(rule, case):
    """What the trait ``rotated_features`` says."""
    encoding = build(rule, case).encoding
    if case == "selective_rope":
        return
    x = randn(1, H, 9, D)
    q, k = encoding(x, x)
    assert_same(k.norm(dim=-1), x.norm(dim=-1))
    assert_same(q, k)


def test_supported_encodings_are_those_that_keep_norms():
    for name, cls in ENCODINGS.items():
        try:
            encoding = build_encoding(name, num_heads=H, head_dim=D, causal=True, layers=2)
            check_delta_rule("delta", encoding)
        except ValueError as error:
            assert "use axial_rope, grape, liere, lrpe, mamba3_rope, none, p_rope, rope" in str(error)
        else:
            x = torch.randn(1, H, 9, D)
            if not isinstance(encoding, InputsMixin):
                assert_same(encoding(x, x)[1].norm(dim=-1), x.norm(dim=-1), 1e-6)
            assert cls.rotated_features or name == "none"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_half_precision(rule, dtype):
    """Parameters of gates keep float32, as the state does."""
    module = build(rule, "unitary").float()
    half = copy.deepcopy(module).to(dtype)
    if rule != "delta":
        assert half.gates.log_rate.dtype == half.gates.step_bias.dtype == torch.float32
    x = randn(2, 100, E).to(dtype)
    out, state = half(x, return_state=True)
    found, _ = in_parts(half, x, 1)
    exact = copy.deepcopy(half).double()(x.double())
    assert out.dtype == dtype and state.past["sums"].dtype == torch.float32
    assert (out - exact).norm() / exact.norm() < 8 * torch.finfo(dtype).eps
    assert (found - exact).norm() / exact.norm() < 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("rule", RULES)
def test_initial_gates(rule):
    torch.manual_seed(0)
    module = DeltaAttention(512, 128, "none", causal=True, rule=rule)
    gates = module.gates(torch.zeros(1, 1, 512))
    assert_same(gates[..., 0], torch.full((1, 128, 1), 0.5))
    if rule != "delta":
        rates = module.gates.log_rate.exp()
        steps = F.softplus(module.gates.step_bias)
        assert 1 <= rates.min() < 2 and 15 < rates.max() <= 16
        assert 0.00099 < steps.min() < 0.0013 and 0.08 < steps.max() < 0.1001
        assert_same(gates[..., 1:], (-rates * steps)[None, :, None].expand_as(gates[..., 1:]), 1e-6)


def test_a_pair_is_replaced():
    """The second value of a key replaces the first one, which additive attention would add to it."""
    module = build("delta", "none")
    k = torch.eye(D, dtype=torch.float64)[[0, 1, 0]].expand(1, H, 3, D)
    v = randn(1, H, 3, D)
    gates = torch.ones(1, H, 3, 1, dtype=torch.float64)
    o, _ = module.associate(k, k, v, gates, START)
    assert_same(o * math.sqrt(D), v)


@pytest.mark.parametrize("rule", RULES)
def test_compiled_as_one_graph(rule):
    module = build(rule, "unitary")
    x = randn(2, 70, E).requires_grad_()
    leaves = [x, *module.parameters()]
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert_same(with_gradients(compiled(x), leaves), with_gradients(module(x), leaves))


@pytest.mark.parametrize("rule", RULES)
def test_weights(rule):
    module = build(rule, "rope")
    q, k = randn(2, 1, H, 9, D)
    weights = attention_weights(module, q, k)
    assert weights.shape == (1, H, 9, 9) and not weights.triu(1).any()
    assert_same(weights.abs().sum(-1), torch.ones(1, H, 9, dtype=torch.float64))


def test_torch_adapter():
    module = build("gated_delta", "rope", MultiheadDeltaAttention)
    plain = build("gated_delta", "rope")
    plain.load_state_dict(module.state_dict())
    x = randn(2, 9, E)
    assert_same(module(x, x, x)[0], plain(x))


@pytest.mark.parametrize("arguments, message", [
    ({"rule": "additive"}, "unknown delta rule 'additive'.*delta, gated_delta, kda"),
    ({"causal": False}, "gated_delta works only in causal attention: use it in a language model"),
    ({"encoding": "alibi"}, "only rotates queries and keys, not 'alibi': use axial_rope, grape, liere, lrpe"),
    ({"encoding": "gla"}, "only rotates queries and keys, not 'gla'"),
    ({"encoding": "rope_values"}, "only rotates queries and keys, not 'rope_values'"),
    ({"encoding": "fope"}, "only rotates queries and keys, not 'fope'"),
    ({"encoding": "t5"}, "only rotates queries and keys, not 't5'"),
    ({"encoding": "liere", "rule": "kda"}, "kda decays features, which liere mixes.*use gated_delta"),
])  # fmt: skip
def test_invalid_modules(arguments, message):
    given = {"encoding": "none", "causal": True} | arguments
    with pytest.raises(ValueError, match=message) as raised:
        DeltaAttention(E, H, given.pop("encoding"), **given)
    assert "\n" not in str(raised.value)


def test_bidirectional_models_are_refused():
    with pytest.raises(
        UserError, match="the method 'delta' works only in causal attention: use it in a lang"
    ):
        architecture("linear", "roberta", "delta")
    assert architecture("linear", "lm", "delta") == "linear_lm_delta"
    cfg = PositionConfig(attention="linear", **METHODS["kda"].flags)
    with pytest.raises(UserError, match="kda works only in causal attention"):
        build_attention(cfg, dropout=0.0, causal=False, embed_dim=E, num_heads=H)
    with pytest.raises(UserError, match="'kda' does not exist in softmax attention: use linear attention"):
        check_method("kda", "softmax")


def test_identity_of_methods():
    """Checkpoints of other methods, which do not store the rule, keep their identity."""
    for name in ("gla", "rope", "delta"):
        flags = method_flags(PositionConfig(attention="linear", **METHODS[name].flags))
        assert ("linear_rule" in flags) == (name == "delta")


def test_invalid_calls():
    module = build("gated_delta", "rope")
    x = randn(2, 9, E)
    positions = 2 * torch.arange(9)
    index = PositionIndex(positions, positions, 16)
    _, state = module(x, return_state=True)
    _, additive = LinearAttention(E, H, "rope", causal=True).double()(x, return_state=True)
    _, softmax = SoftmaxAttention(E, H, "rope", causal=True).double()(x, return_state=True)
    for options, message in (
        ({"keys": x + 1}, "from the same inputs: omit keys"),
        ({"position_index": index}, "accumulates over consecutive tokens: omit position_index"),
        ({"state": module.reorder_state(state, torch.tensor([0]))}, "the state has"),
        ({"state": additive}, "the state is not one of a delta rule: pass the state that this module"),
        ({"state": softmax}, "the state is not one of a delta rule"),
    ):
        with pytest.raises(ValueError, match=message) as raised:
            module(x, **options)
        assert "\n" not in str(raised.value)
    scale_rotations(module, RopeScaling("yarn", 4.0, 8))
    with pytest.raises(ValueError, match=r"yarn multiplies keys, whose norms must be 1.*use ntk"):
        module(x)
    scale_rotations(module, RopeScaling("ntk", 4.0, 8))
    assert module(x).isfinite().all()


def test_scalings_that_multiply_keys_are_refused_for_trained_models():
    """Before the model reads a text."""
    model = build_small("linear_lm_delta", encoding="rope")
    _scale_rotations(model, RopeScaling("ntk", 4))
    with pytest.raises(UserError, match="the scaling yarn multiplies keys"):
        _scale_rotations(model, RopeScaling("yarn", 4, 16))
