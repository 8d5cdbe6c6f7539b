"""Compares encodings that add a bias to the scores with loops over their papers' equations."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from fairseq.modules.espnet_multihead_attention import RelPositionMultiHeadedAttention
from pairwise_scores import SHAPES, D, H, check_scores, scores
from tensor_sizes import TensorSizes
from tensors import assert_same, randn

from fairseq_lrpe.attention.fairseq_adapter import FairseqSoftmaxAttention
from fairseq_lrpe.encodings import build_encoding
from fairseq_lrpe.encodings.shaw import level

ENCODINGS = {"t5": {}, "shaw": {"k": 3}, "nezha": {"k": 3}, "lfhc": {"k": 2}, "xl": {}, "gcdf": {}}
ENCODINGS["deberta"] = {"k": 3}
every_encoding = pytest.mark.parametrize("name", ENCODINGS)
both_ways = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])


def build(name, causal=True, heads=H, d=D, layer=1, dtype=torch.float64, **options):
    """Returns an encoding whose parameters are all random."""
    encoding = build_encoding(
        name, num_heads=heads, head_dim=d, causal=causal, layer=layer, **{**ENCODINGS[name], **options}
    )
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.normal_()
    return encoding.to(dtype)


def t5_bucket(distance, causal, buckets, max_distance):
    """Computes exact + ⌊log(n/exact) / log(max/exact)·later⌋ with integers, without rounded logarithms."""
    side, first = (buckets, 0) if causal else (buckets // 2, buckets // 2 if distance < 0 else 0)
    n = max(0, distance) if causal else abs(distance)
    exact = side // 2
    if n < exact:
        return first + n
    later, m = side - exact, 0
    while m < later - 1 and n**later * exact ** (m + 1) >= max_distance ** (m + 1) * exact**later:
        m += 1
    return first + exact + m


def t5(encoding, q, k, i, j, h):
    """Survey Eq. 10."""
    bucket = t5_bucket(i - j, encoding.causal, encoding.buckets, encoding.max_distance)
    return (q * k).sum(-1) / math.sqrt(D) + encoding.relative_attention_bias.weight[bucket, h]


def clip(x, k, k_after=None):
    """Survey Eq. 6."""
    return max(-k if k_after is None else -k_after, min(k, x))


def vector(encoding, vectors, level, h):
    """Returns the vector of a level for head h."""
    row = vectors.weight[encoding.k_after + level]
    return row[h * D : (h + 1) * D] if encoding.per_head else row


def shaw(encoding, q, k, i, j, h):
    """LFHC paper Eqs. 4 and 5."""
    w = vector(encoding, encoding.w_k, clip(i - j, encoding.k, encoding.k_after), h)
    return (q * (k + w)).sum(-1) / math.sqrt(D)


def nezha(encoding, q, k, i, j, h):
    """Wei et al. 2019: sinusoids of j − i."""
    return (q * (k + sinusoid(clip(j - i, encoding.k), D))).sum(-1) / math.sqrt(D)


def clip_l(x, k, layer, rounding):
    """LFHC paper Eq. 9, as printed, or with the ceiling of its author's public code."""
    if x > k * layer:
        return k
    if 0 <= x <= k * layer:
        return math.floor(x / layer) if rounding == "floor" else math.ceil(x / layer)
    if -k * layer <= x < 0:
        return math.floor(x / layer)
    return -k


def lfhc(encoding, q, k, i, j, h):
    level = clip_l(i - j, encoding.k, encoding.layer, encoding.rounding)
    return (q * (k + vector(encoding, encoding.w_k, level, h))).sum(-1) / math.sqrt(D)


def sinusoid(distance, width):
    """LFHC paper Eqs. 6 and 7."""
    r = torch.zeros(width, dtype=torch.float64)
    for n in range(width):
        angle = distance / 10000 ** ((n - n % 2) / width)
        r[n] = math.sin(angle) if n % 2 == 0 else math.cos(angle)
    return r


def gaussian(distance, width, factor=4.0):
    """LFHC paper Eqs. 14 and 15, integrated numerically from −14σ on."""
    nodes, weights = np.polynomial.legendre.leggauss(24)
    r = torch.zeros(width, dtype=torch.float64)
    for n in range(1, width + 1):
        sigma = width ** (n / width)
        edges = np.arange(-14 * sigma, distance, sigma)
        total = 0.0
        for a, b in itertools.pairwise([*edges, distance]):
            x = (a + b) / 2 + (b - a) / 2 * nodes
            total += (b - a) / 2 * (weights * np.exp(-(x**2) / (2 * sigma**2))).sum()
        r[n - 1] = factor / (sigma * math.sqrt(2 * math.pi)) * total
    return r


def with_prior(prior):
    """LFHC paper Eq. 8; the W_r of a head are its d rows of the weight."""

    def score(encoding, q, k, i, j, h):
        w_r = encoding.w_r.weight[h * D : (h + 1) * D] @ prior(i - j, H * D)
        u, v = encoding.u[h], encoding.v[h]
        return ((q * k).sum(-1) + q @ w_r + k @ u + v @ w_r) / math.sqrt(D)

    return score


def deberta(encoding, q, k, i, j, h):
    """LRPE TMLR Eq. 31, divided by √(3d)."""
    c = encoding.k

    def g(x):
        return 0 if x <= -c else 2 * c - 1 if x >= c else x + c

    rows = slice(h * D, (h + 1) * D)
    k_r = encoding.pos_key.weight[rows] @ encoding.rel_embeddings.weight[g(i - j)]
    q_r = encoding.pos_query.weight[rows] @ encoding.rel_embeddings.weight[g(j - i)]
    return ((q * k).sum(-1) + q @ k_r + k @ q_r) / math.sqrt(3 * D)


SCORES = {
    "t5": t5,
    "shaw": shaw,
    "nezha": nezha,
    "lfhc": lfhc,
    "xl": with_prior(sinusoid),
    "gcdf": with_prior(gaussian),
    "deberta": deberta,
}


def cases():
    """Returns (encoding, layer, options), with and without clipped distances."""
    yield "t5", 1, {}
    yield "t5", 1, {"buckets": 8, "max_distance": 7}
    for k in (1, 3, 20):
        yield "shaw", 1, {"k": k}
        yield "nezha", 1, {"k": k}
        yield "deberta", 1, {"k": k}
    for k, k_after in ((3, 0), (1, 4), (2, 2), (4, 20)):
        yield "shaw", 1, {"k": k, "k_after": k_after}
    yield "shaw", 1, {"k": 3, "k_after": 1, "per_head": True}
    yield "shaw", 1, {"k": 3, "per_head": True}
    for layer, k, rounding in itertools.product((1, 2, 3, 4), (1, 2, 9), ("away", "floor")):
        yield "lfhc", layer, {"k": k, "rounding": rounding}
    yield "lfhc", 3, {"k": 2, "per_head": True}
    yield "xl", 1, {}
    yield "gcdf", 1, {}


@pytest.mark.parametrize(
    ("name", "layer", "options"),
    [pytest.param(*case, id="-".join(map(str, (*case[:2], *case[2].values())))) for case in cases()],
)
@pytest.mark.parametrize(("causal", "queries", "keys", "q_offset"), SHAPES)
def test_scores_and_gradients_match_paper(name, layer, options, causal, queries, keys, q_offset):
    check_scores(SCORES[name], build(name, causal, layer=layer, **options), queries, keys, q_offset)


def test_lambda_scales_the_table():
    four, six = build("gcdf"), build("gcdf", lambda_=6.0)
    six.load_state_dict(four.state_dict())
    q, k = randn(1, H, 5, D, seed=1), randn(1, H, 5, D, seed=2)
    with torch.no_grad():
        for encoding in (four, six):
            encoding.u.zero_()
    assert_same(six.bias(q, k), 1.5 * four.bias(q, k))


# Buckets of T5.

SURVEY = [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 9, 9, 9, 9, 10, 10, 10, 10, 10, 10, 10, *[11] * 8]


def buckets_of(causal, farthest, **options):
    """Returns {distance: bucket}, read from a bias equal to the bucket index."""
    encoding = build("t5", causal, **options)
    with torch.no_grad():
        numbers = torch.arange(encoding.buckets, dtype=torch.float64)
        encoding.relative_attention_bias.weight.copy_(numbers[:, None].expand(-1, H))
    keys = farthest + 1 if causal else 2 * farthest + 1
    bias = encoding.bias(randn(1, H, 1, D), randn(1, H, keys, D), farthest)
    assert bias.shape[1:] == (H, 1, keys) and bias[:, 0].equal(bias[:, 1])
    return {farthest - j: int(b) for j, b in enumerate(bias[0, 0, 0])}


def test_buckets_match_survey():
    buckets = buckets_of(False, 30)
    assert [buckets[x] for x in range(31)] == SURVEY
    assert [buckets[-x] for x in range(1, 31)] == [16 + b for b in SURVEY[1:]]


def test_bucket_boundaries():
    """Powers of two are exactly at the edge of a bucket: 8·2^(m/2), and 16·2^(3m/16) if causal."""
    buckets = buckets_of(False, 300)
    assert [buckets[x] for x in (16, 31, 32, 63, 64, 127, 128, 300)] == [10, 11, 12, 13, 14, 15, 15, 15]
    assert [buckets[-x] for x in (1, 8, 16, 32, 64, 128, 300)] == [17, 24, 26, 28, 30, 31, 31]
    buckets = buckets_of(True, 300)
    assert [buckets[x] for x in range(16)] == list(range(16))
    assert [buckets[x] for x in (16, 18, 19, 112, 113, 128, 300)] == [16, 16, 17, 30, 31, 31, 31]


@both_ways
@pytest.mark.parametrize(
    ("number", "max_distance"),
    [(32, 128), (32, 17), (8, 128), (4, 100), (16, 64), (64, 256), (40, 128), (12, 1000), (32, 512)],
)
def test_buckets_at_every_distance(causal, number, max_distance):
    buckets = buckets_of(causal, 300, buckets=number, max_distance=max_distance)
    assert len(buckets) == (301 if causal else 601)
    assert buckets == {x: t5_bucket(x, causal, number, max_distance) for x in buckets}


# Shaw and LFHC.


def test_lfhc_in_layer_1_is_shaw():
    first, shaws = build("lfhc", layer=1, k=3), build("shaw", k=3)
    shaws.load_state_dict(first.state_dict())
    q, k = randn(2, H, 9, D, seed=1), randn(2, H, 9, D, seed=2)
    assert first.bias(q, k).equal(shaws.bias(q, k))
    second = build("lfhc", layer=2, k=3)
    second.load_state_dict(first.state_dict())
    assert not torch.allclose(first.bias(q, k), second.bias(q, k))


def attention(name, causal=True, dropout=0.0, **options):
    module = FairseqSoftmaxAttention(build(name, causal, **options), dropout=dropout).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


SHAW_OPTIONS = [{}, {"k": 9}, {"per_head": True}, {"k": 2, "k_after": 0}, {"k": 1, "k_after": 3}]


@pytest.mark.parametrize("options", SHAW_OPTIONS, ids=str)
@pytest.mark.parametrize(("causal", "queries", "keys", "q_offset"), SHAPES)
def test_shaw_values_and_gradients_match_survey(options, causal, queries, keys, q_offset):
    """Σ_j a_ij w'_{clip(i−j, k)} of survey Eq. 5."""
    encoding, leaf = (
        build("shaw", causal, values=True, **options),
        randn(2, H, queries, keys).requires_grad_(),
    )
    weights = leaf.tril(q_offset) if causal else leaf

    def row(h, i):
        levels = [clip(q_offset + i - j, encoding.k, encoding.k_after) for j in range(keys)]
        return sum(
            weights[:, h, i, j, None] * vector(encoding, encoding.w_v, x, h) for j, x in enumerate(levels)
        )

    heads = [torch.stack([row(h, i) for i in range(queries)], dim=1) for h in range(H)]
    results = []
    for out in (encoding.output_from_weights(weights, q_offset), torch.stack(heads, dim=1)):
        gradients = torch.autograd.grad((out * randn(*out.shape, seed=3)).sum(), [leaf, encoding.w_v.weight])
        results.append((out, *gradients))
    assert_same(*results)


@pytest.mark.parametrize(("causal", "queries", "keys", "q_offset"), SHAPES)
def test_nezha_adds_the_same_sinusoids_to_values(causal, queries, keys, q_offset):
    encoding, weights = build("nezha", causal, k=3), randn(2, H, queries, keys)
    weights = weights.tril(q_offset) if causal else weights
    found = encoding.output_from_weights(weights, q_offset)
    for i in range(queries):
        r = torch.stack([sinusoid(clip(j - q_offset - i, 3), D) for j in range(keys)])
        assert_same(found[:, :, i], weights[:, :, i] @ r)


@pytest.mark.parametrize(("name", "prior"), [("xl", sinusoid), ("gcdf", gaussian)])
def test_xl_matches_fairseqs_relative_attention(name, prior):
    """fairseq's speech models implement it for one length, bidirectionally, with any R."""
    length = 6
    ours = attention(name, causal=False).eval()
    theirs = RelPositionMultiHeadedAttention(H * D, H, dropout=0.0).double().eval()
    names = {
        "linear_q": "q_proj",
        "linear_k": "k_proj",
        "linear_v": "v_proj",
        "linear_out": "out_proj",
        "linear_pos": "encoding.w_r",
        "pos_bias_u": "encoding.u",
        "pos_bias_v": "encoding.v",
    }
    state = ours.state_dict()
    theirs.load_state_dict(
        {key: state[key.replace(x, names[x])] for key in theirs.state_dict() for x in names if x in key}
    )
    r = torch.stack([prior(x, H * D) for x in range(length - 1, -length, -1)])[:, None]
    x = randn(length, 2, H * D, seed=1)
    assert_same(ours(x)[0], theirs(x, x, x, r)[0])


def test_shaw_values_use_the_dropped_out_weights():
    """Both are sums with the same weights: values and vectors that each encode the key's index."""
    module = attention("shaw", causal=False, values=True, k=9, dropout=0.5)
    with torch.no_grad():
        for p in (module.v_proj.weight, module.v_proj.bias, module.encoding.w_v.weight):
            p.zero_()
        module.out_proj.weight.copy_(torch.eye(H * D))
        module.out_proj.bias.zero_()
        module.v_proj.bias[0] = module.encoding.w_v.weight[:, 1] = 1
    out, _ = module(randn(7, 2, H * D))
    assert_same(out[..., 0], out[..., 1])
    assert (out[..., 0] - 1).abs().max() > 0.1
    module.eval()
    assert_same(module(randn(7, 2, H * D))[0][..., 0], torch.ones(7, 2, dtype=torch.float64))


# Properties of XL's and GCDF's tables.


def prior_matrix(name, heads, d, farthest):
    """Returns R_0, R_1, .. as rows, read from the bias of one-hot queries."""
    encoding = build(name, heads=heads, d=d)
    with torch.no_grad():
        encoding.w_r.weight.copy_(torch.eye(heads * d))
        encoding.u.zero_()
        encoding.v.zero_()
    q = torch.eye(d, dtype=torch.float64)[:, None, None].expand(-1, heads, -1, -1)
    bias = encoding.bias(q, torch.zeros(d, heads, farthest + 1, d, dtype=torch.float64), farthest)
    return (bias[:, :, 0] * math.sqrt(d)).flip(-1).permute(2, 1, 0).flatten(1)


def breaches(r):
    """Returns how often the rows of R violate LFHC paper Eqs. 11, 12 and 13, up to rounding."""
    n = len(r)
    phi = {(i, j): (r[i] - r[j]).norm().item() for i in range(n) for j in range(n)}
    room = 1e-12
    one = sum(
        phi[i + k, i] <= phi[j + k, j] + room for k in range(1, n) for j in range(n - k) for i in range(j)
    )
    two, three = 0, 0
    for j in range(n - 2):
        for i in range(j):
            two += not phi[i, j + 2] > phi[i, j + 1] + room > phi[i, j] + 2 * room
            three += not phi[i, j + 1] - phi[i, j] > phi[i, j + 2] - phi[i, j + 1] + room
    return one, two, three


@pytest.mark.parametrize(("heads", "d"), [(2, 16), (8, 64)])
def test_gcdf_has_the_two_properties_of_the_paper(heads, d):
    r = prior_matrix("gcdf", heads, d, 30)
    assert_same(r[[0, 7, 30]], torch.stack([gaussian(x, heads * d) for x in (0, 7, 30)]))
    assert breaches(r) == (0, 0, 0)


@pytest.mark.parametrize(("heads", "d"), [(2, 16), (8, 64)])
def test_xl_lacks_these_properties(heads, d):
    r = prior_matrix("xl", heads, d, 30)
    assert_same(r, torch.stack([sinusoid(x, heads * d) for x in range(31)]))
    one, _, three = breaches(r)
    assert one == math.comb(
        31, 3
    )  # translation invariant: distances between pairs do not depend on the position
    assert three > 0


# Shared properties.


@every_encoding
@both_ways
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_dtype_is_preserved(name, causal, dtype):
    encoding = build(name, causal).to(dtype)
    q, k = randn(2, H, 40, D, seed=1).to(dtype), randn(2, H, 40, D, seed=2).to(dtype)
    bias = encoding.bias(q, k)
    assert bias.dtype == dtype
    visible = torch.ones(40, 40, dtype=torch.bool).tril() if causal else slice(None)
    exact = copy.deepcopy(encoding).double().bias(q.double(), k.double())
    error = (bias.double() - exact)[..., visible].norm() / exact[..., visible].norm()
    assert error < 2 * torch.finfo(dtype).eps


@every_encoding
def test_training_after_inference_mode(name):
    encoding = build(name, heads=3, d=10, dtype=torch.float32)  # a width that no other test uses
    q = randn(1, 3, 700, 10).float()
    with torch.inference_mode():
        expected = encoding.bias(q, q)
    bias = encoding.bias(q.requires_grad_(), q)
    torch.testing.assert_close(bias.detach(), expected.clone())
    bias.sum().backward()
    for parameter in encoding.parameters():
        assert torch.isfinite(parameter.grad).all()


@pytest.mark.parametrize("name", [*ENCODINGS, "shaw values"])
@both_ways
def test_memory_is_bounded_by_the_scores(name, causal):
    name, *values = name.split()
    options = {"values": True} if values else {"k": 64} if "k" in ENCODINGS[name] else {}
    module = FairseqSoftmaxAttention(build(name, causal, d=16, **options)).double()
    with TensorSizes() as sizes:
        module(randn(256, 2, H * 16))[0].sum().backward()
    assert sizes.largest <= 2.5 * 2 * H * 256 * 256


E = H * D
NAMES = {
    "t5": {"relative_attention_bias.weight": (32, H)},
    "shaw": {"w_k.weight": (7, D)},
    "nezha": {},
    "lfhc": {"w_k.weight": (5, D)},
    "xl": {"w_r.weight": (E, E), "u": (H, D), "v": (H, D)},
    "gcdf": {"w_r.weight": (E, E), "u": (H, D), "v": (H, D)},
    "deberta": {"rel_embeddings.weight": (6, E), "pos_key.weight": (E, E), "pos_query.weight": (E, E)},
}


@every_encoding
def test_state_dict(name):
    encoding = build_encoding(name, num_heads=H, head_dim=D, causal=True, **ENCODINGS[name])
    assert {n: tuple(x.shape) for n, x in encoding.state_dict().items()} == NAMES[name]
    assert set(dict(encoding.named_parameters())) == set(NAMES[name])
    assert not encoding.decomposable and encoding.log_decay is None
    assert math.isclose(encoding.scale, (3 * D if name == "deberta" else D) ** -0.5)
    for parameter in encoding.parameters():
        assert 0 < parameter.abs().max() < 3


def test_shaw_has_a_vector_for_each_clipped_distance():
    for k_after, rows in ((-1, 7), (0, 4), (1, 5), (5, 9)):
        encoding = build("shaw", values=True, k=3, k_after=k_after)
        assert len(encoding.w_k.weight) == len(encoding.w_v.weight) == rows


@pytest.mark.parametrize("name", ["shaw", "lfhc"])
def test_per_head_vectors(name):
    """Heads with identical vectors give the same scores as shared vectors."""
    shared, own = build(name, k=3, layer=2), build(name, k=3, layer=2, per_head=True)
    assert {n: tuple(x.shape) for n, x in own.state_dict().items()} == {"w_k.weight": (7, E)}
    q, k = randn(2, H, 9, D, seed=1), randn(2, H, 9, D, seed=2)
    assert not torch.allclose(scores(own, q, k), scores(shared, q, k))
    with torch.no_grad():
        own.w_k.weight.copy_(shared.w_k.weight.repeat(1, H))
    assert_same(scores(own, q, k), scores(shared, q, k))


def test_lfhc_levels():
    """Rounded away from zero, level 0 is only the token itself; as printed, also the l − 1 before it."""
    distances = torch.arange(-7, 8)
    away = [-2, -2, -2, -2, -2, -1, -1, 0, 1, 1, 2, 2, 2, 2, 2]
    floor = [-2, -2, -2, -2, -2, -1, -1, 0, 0, 1, 1, 2, 2, 2, 2]
    assert (level(distances, 2, 2, 2, "away") - 2).tolist() == away
    assert (level(distances, 2, 2, 2, "floor") - 2).tolist() == floor


def test_shaw_values_have_separate_vectors():
    encoding = build("shaw", values=True, k=3)
    assert {n: tuple(x.shape) for n, x in encoding.state_dict().items()} == {
        "w_k.weight": (7, D),
        "w_v.weight": (7, D),
    }
    assert encoding.needs_weights and not build("shaw").needs_weights


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("t5", {"buckets": 2}, "multiple of 4 .*2 buckets and max distance 128"),
        ("t5", {"buckets": 30}, "multiple of 4 .*30 buckets and max distance 128"),
        ("t5", {"buckets": 0}, "multiple of 4 .*0 buckets and max distance 128"),
        ("t5", {"max_distance": 16}, "max distance above.*32 buckets and max distance 16"),
        ("shaw", {"k": 0}, "shaw.*at least 1, not 0"),
        ("shaw", {"k": -4}, "shaw.*at least 1, not -4"),
        ("shaw", {"k_after": -2}, "^shaw needs a k_after of at least 0, or -1 for k, not -2$"),
        ("nezha", {"k": 0}, "nezha.*at least 1, not 0"),
        ("nezha", {"values": True}, "'nezha'.*'values'.*k"),
        ("lfhc", {"k": 0}, "lfhc.*at least 1, not 0"),
        ("deberta", {"k": 0}, "deberta.*at least 1, not 0"),
        ("gcdf", {"lambda_": -1.0}, "gcdf.*-1"),
        ("gcdf", {"lambda_": 0.0}, "gcdf.*0"),
        ("lfhc", {"values": True}, "'lfhc'.*'values'.*k"),
        ("lfhc", {"rounding": "up"}, "unknown rounding 'up': choose from away, floor"),
        ("gcdf", {"k": 3}, "'gcdf'.*'k'.*lambda_"),
        ("xl", {"lambda_": 2.0}, "'xl'.*'lambda_'"),
        ("t5", {"k": 3}, "'t5'.*'k'.*buckets, max_distance"),
    ],
)
def test_invalid_arguments_are_rejected(name, options, message):
    with pytest.raises(ValueError, match=message):
        build(name, **options)
