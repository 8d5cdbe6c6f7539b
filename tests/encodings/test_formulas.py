"""Compares the scores of every encoding and their gradients with formulas, pair by pair.

LRPE, CoPE, DAPE, stick-breaking attention, encodings that depend on the input, and the rotations of images,
RoPE-Mixed and LieRE, have files of their own.
"""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.pairwise_scores import (
    SHAPES,
    D,
    H,
    check_scores,
    random_encoding,
    rope_angles,
    rotated,
    sinusoid,
)

from fairseq_lrpe.encodings import ENCODINGS, InputsMixin

E = H * D
LAYER, LAYERS = 2, 5


def content(q, k):
    return (q * k).sum(-1) / math.sqrt(D)


# Biases.


def t5_bucket(distance, causal, buckets=32, max_distance=128):
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
    return content(q, k) + encoding.relative_attention_bias.weight[bucket, h]


def tupe(encoding, q, k, i, j, h):
    """Ke et al. 2021; with ``cls``, the table has an additional first row."""
    special = encoding.cls
    if special and 0 in (i, j):
        row, other, bucket = (0, 0, 16) if i == 0 else (1, 1, 32)
    else:
        row, other = i + special, j + special
        bucket = t5_bucket(i - j, encoding.causal)
    p, r = (F.layer_norm(encoding.positions.weight[n], (E,)) for n in (row, other))
    p, r = (x * encoding.norm.weight + encoding.norm.bias for x in (p, r))
    heads = slice(h * D, (h + 1) * D)
    p = encoding.to_query.weight[heads] @ p + encoding.to_query.bias[heads]
    r = encoding.to_key.weight[heads] @ r + encoding.to_key.bias[heads]
    score = ((q * k).sum(-1) + p @ r) / (2 * D) ** 0.5
    return score + encoding.buckets.weight[bucket, h] if encoding.relative_bias else score


def fire(encoding, q, k, i, j, h):
    """The authors' listing, without the output bias of the perceptron."""
    threshold = abs(encoding.multiplier * encoding.threshold)
    normalizer = torch.maximum(torch.tensor(float(i)), threshold)
    distance = torch.log(abs(encoding.c * abs(i - j)) + 1)
    normalized = distance / (torch.log(abs(encoding.c * normalizer) + 1) + 1e-6)
    hidden = torch.relu(encoding.hidden_weight[:, 0] * normalized + encoding.hidden_bias)
    return content(q, k) + (encoding.output_weight[h] * hidden).sum()


def gaussian(encoding, q, k, i, j, h):
    """−|w d² + b| with w ≥ 0 and b ≤ 0."""
    return content(q, k) - abs(abs(encoding.w[0]) * (i - j) ** 2 - abs(encoding.b[0]))


def kerple(encoding, q, k, i, j, h):
    """−r₁ log(1 + r₂ |i−j|) or −r₁ |i−j|^r₂, both at least 0.01, and the power at most 2."""
    p, a = (x[h] if x[h] > 0.01 else 0.01 + 0 * x[h] for x in (encoding.bias_p, encoding.bias_a))
    if encoding.power:
        p = p if p < 2 else 2 + 0 * p
        return content(q, k) - a * abs(i - j) ** p
    return content(q, k) - p * torch.log(1 + a * abs(i - j))


def sandwich(encoding, q, k, i, j, h):
    """The product of two sinusoidal embeddings of width 128, divided by 8(h+1)/H."""
    product = (sinusoid(i, 128) * sinusoid(j, 128)).sum()
    return content(q, k) + product / (8 * (h + 1) / H)


# Vectors for distances.


def clip(x, after, before):
    """Survey Eq. 6."""
    return max(-after, min(before, x))


def vector(encoding, vectors, level, h):
    """Returns the vector of a level for head h."""
    row = vectors.weight[encoding.k_after + level]
    return row[h * D : (h + 1) * D] if encoding.per_head else row


def shaw(encoding, q, k, i, j, h):
    """LFHC paper Eqs. 4 and 5."""
    w = vector(encoding, encoding.w_k, clip(i - j, encoding.k_after, encoding.k), h)
    return content(q, k + w)


def lfhc(encoding, q, k, i, j, h):
    """LFHC paper Eq. 9, as printed, or with the ceiling of its author's public code."""
    level = clip((i - j) / encoding.layer, encoding.k, encoding.k)
    rounded = math.ceil(level) if level > 0 and encoding.rounding == "away" else math.floor(level)
    return content(q, k + vector(encoding, encoding.w_k, rounded, h))


def nezha(encoding, q, k, i, j, h):
    """Wei et al. 2019: sinusoids of j − i."""
    return content(q, k + sinusoid(clip(j - i, encoding.k, encoding.k), D))


def gaussian_cdf(distance, width, factor=4.0):
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


def with_prior(encoding, q, k, h, r):
    """LFHC paper Eq. 8; the W_r of a head are its d rows of the weight."""
    w_r = encoding.w_r.weight[h * D : (h + 1) * D] @ r
    u, v = encoding.u[h], encoding.v[h]
    return ((q * k).sum(-1) + q @ w_r + k @ u + v @ w_r) / math.sqrt(D)


def xl(encoding, q, k, i, j, h):
    return with_prior(encoding, q, k, h, sinusoid(i - j, E))


def gcdf(encoding, q, k, i, j, h):
    return with_prior(encoding, q, k, h, gaussian_cdf(i - j, E, encoding.amplitude))


def deberta(encoding, q, k, i, j, h):
    """LRPE TMLR Eq. 31, divided by √(3d)."""
    c = encoding.k

    def g(x):
        return 0 if x <= -c else 2 * c - 1 if x >= c else x + c

    rows = slice(h * D, (h + 1) * D)
    k_r = encoding.pos_key.weight[rows] @ encoding.rel_embeddings.weight[g(i - j)]
    q_r = encoding.pos_query.weight[rows] @ encoding.rel_embeddings.weight[g(j - i)]
    return ((q * k).sum(-1) + q @ k_r + k @ q_r) / math.sqrt(3 * D)


def huang(encoding, q, k, i, j, h):
    """The four methods of Huang et al. 2020."""
    x = i - j if not encoding.clamp_length else min(i - j, encoding.clamp_length)
    x = clip(x, encoding.k, encoding.k)
    if encoding.method == 1:
        return content(q, k) * encoding.a[abs(x), 0]
    a = encoding.a[encoding.k + x]
    if encoding.method == 4:
        return content(q + a, k + a) - content(a, a)
    return content(q, k * a)


# Encodings of q and k. Their formulas return the product and the term that a decay adds to the scaled score.


def none(encoding, q, k, i, j, h):
    return (q * k).sum(-1), 0


def rope(encoding, q, k, i, j, h):
    theta = getattr(encoding, "base", 10000) ** (-2 * torch.arange(D // 2, dtype=torch.float64) / D)
    return (rotated(q, i * theta) * rotated(k, j * theta)).sum(-1), 0


def p_rope(encoding, q, k, i, j, h):
    """Barbero et al. 2025: RoPE without the lowest frequencies."""
    kept = torch.arange(D // 2) < int(encoding.p * D // 2)
    return (rotated(q, kept * rope_angles(i)) * rotated(k, kept * rope_angles(j))).sum(-1), 0


def pope(encoding, q, k, i, j, h):
    """Gopalakrishnan et al. 2025, as in lucidrains/PoPE-pytorch: the phases of keys have a learned part."""
    theta = 10000 ** (-torch.arange(D, dtype=torch.float64) / D)
    delta = encoding.delta[h].clamp(-2 * math.pi, 0)
    magnitudes = torch.log(1 + torch.exp(q)) * torch.log(1 + torch.exp(k))
    return (magnitudes * torch.cos((j - i) * theta + delta)).sum(-1), 0


def axial_rope(encoding, q, k, i, j, h):
    """RoPE with the base 100 in a sequence."""
    angles = encoding.base ** (-2 * torch.arange(D // 2, dtype=torch.float64) / D)
    return (rotated(q, i * angles) * rotated(k, j * angles)).sum(-1), 0


def log_scale(encoding, q, k, i, j, h):
    """Llama 4: queries grow with the logarithm of the number of steps of ``length`` positions."""
    return (1 + encoding.factor * math.log((i + 1) // encoding.length + 1)) * (q * k).sum(-1), 0


def fope(encoding, q, k, i, j, h):
    """Hua et al. 2025, Eq. 13, for the real and the imaginary part."""
    kept = rope_angles(1) >= 2 * math.pi / encoding.length.item()

    def encode(x, position):
        a, b, angles = x[..., ::2], x[..., 1::2], rope_angles(position)
        cos = torch.where(kept, angles.cos() + (kept * angles.cos()) @ encoding.cosine[h], 1)
        sin = torch.where(kept, angles.sin() + (kept * angles.sin()) @ encoding.sine[h], 0)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    return (encode(q, i) * encode(k, j)).sum(-1), 0


def cosformer(encoding, q, k, i, j, h):
    """Qin et al. 2022, Eq. 10; LRPE TMLR Eq. 35 with α = π/2M."""
    return math.cos(math.pi * (i - j) / (2 * encoding.max_positions)) * (q * k).sum(-1), 0


def per(encoding, q, k, i, j, h):
    """Pⁱ q · Pʲ k (Chen 2021, Eqs. 8-11), times r_h^(i-j) with r_h = sigmoid(3h/H + 2) if causal."""
    p = torch.eye(D, dtype=torch.float64)[encoding.permutation[h]]
    power = torch.linalg.matrix_power
    rate = 1 / (1 + math.exp(-(3 * h / H + 2))) if encoding.causal else 1
    return ((q @ power(p, i).T) * (k @ power(p, j).T)).sum(-1) * rate ** (i - j), 0


def spe(encoding, q, k, i, j, h):
    """Σ_r q̂_r k̂_r, summed over the realizations r."""
    (z1, z2, z3), gate = encoding.noise[:, h], torch.sigmoid(encoding.gate[h])[:, None]
    frequency = torch.sigmoid(encoding.freqs[h]) / 2
    gain = torch.log(1 + torch.exp(encoding.gains[h])) / math.sqrt(2)
    phases = 2 * math.pi * frequency * i + encoding.offsets[h], 2 * math.pi * frequency * j
    q, k = (
        x @ ((1 - gate).sqrt() * gain * (p.cos() * z1 + p.sin() * z2) + gate.sqrt() * z3)
        for x, p in zip((q, k), phases, strict=True)
    )
    return (q * k).sum(-1) / math.sqrt(D * encoding.noise.size(-1)), 0


def conv_spe(encoding, q, k, i, j, h):
    """Σ_r q̂_r k̂_r with q̂ = Σ_n q_n (√(1−g_n) Σ_p kernel_np Z_{n,i+p} + √g_n Z'_n) / (d R)^1/4."""
    noise = encoding._noise(0, 80, encoding._fixed_block).double()
    gate, hats = torch.sigmoid(encoding.gate[h])[:, None], []
    for x, kernel, position in ((q, encoding.kernel_q, i), (k, encoding.kernel_k, j)):
        window = noise[h, :, position : position + kernel.size(-1)]
        rows = (1 - gate).sqrt() * torch.einsum("np,npr->nr", kernel[h], window)
        hats.append(x @ (rows + gate.sqrt() * encoding.noise[0, h]) / (D * D) ** 0.25)
    return (hats[0] * hats[1]).sum(-1), 0


def alibi(encoding, q, k, i, j, h):
    return (q * k).sum(-1), -(2 ** (-8 * (h + 1) / H)) * (i - j)


def retnet(encoding, q, k, i, j, h):
    return rope(encoding, q, k, i, j, h)[0], (i - j) * math.log(1 - 2 ** (-5 - h))


def xpos(encoding, q, k, i, j, h):
    product, pairs = rotated(q, rope_angles(i)) * rotated(k, rope_angles(j)), D // 2
    zeta = [(t / pairs + encoding.gamma) / (1 + encoding.gamma) for t in range(pairs)]
    decay = torch.tensor([z ** ((i - j) / encoding.scale_base) for z in zeta], dtype=torch.float64)
    return (product * decay.repeat_interleave(2)).sum(-1), 0


def lrpe_decay(encoding, q, k, i, j, h):
    product = q * k
    if encoding.rotates:
        theta = encoding.theta if encoding.theta.dim() == 1 else encoding.theta[h]
        product = product * torch.cos(theta * (i - j))
    return product.sum(-1), -8 * (h + 1) / H * (1 - encoding.layer / encoding.layers) * (i - j)


BIASES = {
    f.__name__: f
    for f in (t5, tupe, fire, gaussian, kerple, sandwich, shaw, lfhc, nezha, xl, gcdf, deberta, huang)
}
PRODUCTS = {
    f.__name__: f
    for f in (none, rope, p_rope, fope, cosformer, per, spe, conv_spe, alibi, retnet, xpos, lrpe_decay)
}
PRODUCTS |= {"roper": rope, "rope_values": rope, "pope": pope, "axial_rope": axial_rope}
PRODUCTS["log_scale"] = log_scale

CASES = [  # (encoding, options, parameters to set), with and without clipped distances
    ("t5", {}, {}),
    ("t5", {"buckets": 8, "max_distance": 7}, {}),
    ("tupe", {"max_positions": 9}, {}),
    ("tupe", {"max_positions": 9, "relative_bias": True}, {}),
    ("tupe", {"max_positions": 9, "relative_bias": True, "cls": False}, {}),
    ("fire", {}, {"multiplier": [1.1]}),  # all queries are up to the threshold
    ("fire", {"threshold": 3}, {"c": [-0.3], "multiplier": [1.1]}),  # some
    ("fire", {"threshold": 1, "width": 5}, {"c": [0.3], "multiplier": [-1.1]}),  # at most one
    ("gaussian", {}, {"w": [0.3], "b": [2.0]}),  # 0.3 d² - 2 is negative up to distance 2
    ("gaussian", {}, {"w": [-2.0], "b": [-0.1]}),
    ("kerple", {}, {"bias_p": [0.5, 0.9], "bias_a": [0.5, -0.5]}),
    ("kerple", {}, {"bias_p": [0.5, -0.9], "bias_a": [0.5, 0.5]}),
    ("kerple", {"power": True}, {"bias_p": [1.5, 2.5], "bias_a": [0.5, -0.5]}),
    ("sandwich", {}, {}),
    ("shaw", {"k": 3}, {}),
    ("shaw", {"k": 3, "k_after": 0}, {}),
    ("shaw", {"k": 1, "k_after": 4, "per_head": True}, {}),
    ("lfhc", {"k": 2, "layer": 1}, {}),
    ("lfhc", {"k": 2, "layer": 3, "per_head": True}, {}),
    ("lfhc", {"k": 1, "layer": 2, "rounding": "floor"}, {}),
    ("nezha", {"k": 3}, {}),
    ("xl", {}, {}),
    ("gcdf", {"lambda_": 6.0}, {}),
    ("deberta", {"k": 3}, {}),
    *(("huang", {"method": method, "k": 3}, {}) for method in (1, 2, 3, 4)),
    ("none", {}, {}),
    ("rope", {}, {}),
    ("rope", {"base": 500000.0}, {}),
    ("p_rope", {}, {}),
    ("p_rope", {"p": 1.0}, {}),
    ("fope", {"max_positions": 512}, {}),  # one of two frequencies is 0
    ("fope", {"length": 1024, "sigma": 0.9}, {}),
    ("log_scale", {"length": 3}, {}),
    ("pope", {}, {}),
    ("axial_rope", {}, {}),
    ("axial_rope", {"base": 7.5}, {}),
    ("roper", {}, {}),
    ("rope_values", {}, {}),
    ("cosformer", {"max_positions": 40}, {}),
    ("per", {}, {}),
    ("spe", {}, {}),
    ("conv_spe", {"kernel_size": 5}, {}),
    ("alibi", {}, {}),
    ("retnet", {}, {}),
    ("xpos", {"scale_base": 512, "gamma": 0.9}, {}),
    ("lrpe_decay", {"layer": LAYER, "layers": LAYERS}, {}),
    ("lrpe_decay", {"layer": 1, "layers": LAYERS, "first_layer": True}, {}),
    ("lrpe_decay", {"layer": LAYER, "layers": LAYERS, "first_layer": True}, {}),
]


def build(name, causal, options, parameters):
    encoding = random_encoding(name, causal, **options)
    with torch.no_grad():
        for parameter, values in parameters.items():
            getattr(encoding, parameter).copy_(torch.tensor(values))
    return encoding


def score(encoding, q, k, i, j, h):
    """Returns the scaled score of a pair."""
    if encoding.name in BIASES:
        return BIASES[encoding.name](encoding, q, k, i, j, h)
    product, added = PRODUCTS[encoding.name](encoding, q, k, i, j, h)
    return product / math.sqrt(D) + added


@pytest.mark.parametrize("name, options, parameters", CASES, ids=str)
def test_scores_and_gradients_match_formula(name, options, parameters):
    for causal, *shape in SHAPES:
        if causal or ENCODINGS[name].bidirectional:
            encoding = build(name, causal, options, parameters)
            check_scores(score, encoding, *shape)


OTHER_FILES = ("lrpe", "cope", "dape", "stick_breaking", "stick_breaking_norm", "rope_mixed", "liere")


def test_every_encoding_has_a_formula():
    inputs = {name for name, cls in ENCODINGS.items() if issubclass(cls, InputsMixin)}
    assert {*BIASES, *PRODUCTS, *OTHER_FILES, *inputs} == set(ENCODINGS)


def test_huang_with_clamped_distances():
    for method, farthest in itertools.product((1, 2, 3, 4), (1, 4)):
        encoding = random_encoding("huang", False, method=method, k=3)
        encoding.clamp_length = farthest
        check_scores(huang, encoding, 2, 9, 6)
