"""Compares encodings that depend on the input with loops over the papers' formulas, and with public code."""

import math

import pytest
import torch
from support.pairwise_scores import D, H, all_scores, heads, in_parts, random_encoding, rope_angles, rotated
from support.tensors import assert_same, randn, with_gradients

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention
from fairseq_lrpe.encodings import ENCODINGS, Context
from fairseq_lrpe.ops import linear_attention, reflections

E = H * D
CASES = [
    ("fox", {}),
    ("fox", {"no_bias": True}),
    ("fox", {"no_bias": True, "bias": 5.0}),
    ("fox_rope", {"bias": 5.0}),
    ("gla", {}),
    ("wall", {}),
    ("grape", {}),
    ("mamba3_rope", {}),
    ("selective_rope", {}),
    ("selective_rope", {"gate": True}),
    ("selective_rope", {"rank": 3, "normalize_heads": True}),
    ("selective_rope_gla", {}),
    ("selective_rope_gla", {"gate": True}),
    ("selective_rope_fox", {"gate": True}),
    ("path", {}),
    ("path_fox", {}),
]


FEATURE_GATES = ("gla", "wall", "selective_rope_gla")


def linear(layer, x):
    out = layer.weight @ x
    return out if layer.bias is None else out + layer.bias


def log_sigmoid(x):
    return -torch.log1p(torch.exp(-x))


def decays(encoding, x, constant=0.0):
    """Returns the logarithms (n, H, D) of the decay of each feature at each position of x (n, E).

    ``constant`` is the bias of forget gates whose bias is not learned.
    """
    if encoding.name == "gla":
        rows = [log_sigmoid(linear(encoding.w_out, encoding.w_in.weight @ y)) / 16 for y in x]
        return torch.stack(rows).view(-1, H, D)
    if encoding.name == "selective_rope_gla":
        rows = [log_sigmoid(linear(encoding.decay_out, encoding.decay_in.weight @ y)) / 16 for y in x]
        return torch.stack(rows).view(-1, H, D)
    if encoding.name == "wall":
        return torch.stack([log_sigmoid(linear(encoding.gate, y)) for y in x]).view(-1, H, D)
    if encoding.name in ("selective_rope", "path", "grape", "mamba3_rope"):
        return x.new_zeros(len(x), H, D)
    rows = [log_sigmoid(linear(encoding.gate, y) + constant) for y in x]
    return torch.stack(rows)[..., None].expand(-1, H, D)


def angles(encoding, x):
    """Returns the angles (n, H, D/2) by which each position rotates the pairs of features."""
    if encoding.name == "fox_rope":
        return torch.stack([rope_angles(t) for t in range(len(x))])[:, None].expand(-1, H, -1)
    if encoding.name == "grape":
        steps = [torch.log(1 + torch.exp(linear(encoding.step, y)))[0] for y in x]
        rows = [sum(steps[:i], 0 * steps[0]) * encoding.angles.log_theta.exp() for i in range(len(x))]
        return torch.stack(rows)[:, None].expand(-1, H, -1)
    if encoding.name == "mamba3_rope":
        total, rows = torch.zeros(H, D // 2, dtype=x.dtype), []
        for y in x:
            step = torch.log(1 + torch.exp(linear(encoding.step, y)))
            total = total + step[:, None] * math.pi * torch.tanh(encoding.velocity.weight @ y)
            rows.append(total)
        return torch.stack(rows)
    if not encoding.name.startswith("selective_rope"):
        return x.new_zeros(len(x), H, D // 2)
    parts = H if encoding.normalize_heads else 1
    unit = [torch.cat([part / part.norm() for part in y.chunk(parts)]) for y in x]
    hidden = [encoding.w_out.weight @ (encoding.w_in.weight @ y) for y in unit]
    total, rows = torch.zeros(H, D // 2, dtype=x.dtype), []
    for t in range(len(x)):
        phi = sum(encoding.convolution[3 - n] * hidden[t - n] for n in range(min(3, t) + 1)).view(H, D // 2)
        if encoding.angle_gate is not None:
            phi = phi * torch.sigmoid(linear(encoding.angle_gate, unit[t]))[:, None]
        total = total + phi
        rows.append([total[:, m] * 500_000 ** (-2 * m / D) for m in range(D // 2)])
    return torch.stack([torch.stack(row, dim=-1) for row in rows])


def reflected(encoding, x, k, h, j, i):
    """Returns H_i ··· H_{j+1} k of PaTH."""
    for s in range(j + 1, i + 1):
        hidden = [encoding.w_out.weight @ (encoding.w_in.weight @ x[s - n]) for n in range(min(2, s) + 1)]
        w = sum(encoding.convolution[2 - n] * y for n, y in enumerate(hidden))
        w = (w * torch.sigmoid(w))[h * D : (h + 1) * D]
        w = w / w.norm()
        k = k - 2 * torch.sigmoid(linear(encoding.beta, x[s]))[h] * (w @ k) * w
    return k


def definition(module, x, window=99, constant=0.0):
    """Computes attention of a sentence (n, E)."""
    encoding, softmax = module.encoding, isinstance(module, SoftmaxAttention)
    q, k, v = (p(x).unflatten(-1, (H, D)) for p in (module.q_proj, module.k_proj, module.v_proj))
    if not softmax:
        q, k = module.feature_map(q), module.feature_map(k)
    log_decay, angle, rows = decays(encoding, x, constant), angles(encoding, x), []
    for i in range(len(x)):
        heads = []
        for h in range(H):
            scores, seen = [], range(max(0, i + 1 - window), i + 1)
            for j in seen:
                key = k[j, h]
                if encoding.name.startswith("path"):
                    key = reflected(encoding, x, key, h, j, i)
                product = rotated(q[i, h], angle[i, h]) * rotated(key, angle[j, h])
                log = log_decay[j + 1 : i + 1, h].sum(0)
                if softmax and encoding.name not in FEATURE_GATES:
                    scores.append(product.sum() / math.sqrt(D) + log[0])
                else:
                    scores.append((product * log.exp()).sum() / (math.sqrt(D) if softmax else 1))
            weights = torch.stack(scores)
            weights = weights.softmax(0) if softmax else weights / weights.sum().clamp(min=1e-6)
            heads.append(weights @ v[seen.start : i + 1, h])
        rows.append(module.out_proj(torch.cat(heads)))
    return torch.stack(rows)


@pytest.mark.parametrize("name, options", CASES, ids=str)
@pytest.mark.parametrize("attention", [SoftmaxAttention, LinearAttention])
def test_attention_and_gradients_match_definition(monkeypatch, attention, name, options):
    """Keys of PaTH are reflected in blocks."""
    if attention is LinearAttention and not ENCODINGS[name].decomposable:
        return
    monkeypatch.setattr(reflections, "_BLOCK_SIZE", 3)
    monkeypatch.setattr(reflections, "_MERGED_BLOCKS", 2)
    module = attention(E, H, random_encoding(name, **options)).double().eval()
    x, padding = randn(2, 11, E).requires_grad_(), torch.zeros(2, 11, dtype=torch.bool)
    padding[1, :2] = padding[1, 9:] = True
    out = module(x, key_padding_mask=padding)
    leaves, relative = [x, *module.parameters()], name != "fox_rope"
    own = {"constant": options["bias"]} if "no_bias" in options and "bias" in options else {}
    expected = definition(module, x[0], **own), definition(module, x[1, 2:9] if relative else x[1], **own)
    found = out[0], out[1, 2:9] if relative else module(x[1:])[0]
    assert_same(with_gradients(found, leaves), with_gradients(expected, leaves), 1e-10)


@pytest.mark.parametrize("per_feature", [False, True])
def test_linear_attention_matches_flash_linear_attention(per_feature):
    pytest.importorskip("fla")
    from fla.ops.gla.naive import naive_recurrent_gla
    from fla.ops.simple_gla.naive import naive_recurrent_simple_gla

    q, k, v = (torch.randn(2, 70, H, D) for _ in range(3))
    g = -torch.rand(2, 70, H, *[D] * per_feature)
    naive = naive_recurrent_gla if per_feature else naive_recurrent_simple_gla
    expected, _ = naive(q * D**0.5, k, v, g)
    inputs = [x.transpose(1, 2) for x in (q, k, v)]
    options = {"causal": True, "normalize": False, "log_decay": g.transpose(1, 2)}
    assert_same(linear_attention(*inputs, **options).transpose(1, 2), expected, 1e-5)


@pytest.mark.parametrize("name", ["fox", "path_fox"])
def test_softmax_attention_matches_flash_linear_attention(name):
    """In flash-linear-attention, the gates of PaTH-FoX are multiplied by 1/√d like q·k."""
    pytest.importorskip("fla")
    from fla.ops.forgetting_attn.naive import naive_forgetting_attn
    from fla.ops.path_attn.naive import naive_path_attn

    encoding = random_encoding(name).float()
    q, k, v = (torch.randn(2, 70, H, D) for _ in range(3))
    g, w, beta = -torch.rand(2, 70, H), torch.randn(2, 70, H, D), 2 * torch.rand(2, 70, H)
    w, features = w / w.norm(dim=-1, keepdim=True), g[..., None]
    if name == "fox":
        expected = naive_forgetting_attn(q, k, v, g)
    else:
        features = torch.cat([beta.sqrt()[..., None] * w, features], dim=-1)
        expected = naive_path_attn(q, k, v, w, beta, g * D**0.5, scale=D**-0.5)
    q, k, v, features = (x.transpose(1, 2) for x in (q, k, v, features))
    scores = all_scores(encoding, q, k, features=features)
    later = torch.ones(70, 70, dtype=torch.bool).triu(1)
    out = scores.masked_fill(later, -torch.inf).softmax(-1) @ v
    assert_same(out.transpose(1, 2), expected, 1e-5)


@pytest.mark.parametrize("name", ["fox", "gla"])
@pytest.mark.parametrize("attention", [SoftmaxAttention, LinearAttention])
def test_closed_gates(name, attention):
    """A gate of 0 hides the earlier keys; outputs and gradients are finite, in half precision, too."""
    module = attention(E, H, name, causal=True).eval()
    gate = module.encoding.gate if name == "fox" else module.encoding.w_out
    with torch.no_grad():
        gate.weight.normal_(std=1e4)  # gates are 0 or 1
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        out = module.to(dtype)(randn(2, 150, E).to(dtype).requires_grad_())
        gradients = torch.autograd.grad(out.sum(), [*module.parameters()], allow_unused=True)
        assert out.isfinite().all() and all(g is None or g.isfinite().all() for g in gradients)
    with torch.no_grad():
        gate.weight.zero_()
        gate.bias.fill_(-torch.inf)
    x = randn(1, 150, E).float()
    alone = module.float()(x.transpose(0, 1)).transpose(0, 1)  # sequences of one token
    if name == "fox" or attention is LinearAttention:  # products of 0 are scores of 0
        assert_same(module(x), alone, 1e-6)


def test_gates_of_heads_with_one_feature():
    """They multiply the products of q and k, as those of more features do."""
    encoding, x = random_encoding("gla", head_dim=1), randn(2, 9, H)
    module = SoftmaxAttention(H, H, encoding).double()
    q, k, v = heads(module, x)
    scores = all_scores(encoding, q, k, features=encoding.input_features(x))
    later = torch.ones(9, 9, dtype=torch.bool).triu(1)
    o = scores.masked_fill(later, -torch.inf).softmax(-1) @ v
    assert_same(module(x), module.out_proj(module.merge_heads(o)))


@pytest.mark.parametrize("name", ["fox", "gla", "selective_rope", "path", "path_fox"])
def test_missing_features_are_an_error(name):
    q = torch.zeros(1, H, 3, D)
    with pytest.raises(ValueError, match=r"depends on the layer's inputs: use LinearAttention or Softmax"):
        all_scores(random_encoding(name).float(), q, q)


def test_gates_of_a_long_sequence():
    """Biases are differences of sums of up to 100,000, which float32 would round by 0.004."""
    encoding, length = random_encoding("fox").float(), 20_000
    q, features = torch.zeros(1, H, 4, D), -10 * torch.rand(1, H, length, 1)
    k = torch.zeros(1, H, length, D)
    found = all_scores(encoding, q, k, length - 4, features=features)[..., -8:]
    context = Context(4, features=features[:, :, -8:])
    expected = all_scores(encoding, q, k[:, :, :8], 4, features=context.features)
    seen = torch.ones(4, 8, dtype=torch.bool).tril(4)
    assert_same(found[..., seen], expected[..., seen], 1e-6)


# PaTH.


def test_window_hides_keys_but_not_reflections():
    module, x = SoftmaxAttention(E, H, random_encoding("path")).double(), randn(1, 12, E)
    module.window = 5
    assert_same(module(x)[0], definition(module, x[0], window=5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_half_precision_caches_keys_in_float32(dtype):
    """After 200 steps the error is that of a single score in half precision."""
    module, x = SoftmaxAttention(E, H, random_encoding("path")).to(dtype), randn(2, 200, E).to(dtype)
    (found, state), whole = in_parts(module, x, 1), module(x)
    assert state.past["k"].dtype == torch.float32 and found.dtype == dtype
    assert (found - whole).float().norm() / whole.float().norm() < 2 * torch.finfo(dtype).eps


def test_sizes_of_reflections():
    """β is between 0 and 2; there is a gradient where it is 0 in float32, as for a logit of -200."""
    encoding = random_encoding("path", num_heads=8, head_dim=64)
    steps = encoding.input_features(torch.randn(3, 2 + 7, 512, dtype=torch.float64))
    assert steps.shape == (3, 8, 7, 64) and (steps.norm(dim=-1) ** 2 < 2 + 1e-9).all()
    module = SoftmaxAttention(E, H, random_encoding("path")).float()
    with torch.no_grad():
        module.encoding.beta.bias.fill_(-200.0)
    gradients = torch.autograd.grad(module(randn(2, 9, E).float()).sum(), [*module.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("name", ["fox", "fox_rope", "path_fox", "selective_rope_fox"])
@pytest.mark.parametrize("options", [{}, {"bias": 5.0}, {"bias": -1.5}], ids=str)
def test_initial_gates(name, options):
    """Where the inputs are 0, all gates start at σ(bias)."""
    encoding = ENCODINGS[name](num_heads=H, head_dim=D, causal=True, **options).double()
    gates = encoding.input_features(torch.zeros(1, encoding.left_context + 7, E, dtype=torch.float64))
    expected = torch.tensor(options.get("bias", 0.0), dtype=torch.float64).sigmoid()
    assert_same(gates[..., -1].exp(), expected.expand(1, H, 7))


def test_initial_values_of_published_gates():
    """Standard deviations of 0.02, biases of 0 for GLA and of 8 for wall attention."""
    sizes = {"num_heads": 8, "head_dim": 32, "causal": True}
    for name, options in (
        ("gla", {"init_std": 0.02}),
        ("wall", {}),
        ("selective_rope", {"init_std": 0.02, "gate": True}),
        ("selective_rope_gla", {"gate": True}),
    ):
        torch.manual_seed(1)
        for key, parameter in ENCODINGS[name](**sizes, **options).named_parameters():
            if key.endswith("bias"):
                assert (parameter == (8.0 if name == "wall" else 0.0)).all()
            else:
                assert parameter.std().item() == pytest.approx(0.02, rel=0.1)


def test_initial_steps():
    """Those of GRAPE are 0.001 for every token, and those of Mamba-3 log-uniform from 0.001 to 0.1."""
    x = torch.zeros(1, 5, 1000 * D)
    grape = ENCODINGS["grape"](num_heads=1000, head_dim=D, causal=True)
    assert_same(grape.input_features(x), torch.full((1, 1000, 5, 1), 1e-3), 1e-6)
    torch.manual_seed(1)
    mamba = ENCODINGS["mamba3_rope"](num_heads=1000, head_dim=D, causal=True)
    steps = torch.nn.functional.softplus(mamba.step.bias.double()).log10()
    assert -3.001 < steps.min() < -2.9 and -1.1 < steps.max() < -0.999
    assert abs(steps.mean() + 2) < 0.1


@pytest.mark.parametrize("extent", [3, 20])
def test_content_bias_and_gradients(extent):
    """The query's input mixes the vectors of biases; the bias of larger distances is 0."""
    encoding = random_encoding("content_bias", rank=5, extent=extent)
    module = SoftmaxAttention(E, H, encoding).double().eval()
    x = randn(2, 11, E).requires_grad_()
    q, k, v = heads(module, x)
    r = (x @ encoding.w_r.weight.T).unflatten(-1, (H, 5))
    rows = []
    for i in range(11):
        scores = []
        for j in range(i + 1):
            bias = torch.einsum("bhr,r->bh", r[:, i], encoding.p[:, i - j]) if i - j < extent else 0
            scores.append((q[:, :, i] * k[:, :, j]).sum(-1) / math.sqrt(D) + bias)
        weights = torch.stack(scores, dim=-1).softmax(-1)
        rows.append(torch.einsum("bhj,bhjd->bhd", weights, v[:, :, : i + 1]))
    expected = module.out_proj(torch.stack(rows, dim=1).flatten(2))
    leaves = [x, *module.parameters()]
    assert_same(with_gradients(module(x), leaves), with_gradients(expected, leaves), 1e-10)
    assert_same(in_parts(module, x, [4, 1, 6])[0], expected)


def test_a_constant_bias_is_not_trained():
    encoding = ENCODINGS["fox"](num_heads=H, head_dim=D, causal=True, no_bias=True, bias=5.0).double()
    assert [name for name, _ in encoding.named_parameters()] == ["gate.weight"]
    gates = encoding.input_features(torch.zeros(1, 7, E, dtype=torch.float64))
    assert_same(gates.exp(), torch.full((1, H, 7, 1), 1 / (1 + math.exp(-5)), dtype=torch.float64))


@pytest.mark.parametrize("bias", [math.inf, math.nan])
def test_biases_that_are_not_finite_are_refused(bias):
    with pytest.raises(ValueError, match="needs a finite bias of its forget gate, not"):
        ENCODINGS["fox"](num_heads=H, head_dim=D, causal=True, bias=bias)
