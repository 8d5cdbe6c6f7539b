"""Names, shapes and initial values of the parameters of every encoding, invalid options, the registry."""

import math

import pytest
import torch
from support.pairwise_scores import all_scores
from support.tensors import assert_same, randn

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention
from fairseq_lrpe.encodings import (
    ENCODINGS,
    START,
    Context,
    Encoding,
    build_encoding,
    encoding_options,
    register_encoding,
)
from fairseq_lrpe.ops.rotation import rotary_angles

H, D = 2, 6
E = H * D


def build(name, *, causal=True, heads=H, d=D, layers=3, **options):
    return build_encoding(name, num_heads=heads, head_dim=d, causal=causal, layers=layers, **options)


PRIOR = {"w_r.weight": (E, E), "u": (H, D), "v": (H, D)}
TABLE = {"positions.weight": (9, E), "norm.weight": (E,), "norm.bias": (E,)}
TABLE |= {f"to_{name}.weight": (E, E) for name in ("query", "key")}
TABLE |= {f"to_{name}.bias": (E,) for name in ("query", "key")}
SPE = {"freqs": (H, D, 1), "offsets": (H, D, 1), "gains": (H, D, 1), "gate": (H, D)}
FIRE = {"c": (1,), "multiplier": (1,), "hidden_weight": (32, 1), "hidden_bias": (32,)}
DAPE = {"hidden_weight": (32, 2 * H), "hidden_bias": (32,), "output_weight": (H, 32)}
PATH = {"w_in.weight": (32, E), "w_out.weight": (E, 32), "convolution": (3, E)}
GATE = {"gate.weight": (H, E), "gate.bias": (H,)}
ANGLES = {"w_in.weight": (16, E), "w_out.weight": (E // 2, 16), "convolution": (4, E // 2)}
RANK_32 = ANGLES | {"w_in.weight": (32, E), "w_out.weight": (E // 2, 32)}
DECAY = {"decay_in.weight": (16, E), "decay_out.weight": (E, 16), "decay_out.bias": (E,)}
DEBERTA = {"rel_embeddings.weight": (6, E), "pos_key.weight": (E, E), "pos_query.weight": (E, E)}

CASES = [  # (encoding, options, {name in the state dict: shape})
    *((name, {}, {}) for name in ("none", "rope", "roper", "rope_values", "cosformer")),
    *((name, {}, {}) for name in ("alibi", "xpos", "retnet", "nezha")),
    ("lrpe", {}, {"v": (D,)}),
    ("lrpe", {"learn_theta": True, "learn_householder": True}, {"theta": (D // 2,), "v": (D,)}),
    ("lrpe", {"core": "unitary", "rotation": "fft", "learn_theta": True}, {"theta": (D,)}),
    ("lrpe", {"core": "mixed", "rotation": "odd_even", "learn_theta": True}, {"theta": (2,)}),
    ("lrpe", {"core": "permutation", "rotation": "identity"}, {"permutation": (D,)}),
    ("lrpe_decay", {}, {"theta": (D,)}),
    ("lrpe_decay", {"first_layer": True}, {"theta": (H, D)}),
    ("lrpe_decay", {"first_layer": True, "layer": 2}, {}),
    ("lrpe", {"rotation": "cayley"}, {"generator": (D * (D - 1) // 2,)}),
    ("pope", {}, {"delta": (H, D)}),
    ("axial_rope", {}, {}),
    ("per", {}, {"permutation": (H, D)}),
    ("spe", {}, SPE),
    ("conv_spe", {}, {"kernel_q": (H, D, 200), "kernel_k": (H, D, 200), "gate": (H, D)}),
    ("p_rope", {}, {}),
    ("fope", {}, {"length": (1,), "cosine": (H, D // 2, D // 2), "sine": (H, D // 2, D // 2)}),
    ("rope_mixed", {}, {"theta": (1, H, D // 2)}),
    ("liere", {}, {"generators": (1, H, 1, 15)}),
    ("liere", {"axes": 2, "block_size": 2}, {"generators": (2, H, 3, 1)}),
    ("t5", {}, {"relative_attention_bias.weight": (32, H)}),
    ("shaw", {}, {"w_k.weight": (33, D)}),
    ("shaw", {"k": 3}, {"w_k.weight": (7, D)}),
    ("shaw", {"k": 3, "k_after": 0, "values": True}, {"w_k.weight": (4, D), "w_v.weight": (4, D)}),
    ("shaw", {"k": 3, "k_after": 5, "per_head": True}, {"w_k.weight": (9, E)}),
    ("lfhc", {"k": 2}, {"w_k.weight": (5, D)}),
    ("xl", {}, PRIOR),
    ("gcdf", {}, PRIOR),
    ("deberta", {"k": 3}, DEBERTA),
    ("gaussian", {}, {"w": (1,), "b": (1,)}),
    ("kerple", {}, {"bias_p": (H,), "bias_a": (H,)}),
    ("sandwich", {}, {}),
    ("dape", {}, {**DAPE, "prior.bias_p": (H,), "prior.bias_a": (H,)}),
    ("dape", {"bias": "alibi"}, DAPE),
    ("huang", {"k": 5, "method": 1}, {"a": (6, 1)}),
    ("huang", {"k": 5, "method": 2}, {"a": (11, 1)}),
    ("huang", {"k": 5, "method": 4}, {"a": (11, D)}),
    ("fire", {}, {**FIRE, "output_weight": (H, 32), "threshold": (1,)}),
    ("tupe", {"max_positions": 9}, TABLE),
    ("tupe", {"max_positions": 8, "causal": False}, TABLE),
    ("tupe", {"max_positions": 9, "relative_bias": True}, {**TABLE, "buckets.weight": (32, H)}),
    ("cope", {}, {"embeddings": (64, D)}),
    ("stick_breaking", {}, {}),
    ("stick_breaking_norm", {}, {"norm.weight": (E,), "norm.bias": (E,)}),
    ("log_scale", {}, {}),
    ("path", {}, {**PATH, "beta.weight": (H, E), "beta.bias": (H,)}),
    ("path_fox", {}, {**PATH, "beta.weight": (H, E), "beta.bias": (H,), **GATE}),
    ("fox", {}, GATE),
    ("fox", {"no_bias": True}, {"gate.weight": (H, E)}),
    ("fox_rope", {}, GATE),
    ("gla", {}, {"w_in.weight": (16, E), "w_out.weight": (E, 16), "w_out.bias": (E,)}),
    ("selective_rope", {}, ANGLES),
    ("selective_rope", {"gate": True}, ANGLES | {f"angle_{name}": shape for name, shape in GATE.items()}),
    ("selective_rope", {"rank": 3}, ANGLES | {"w_in.weight": (3, E), "w_out.weight": (E // 2, 3)}),
    ("selective_rope_fox", {}, ANGLES | GATE),
    ("selective_rope_gla", {}, RANK_32 | DECAY),
    ("grape", {}, {"step.weight": (1, E), "step.bias": (1,), "angles.log_theta": (D // 2,)}),
    ("mamba3_rope", {}, {"velocity.weight": (D // 2, E), "step.weight": (H, E), "step.bias": (H,)}),
    ("content_bias", {"rank": 5, "extent": 7}, {"w_r.weight": (H * 5, E), "p": (5, 7)}),
    ("wall", {}, {"gate.weight": (E, E), "gate.bias": (E,)}),
]


@pytest.mark.parametrize("name, options, shapes", CASES, ids=str)
def test_names_and_shapes(name, options, shapes):
    encoding = build(name, **options)
    assert {n: tuple(x.shape) for n, x in encoding.state_dict().items()} == shapes
    frozen = {"permutation", "threshold", "length", "cosine", "sine"}
    if name == "lrpe" and not options.get("learn_householder"):
        frozen.add("v")
    assert set(dict(encoding.named_parameters())) == set(shapes) - frozen
    unscaled = {"deberta": 3 * D, "tupe": 2 * D}.get(name, D)
    assert math.isclose(encoding.scale, unscaled**-0.5)


def test_every_encoding_is_tested():
    assert {name for name, *_ in CASES} == set(ENCODINGS)


def test_initial_parameters_have_no_effect():
    q, k = randn(2, H, 9, D, seed=1), randn(2, H, 9, D, seed=2)
    for encoding in (build("cope"), *(build("huang", causal=False, method=method) for method in (1, 2, 3))):
        assert_same(all_scores(encoding.double(), q, k), q @ k.mT / math.sqrt(D))


def check_uniform(x, least, most):
    width = most - least
    assert least <= x.min() < least + 0.1 * width and most - 0.1 * width < x.max() <= most
    assert abs((x.mean() - least) / width - 0.5) < 0.1


def test_initial_values():
    state = {n: x.item() for n, x in build("gaussian").state_dict().items()}
    assert state == {"w": pytest.approx(0.01), "b": pytest.approx(-0.1)}
    for power in (False, True):
        kerple = build("kerple", heads=1000, power=power)
        check_uniform(kerple.bias_p, 0.01, 2)
        check_uniform(kerple.bias_a, 0.01, 1)
    check_uniform(build("conv_spe", heads=8).kernel_q, 0, 0.1)
    check_uniform(build("liere", heads=100).generators, 0, 2 * math.pi)
    assert 0.1 < build("huang", method=4).a.abs().max() < 1
    for name, parameter in build("tupe", heads=8, d=8, relative_bias=True).named_parameters():
        if parameter.dim() == 2:
            assert 0.015 < parameter.std() < 0.025, name
        else:
            assert (parameter == (name == "norm.weight")).all(), name
    # FIRE's threshold is a quarter of the positions.
    fire, dape = build("fire", max_positions=2048, heads=8), build("dape", heads=8)
    assert fire.c == 0.1 and fire.multiplier == 1 and fire.threshold == 512
    assert build("fire", max_positions=3).threshold == 1
    # The perceptrons are initialized as torch's layers.
    for encoding, first in ((fire, 1), (dape, 1 / 4)):
        most = {"hidden_weight": first, "hidden_bias": first, "output_weight": 32**-0.5}
        for name, bound in most.items():
            assert 0.8 * bound < getattr(encoding, name).abs().max() <= bound
    check_uniform(build("dape", heads=1000).prior.bias_p, 0.01, 2)
    assert build("fope", max_positions=3).length == 3 and build("fope", length=5).length == 5
    # 16 of 32 frequencies are at least 2π/512.
    fope, expected = build("fope", heads=8, d=64), torch.empty(8, 16, 16)
    for x in (fope.cosine, fope.sine):
        torch.nn.init.xavier_normal_(expected, gain=0.3)
        assert abs(x.std() / expected.std() - 1) < 0.1 and x.mean().abs() < 0.002
    for name in ("t5", "shaw", "lfhc", "xl", "gcdf", "deberta"):
        assert all(0 < parameter.abs().max() < 3 for parameter in build(name).parameters())


def test_initial_angles():
    for core, count, width in (("unitary", D, D), ("orthogonal", D // 2, D), ("mixed", 2, 4)):
        theta = build("lrpe", core=core, learn_theta=True).theta
        assert_same(theta.double(), rotary_angles("a", count, width, 512), 1e-7)
    theta = build("lrpe_decay", first_layer=True).theta.flatten().tolist()
    assert theta == pytest.approx([10000 ** (-2 * n / E) for n in range(E)], rel=1e-6)
    assert_same(build("rope_mixed").theta[0, 0].double(), rotary_angles("a", D // 2, D, 512), 1e-7)
    theta = build("rope_mixed", heads=100, d=16, axes=2).theta
    size = torch.tensor([10 ** (-4 * m / 16) for m in range(4)])
    assert_same(theta.square().sum(0).sqrt(), size.repeat(2).expand(100, -1), 1e-6)
    first, second = theta[..., :4] / size, theta[..., 4:] / size
    assert_same(second, torch.stack([-first[1], first[0]]), 1e-6)  # 90 degrees later
    assert_same(first, first[..., :1].expand(-1, -1, 4), 1e-6)
    assert theta[0, :, 0].std() > 0.5


def test_only_a_frozen_householder_vector_is_normalized():
    """In both papers' pseudocode, a learned v starts as N(0, I), and every step divides by its norm."""
    expected = torch.randn(64)
    for learned in (False, True):
        torch.manual_seed(0)
        v = build("lrpe", d=64, core="unitary", learn_householder=learned).v
        torch.testing.assert_close(v.detach(), expected if learned else expected / expected.norm())


def test_per_has_one_permutation_per_head():
    permutations = build("per", heads=4, d=16).permutation
    assert len({tuple(p) for p in permutations.tolist()}) == 4
    assert all(p.sort().values.equal(torch.arange(16)) for p in permutations)


WRONG = [  # (encoding, options, part of the message)
    ("t5", {"buckets": 30}, "needs a multiple of 4 buckets.*not buckets 30 and max_distance 128"),
    ("t5", {"max_distance": 16}, "max_distance above half their number, not buckets 32 and max_distance 16"),
    ("shaw", {"k": 0}, "at least 1, not 0"),
    ("shaw", {"k_after": -2}, "k_after of at least 0, or -1 to use k, not -2"),
    ("nezha", {"k": 0}, "at least 1, not 0"),
    ("lrpe_decay", {"layers": None}, "lrpe_decay depends on the number of layers: pass layers"),
    ("none", {"layer": 4}, "layers must be at least layer 4, not 3"),
    ("lfhc", {"rounding": "up"}, "unknown rounding 'up': choose from away, floor"),
    ("deberta", {"k": 0}, "at least 1, not 0"),
    ("gcdf", {"lambda_": 0.0}, "positive.*0"),
    ("fire", {"width": 0}, "width of at least 1 .*not width 0"),
    ("fire", {"threshold": -1}, "threshold of at least 0.*threshold -1"),
    ("dape", {"bias": "t5"}, "unknown dape bias 't5': choose from kerple, alibi"),
    ("dape", {"width": 0}, "width of at least 1, not 0"),
    ("huang", {"k": 0}, "k of at least 1 and a method from 1 to 4, not k 0 and method 4"),
    ("huang", {"method": 5}, "not k 16 and method 5"),
    ("cope", {"positions": 1}, "at least 2 positions, not 1"),
    ("conv_spe", {"kernel_size": 0}, "kernel size of at least 1, not 0"),
    ("xpos", {"gamma": 0.0}, "positive gamma"),
    ("xpos", {"scale_base": 0}, "scale base of at least 1"),
    ("lrpe", {"core": "magic"}, "'magic'.*unitary, orthogonal, mixed, permutation"),
    ("lrpe", {"rotation": "magic"}, "'magic'.*identity, householder, odd_even, fft"),
    ("lrpe", {"theta_type": "magic"}, "'magic'.*a, b, c"),
    ("lrpe", {"core": "mixed", "rotation": "fft"}, "unitary core.*'mixed'"),
    ("lrpe", {"core": "permutation", "learn_theta": True}, "set learn_theta to False"),
    ("lrpe", {"rotation": "identity", "learn_householder": True}, "set learn_householder to False"),
    ("lrpe", {"core": "orthogonal", "d": 7}, "even, not 7"),
    ("lrpe", {"core": "mixed", "d": 2}, "at least 3, not 2"),
    ("rope", {"d": 7}, "even, not 7"),
    ("p_rope", {"p": 0.0}, "p from 1/3 to 1, to keep a frequency, not 0"),
    ("p_rope", {"p": 0.3}, "p from 1/3 to 1, to keep a frequency, not 0.3"),
    ("p_rope", {"p": 1.5}, "p from 1/3 to 1, .* not 1.5"),
    ("fope", {"d": 7}, "even head_dim, .* not head_dim 7"),
    ("fope", {"sigma": -1.0}, "sigma and a length of at least 0, not .* sigma -1"),
    ("fope", {"length": -1}, "length of at least 0, not .* length -1"),
    (
        "rope",
        {"axes": 2},
        "does not support positions with 2 coordinates: use axial_rope or liere or rope_mixed",
    ),
    ("rope_mixed", {"axes": 2}, "must be a multiple of 4 in an image, not 6"),
    ("axial_rope", {"axes": 2}, "by 2 coordinates: head_dim must be a multiple of 4, not 6"),
    ("rope", {"base": 1.0}, "rope needs a base above 1, such as 10000, not 1.0"),
    ("fox_rope", {"base": float("nan")}, "fox_rope needs a base above 1, such as 10000, not nan"),
    ("content_bias", {"extent": 0}, "needs a rank and an extent of at least 1, not 16 and 0"),
    ("axial_rope", {"base": 0.5}, "axial_rope needs a base of at least 1, not 0.5"),
    (
        "selective_rope",
        {"rank": 0},
        "needs a rank of at least 1 and an init_std of at least 0, not 0 and 0.0",
    ),
    ("selective_rope", {"d": 7}, "selective_rope rotates pairs of features: head_dim must be even, not 7"),
    ("rope_mixed", {"d": 7}, "must be a multiple of 2 in a sequence, not 7"),
    ("liere", {"block_size": 4}, "block size of at least 2 that divides head_dim 6, not 4"),
    ("liere", {"block_size": 1}, "block size of at least 2 that divides head_dim 6, not 1"),
    ("magic", {}, "unknown encoding 'magic': fairseq_lrpe.encodings.ENCODINGS has all names"),
    ("none", {"layer": 0}, "layer must be at least 1, not 0"),
    ("lrpe", {"kernel": 1}, "'lrpe'.*'kernel'.*core, rotation, learn_theta"),
]


@pytest.mark.parametrize("name, options, message", WRONG, ids=str)
def test_invalid_options_are_rejected(name, options, message):
    with pytest.raises(ValueError, match=message):
        build(name, **options)


# Registry.


class Scaled(Encoding):
    def __init__(self, *, factor=2.0, **shared):
        super().__init__(**shared)
        self.factor = factor

    def forward(self, q, k, context=START):
        return self.factor * q, k


def test_new_encoding_can_be_registered(monkeypatch):
    monkeypatch.setitem(ENCODINGS, "scaled", None)
    for wrong in ({}, {"factr": ""}, {"factor": "", "other": ""}):  # every option needs a help text
        with pytest.raises(TypeError, match=r"Scaled.*'factor'"):
            register_encoding("scaled", **wrong)(Scaled)
    assert ENCODINGS["scaled"] is None
    assert register_encoding("scaled", factor="what queries are multiplied by")(Scaled) is Scaled
    assert encoding_options(Scaled) == {"factor": 2.0}
    q = k = torch.randn(1, 2, 3, 6)
    assert build("scaled")(q, k)[0].equal(2 * q)
    encoding = build("scaled", layer=3, max_positions=99, factor=5.0)
    assert encoding(q, k)[0].equal(5 * q)
    assert (encoding.num_heads, encoding.head_dim, encoding.causal) == (2, 6, True)
    assert (encoding.layer, encoding.max_positions) == (3, 99)
    with pytest.raises(ValueError, match=r"'scaled'.*'factr'.*factor"):
        build("scaled", factr=5.0)


def test_offsets_may_be_given_instead_of_a_context():
    q, k = torch.randn(2, 1, 2, 3, 6)
    encoding = build("rope")
    for found, expected in zip(encoding(q, k, 7, 4), encoding(q, k, Context(7, 4)), strict=True):
        assert found.equal(expected)
    assert not encoding(q, k, 7, 4)[0].equal(encoding(q, k)[0])


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("cls", [SoftmaxAttention, LinearAttention])
def test_parameters_have_gradients_with_an_empty_batch(name, cls):
    """DistributedDataParallel refuses parameters without a gradient."""
    if cls is LinearAttention and not ENCODINGS[name].decomposable:
        return
    module = cls(16, 2, name, causal=True, layer=1, layers=4)
    module(torch.randn(0, 5, 16)).sum().backward()
    assert not [name for name, x in module.named_parameters() if x.grad is None or x.grad.any()]
