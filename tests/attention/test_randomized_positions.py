"""Attention at random positions in ascending order, compared with formulas and with padded sequences."""

import math

import pytest
import torch
from support.pairwise_scores import D, H, pairwise_matrix
from support.tensors import assert_same, randn, with_gradients

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention, softmax
from fairseq_lrpe.encodings import ENCODINGS, build_encoding
from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.ops.position_index import PositionIndex, random_position_index
from fairseq_lrpe.utils.errors import UserError

E, L, N = H * D, 9, 40
INPUT = {name for name, cls in ENCODINGS.items() if cls.left_context is not None} - {"fox_rope"}
INPUT |= {"cope", "stick_breaking", "none"}


def build(kind, name, options, causal, **attention):
    torch.manual_seed(0)
    shared = {"num_heads": H, "head_dim": D, "causal": causal, "layer": 2, "layers": 3, "max_positions": N}
    module = kind(E, H, build_encoding(name, **shared, **options), **attention).double().eval()
    with torch.no_grad():
        for parameter in module.encoding.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return module


def cases():
    found = {}
    for method in METHODS.values():
        name, flags = method.encoding, method.flags
        options = {k.removeprefix(f"{name}_"): v for k, v in flags.items() if k.startswith(f"{name}_")}
        if name in INPUT or "liere_block_size" in flags:
            continue
        if name == "tupe":
            options["cls"] = False
        for kind in (LinearAttention, SoftmaxAttention):
            for causal in (True, False):
                if (causal or ENCODINGS[name].bidirectional) and (
                    kind is SoftmaxAttention or ENCODINGS[name].decomposable
                ):
                    case = kind, name, options, causal
                    found[f"{kind.__name__[:6]}-{name}-{sorted(options.items())}-{causal}"] = case
    return found


CASES = cases()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_tokens_at_positions_equal_a_padded_sequence(monkeypatch, case):
    """The tokens are at their positions in a sequence whose other positions are padding."""
    monkeypatch.setattr(softmax, "_CAUSAL_BLOCK_SIZE", 4)
    kind, name, options, causal = case
    module = build(kind, name, options, causal)
    p = random_position_index(L, N)
    x = randn(2, L, E).requires_grad_()
    padding = torch.zeros(2, L, dtype=torch.bool)
    padding[1, 3:5] = padding[1, -1] = True
    padded = x.new_zeros(2, N, E).index_copy(1, p.query_positions, x)
    mask = torch.ones(2, N, dtype=torch.bool).index_copy(1, p.query_positions, padding)
    leaves = [x, *module.parameters()]
    found = module(x, key_padding_mask=padding, position_index=p)[~padding]
    expected = module(padded, key_padding_mask=mask)[:, p.query_positions][~padding]
    assert_same(with_gradients(found, leaves), with_gradients(expected, leaves))
    if causal:
        assert_same(
            with_gradients(module(x, position_index=p)[0], leaves),
            with_gradients(module(x[:1], position_index=p)[0], leaves),
        )


@pytest.mark.parametrize("name", ["alibi", "xpos", "per", "rope"])
@pytest.mark.parametrize(
    "options", [{"feature_map": "exp"}, {"linear_norm": "content"}, {"linear_norm": "layernorm"}], ids=str
)
def test_linear_attention_with_other_options(name, options):
    module = build(LinearAttention, name, {}, True, **options)
    p, x = random_position_index(L, N), randn(2, L, E).requires_grad_()
    mask = torch.ones(2, N, dtype=torch.bool).index_fill(1, p.query_positions, False)
    padded = x.new_zeros(2, N, E).index_copy(1, p.query_positions, x)
    leaves = [x, *module.parameters()]
    expected = module(padded, key_padding_mask=mask)[:, p.query_positions]
    assert_same(with_gradients(module(x, position_index=p), leaves), with_gradients(expected, leaves))


def rotation(x, angles):
    pairs = zip(x[:, ::2].unbind(1), x[:, 1::2].unbind(1), angles, strict=True)
    out = [y for a, b, t in pairs for y in (a * t.cos() - b * t.sin(), a * t.sin() + b * t.cos())]
    return torch.stack(out, dim=1)


def rope_angles(i):
    return [torch.tensor(i * 10000 ** (-2 * t / D), dtype=torch.float64) for t in range(D // 2)]


def rope(encoding, q, k, i, j, h):
    return (rotation(q, rope_angles(i)) * rotation(k, rope_angles(j))).sum(-1)


def alibi(encoding, q, k, i, j, h):
    return (q * k).sum(-1), -(2 ** (-8 * (h + 1) / H)) * (i - j)


def xpos(encoding, q, k, i, j, h):
    zeta = [(t / (D // 2) + 0.4) / 1.4 for t in range(D // 2)]
    decay = torch.tensor([z ** (i - j) for z in zeta for _ in range(2)], dtype=torch.float64)
    return (rotation(q, rope_angles(i)) * rotation(k, rope_angles(j)) * decay).sum(-1)


def t5(encoding, q, k, i, j, h):
    n = i - j  # all distances below 16 have their own bucket
    bucket = n if n < 16 else min(31, 16 + int(math.log(n / 16) / math.log(128 / 16) * 16))
    return (q * k).sum(-1), encoding.relative_attention_bias.weight[bucket, h]


def shaw(encoding, q, k, i, j, h):
    return (q * k).sum(-1) + q @ encoding.w_k.weight[16 + min(i - j, 16)]


def lrpe(encoding, q, k, i, j, h):
    v = encoding.v / encoding.v.norm()
    q, k = (x - 2 * (x @ v)[:, None] * v for x in (q, k))
    return (q * k * ((i - j) * encoding.theta).cos()).sum(-1)


FORMULAS = {"rope": rope, "alibi": alibi, "xpos": xpos, "t5": t5, "shaw": shaw, "lrpe": lrpe}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("kind", [LinearAttention, SoftmaxAttention])
def test_formula(kind, name):
    if kind is LinearAttention and not ENCODINGS[name].decomposable:
        return
    options = {"core": "unitary", "learn_theta": True} if name == "lrpe" else {}
    module = build(kind, name, options, True)
    index, x = random_position_index(L, N), randn(2, L, E).requires_grad_()
    p, linear = index.query_positions.tolist(), kind is LinearAttention
    q, k, v = (module.split_heads(f(x)) for f in (module.q_proj, module.k_proj, module.v_proj))
    if linear:
        q, k = (1 + torch.nn.functional.elu(y) for y in (q, k))

    def score(encoding, q, k, i, j, h):
        s, bias = (
            (*found, 0)[:2]
            if isinstance(found := FORMULAS[name](encoding, q, k, p[i], p[j], h), tuple)
            else (found, 0)
        )
        return s * math.exp(bias) if linear else D**-0.5 * s + bias

    weights = pairwise_matrix(score, module.encoding, q, k)
    if linear:
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-6)
    else:
        later = torch.ones(L, L, dtype=torch.bool).triu(1)
        weights = weights.masked_fill(later, -math.inf).softmax(-1)
    expected = module.out_proj(module.merge_heads(weights @ v))
    leaves = [x, *module.parameters()]
    assert_same(with_gradients(module(x, position_index=index), leaves), with_gradients(expected, leaves))


def test_draw():
    first, second = (random_position_index(20, N) for _ in range(2))
    for index in (first, second):
        p = index.query_positions.tolist()
        assert p == sorted(set(p)) and p[0] >= 0 and p[-1] < N and len(p) == 20
        assert index.key_positions is index.query_positions and index.max_position == N - 1
    assert first.query_positions.tolist() != second.query_positions.tolist()
    state = torch.get_rng_state()
    fixed = [random_position_index(20, N, fixed=True).query_positions for _ in range(2)]
    assert fixed[0].equal(fixed[1]) and state.equal(torch.get_rng_state())
    counts = sum(
        torch.zeros(6).index_fill(0, random_position_index(2, 6).query_positions, 1) for _ in range(3000)
    )
    assert (counts / 1000 - 1).abs().max() < 0.15
    assert random_position_index(0, N).query_positions.tolist() == []
    assert random_position_index(N, N).query_positions.tolist() == list(range(N))
    with pytest.raises(
        UserError, match="41 tokens cannot have different positions below 40: use at least 41"
    ):
        random_position_index(N + 1, N)


@pytest.mark.parametrize("arguments", [{"return_state": True}, {"memory": torch.zeros(1, 2, E)}], ids=list)
def test_states_are_refused(arguments):
    for kind in (LinearAttention, SoftmaxAttention):
        module, p = kind(E, H, "rope", causal=True), torch.tensor([2, 5, 6])
        with pytest.raises(UserError, match="a memory or a state requires consecutive"):
            module(torch.zeros(1, 3, E), position_index=PositionIndex(p, p, 9), **arguments)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "kind, name", [(LinearAttention, "xpos"), (SoftmaxAttention, "xpos"), (LinearAttention, "alibi")]
)
def test_half_precision(kind, name, dtype):
    module, index = build(kind, name, {}, True), random_position_index(L, N)
    x = randn(2, L, E).to(dtype)
    exact = module(x.double(), position_index=index)
    found = module.to(dtype)(x, position_index=index)
    assert found.dtype == dtype and (found.double() - exact).abs().max() < 30 * torch.finfo(dtype).eps
