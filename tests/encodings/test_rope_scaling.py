"""Rotations with scaled angles: every encoding against its formula, decoding, and what is refused."""

import copy
import math
import pickle
import re

import pytest
import torch
from support.pairwise_scores import in_parts, rotated
from support.tensors import assert_same, perturbed, randn, with_gradients
from support.tiny import REPOSITORY
from torch import nn

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention, apply_encoding
from fairseq_lrpe.encodings import ENCODINGS, Context, build_encoding
from fairseq_lrpe.encodings.rope import RoPE
from fairseq_lrpe.encodings.rotation import scalable_encodings, scale_rotations
from fairseq_lrpe.ops.orthogonal import cayley
from fairseq_lrpe.ops.position_index import PositionIndex
from fairseq_lrpe.ops.rope_scaling import RopeScaling

B, H, D, L, M = 2, 2, 8, 13, 5
SCALINGS = [
    RopeScaling("linear", 3),
    RopeScaling("ntk", 2.5),
    RopeScaling("dynamic", None, M),
    RopeScaling("yarn", 4, M),
    RopeScaling("yarn", 4, 300),
    RopeScaling("llama3", 8, 30),
]
CASES = [
    ("rope", {}),
    ("rope_values", {}),
    ("roper", {}),
    ("xpos", {"scale_base": 512}),
    ("retnet", {}),
    ("fox_rope", {}),
    ("p_rope", {}),
    *(("lrpe", {"core": core}) for core in ("unitary", "orthogonal", "mixed")),
    *(("lrpe", {"core": core, "learn_theta": True}) for core in ("unitary", "orthogonal", "mixed")),
    ("lrpe", {"core": "unitary", "rotation": "fft"}),
    ("lrpe", {"core": "unitary", "theta_type": "c"}),
    ("lrpe", {"core": "orthogonal", "rotation": "cayley", "learn_theta": True}),
    ("pope", {}),
    ("lrpe_decay", {}),
    ("lrpe_decay", {"first_layer": True}),
    ("rope_mixed", {}),
]
every = pytest.mark.parametrize("name, options", CASES, ids=str)
scaled = pytest.mark.parametrize("scaling", SCALINGS, ids=str)


def build(name, scaling=None, **options):
    """Returns an encoding with different angles in each head and of both signs, if they are learned."""
    torch.manual_seed(0)
    shared = {"num_heads": H, "head_dim": D, "causal": True, "layers": 3}
    encoding = build_encoding(name, **shared, **options).double().eval()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.mul_(torch.randn_like(parameter))
    scale_rotations(encoding, scaling)
    return encoding


def test_cases_have_every_rotation():
    assert set(scalable_encodings()) == {name for name, _ in CASES}


def test_encodings_that_are_not_scalable_are_refused_and_not_recommended(monkeypatch):
    class Fixed(RoPE):
        name = "fixed"
        scalable = False

    monkeypatch.setitem(ENCODINGS, "fixed", Fixed)
    test_cases_have_every_rotation()
    with pytest.raises(ValueError, match=r"^fixed has no rotation angles that can be scaled") as raised:
        scale_rotations(Fixed(num_heads=H, head_dim=D, causal=True), SCALINGS[0])
    assert "fixed" not in str(raised.value).partition(":")[2]


def test_documented_encodings():
    page = (REPOSITORY / "docs/models.md").read_text()
    listed = page.partition("all encodings that rotate by angles:")[2].partition("All other")[0]
    assert set(re.findall(r"`(\w+)`", listed)) - {"permutation"} == {name for name, _ in CASES}


def unscaled_angles(encoding):
    """Returns the angles (H, n) of an encoding and the width of their ladder."""
    theta, width = getattr(encoding, "theta", None), D
    if theta is None:
        pairs = getattr(encoding, "pairs", D // 2)
        if encoding.name == "pope":
            pairs = D
            width = 2 * D
        theta = 10000 ** (-2 * torch.arange(pairs, dtype=torch.float64) / width)
    if encoding.name == "lrpe" and encoding.core == "mixed":
        width = D // 2
    if theta.dim() == 3:
        theta = theta[0]
    if encoding.name == "lrpe_decay" and theta.dim() == 2:
        width = H * D
    return theta.expand(H, -1), width


def expected_angles(encoding, length):
    """Returns the scaled angles (H, n)."""
    theta, width = unscaled_angles(encoding)
    scaling = encoding.rope_scaling and encoding.rope_scaling.at_length(length)
    if scaling is None:
        return theta
    if encoding.name == "lrpe_decay" and width == H * D:  # the ladder continues over the heads
        return scaling.scale(theta.flatten(), width).view_as(theta)
    return scaling.scale(theta, width)


def encoded(encoding, x, offset, length, phase=0.0):
    """Encodes x (B, H, n, d) position by position; features of width 2d are [Re, Im].

    ``phase`` is added to the angles of PoPE.
    """
    angles, rows = expected_angles(encoding, length), []
    factor = encoding.rope_scaling.attention_factor
    for i, row in enumerate(x.unbind(2)):
        s = offset + i
        if encoding.name == "lrpe" and encoding.rotation == "householder":
            v = encoding.v
            row = row - 2 * (row @ v)[..., None] * v / (v @ v)
        if encoding.name == "lrpe" and encoding.rotation == "cayley":
            row = row @ cayley(encoding.generator, D).T
        if encoding.name == "pope":
            row = torch.log(1 + torch.exp(row))
            row = torch.cat([row * f(s * angles + phase) for f in (torch.cos, torch.sin)], dim=-1)
        elif encoding.name in ("lrpe", "lrpe_decay") and encoding.core == "unitary":
            z = torch.fft.fft(row, norm="ortho") if encoding.rotation == "fft" else row + 0j
            z = z * torch.exp(1j * s * angles)
            parts = torch.cat([z.real, z.imag], -1)
            row = torch.view_as_real(z).flatten(-2) if encoding.rotation == "fft" else parts
        else:
            n = 2 * angles.size(-1)
            row = torch.cat([rotated(row[..., :n], s * angles), row[..., n:]], dim=-1)
        rows.append(factor * row)
    return torch.stack(rows, dim=2)


@every
@scaled
def test_encoded_queries_and_keys_match_the_formula(name, options, scaling):
    encoding = build(name, scaling, **options)
    q, k = randn(B, H, 4, D).requires_grad_(), randn(B, H, L, D, seed=1).requires_grad_()
    leaves = [q, k, *encoding.parameters()]
    found = encoding(q, k, Context(L - 4, 0))
    phase = encoding.delta.clamp(-2 * math.pi, 0) if name == "pope" else 0.0
    expected = encoded(encoding, q, L - 4, L), encoded(encoding, k, 0, L, phase)
    assert_same(with_gradients(found, leaves), with_gradients(expected, leaves))
    index = PositionIndex(torch.arange(L - 4, L), torch.arange(L), L - 1)
    keys = index._replace(query_positions=index.key_positions)
    assert_same(encoding(q, k, Context(index, keys)), expected)


@every
@scaled
def test_decay_is_not_scaled(name, options, scaling):
    context = Context(features=randn(1, H, 3, 1))
    decay, plain = (build(name, x, **options).log_decay(context) for x in (scaling, None))
    assert (decay is None and plain is None) or decay.equal(plain)


@pytest.mark.parametrize("name", ["rope_values", "roper"])
@pytest.mark.parametrize("scaling", [None, *SCALINGS], ids=str)
def test_values_are_rotated_but_not_multiplied(name, scaling):
    """By their positions, and the outputs of ``roper`` by the negative ones."""
    encoding, v = build(name, scaling), randn(B, H, L, D)
    angles, s = expected_angles(encoding, L), range(L)
    assert_same(encoding.encode_values(v), torch.stack([rotated(v[:, :, i], i * angles) for i in s], dim=2))
    back = -1 if name == "roper" else 0
    expected = torch.stack([rotated(v[:, :, i], back * i * angles) for i in s], dim=2)
    assert_same(encoding.decode_output(v), expected)


@every
@scaled
def test_decoding_equals_the_whole_sequence(name, options, scaling):
    module = SoftmaxAttention(H * D, H, build(name, scaling, **options)).double().eval()
    x = randn(B, L, H * D)
    length = M if scaling.type == "dynamic" else L
    with torch.no_grad():
        whole = module(x[:, :length])
        steps, state = in_parts(module, x[:, :length], 1)
        assert_same(steps, whole, 1e-8)
        if scaling.type == "dynamic":
            assert not torch.allclose(module(x)[:, :M], whole)
            message = r"^.*cached keys do not have after 5 positions: use ntk.*\Z"  # one line
            with pytest.raises(ValueError, match=message):
                module(x[:, M : M + 1], state=state)


@every
@scaled
def test_shifted_keys(name, options, scaling):
    encoding, k = build(name, scaling, **options), randn(B, H, 4, D)
    if scaling.type == "dynamic":
        with pytest.raises(ValueError, match="dynamic scaling cannot shift encoded keys"):
            encoding.shift_keys(k, 3)
        return
    (_, at_7), (_, at_2) = encoding(k, k, 7, 7), encoding(k, k, 2, 2)
    assert_same(encoding.shift_keys(at_7, 5), at_2)


@pytest.mark.parametrize("layer", [1, 2])
def test_layers_without_rotations_have_no_factor(layer):
    options = {"num_heads": H, "head_dim": D, "causal": True, "layers": 3, "first_layer": True}
    encoding, q = build_encoding("lrpe_decay", layer=layer, **options), torch.ones(1, H, 3, D)
    scale_rotations(encoding, RopeScaling("yarn", 4, 8))
    assert (encoding(q, q)[0] is q) == (layer == 2)
    if layer == 2:
        assert encoding.shift_keys(q, 5) is q


def test_module_with_several_encodings():
    """Angles are scaled in every layer; None restores those of the training."""
    model = nn.ModuleList(SoftmaxAttention(H * D, H, name, causal=True) for name in ("rope", "lrpe", "none"))
    scale_rotations(model, RopeScaling("linear", 2))
    assert [x.encoding.rope_scaling is not None for x in model[:2]] == [True, True]
    assert copy.deepcopy(model)[0].encoding.rope_scaling == RopeScaling("linear", 2)
    assert pickle.loads(pickle.dumps(model))[1].encoding.rope_scaling == RopeScaling("linear", 2)
    scale_rotations(model, None)
    assert model[0].encoding.rope_scaling is None


@pytest.mark.parametrize("name", sorted(set(ENCODINGS) - {name for name, _ in CASES}))
def test_other_encodings_are_refused(name):
    encoding = build_encoding(name, num_heads=H, head_dim=D, causal=True)
    works = f"use one of {', '.join(sorted({name for name, _ in CASES}))} in sequences"
    with pytest.raises(ValueError) as raised:
        scale_rotations(encoding, RopeScaling("linear", 2))
    assert works in str(raised.value) and "\n" not in str(raised.value)


def test_permutations_and_images_are_refused():
    shared = {"num_heads": H, "head_dim": D, "causal": False}
    for name, option in (("lrpe", {"core": "permutation"}), ("rope_mixed", {"axes": 2})):
        model = nn.ModuleList(build_encoding(x, **shared, **y) for x, y in (("rope", {}), (name, option)))
        with pytest.raises(ValueError, match="has no rotation angles that can be scaled: for rope scaling"):
            scale_rotations(model, RopeScaling("ntk", 2))


def test_explicit_positions():
    """With all keys in each call, dynamic scaling works step by step; with cached keys it is refused."""
    encoding, places = build("rope", RopeScaling("dynamic", None, M)), torch.arange(L)
    q, k = randn(2, 1, H, L, D)
    whole, keys = apply_encoding(encoding, q, k, places)
    last, again = apply_encoding(encoding, q[:, :, -1:], k, places[-1:], places)
    assert_same([last, again], [whole[:, :, -1:], keys])
    with pytest.raises(ValueError, match="use ntk, such as ntk:4"):
        apply_encoding(encoding, q[:, :, -1:], k[:, :, -1:], places[-1:])
    with pytest.raises(ValueError, match="use ntk, such as ntk:4"):
        encoding(q, k[:, :, :3], 0, 0)


@pytest.mark.parametrize("norm, same", [("denominator", True), ("layernorm", True), ("content", False)])
def test_temperature_in_linear_attention(norm, same, monkeypatch):
    """It cancels in a division by the encoded sum and in a LayerNorm."""
    torch.manual_seed(0)
    module = LinearAttention(H * D, H, "rope", causal=True, linear_norm=norm).double().eval()
    x = randn(B, L, H * D)
    scale_rotations(module, RopeScaling("yarn", 8, 4))
    found = module(x)
    monkeypatch.setattr(RopeScaling, "attention_factor", 1.0)
    assert torch.allclose(found, module(x), atol=1e-4) == same


@every
@pytest.mark.parametrize("scaling", [SCALINGS[1], SCALINGS[3], SCALINGS[5]], ids=str)
def test_half_precision_meta_tensors_and_export(name, options, scaling):
    encoding, x = build(name, scaling, **options), randn(1, H, L, D)
    whole, _ = encoding(x, x)
    for dtype in (torch.float16, torch.bfloat16):
        found, _ = encoding.to(dtype)(x.to(dtype), x.to(dtype))
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), whole, rtol=0.02, atol=0.05)
    encoding = build(name, scaling, **options)
    exported = torch.export.export(encoding, (x, x)).module()
    assert_same(exported(x, x), encoding(x, x))
    assert encoding.to("meta")(x.to("meta"), x.to("meta"))[0].shape == whole.shape


@pytest.mark.parametrize("d", [8, 32])
@pytest.mark.parametrize("scaling", [x for x in SCALINGS if x.type != "ntk"], ids=str)
def test_attention_of_hugging_faces_llama(scaling, d):
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    values = {"rope_type": scaling.type, "factor": float(scaling.factor or 1)}
    if scaling.type == "llama3":
        values |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        values["original_max_position_embeddings"] = scaling.original_length
    sizes = {"hidden_size": H * d, "num_attention_heads": H, "num_key_value_heads": H}
    sizes["max_position_embeddings"] = scaling.original_length or L
    config = LlamaConfig(**sizes, rope_scaling=values, attention_bias=True, attn_implementation="eager")
    theirs, ours = LlamaAttention(config, 0), SoftmaxAttention(H * d, H, "rope", causal=True)
    weights = {name.replace("o_proj", "out_proj"): x for name, x in perturbed(theirs).state_dict().items()}
    # Their pair t consists of the features t and t + d/2 of a head.
    order = torch.arange(H * d).view(H, 2, d // 2).mT.flatten()
    ours.load_state_dict({name: x[order] if name[0] in "qk" else x for name, x in weights.items()})
    scale_rotations(ours, scaling)
    x = 3 * randn(B, L, H * d)
    mask = torch.full((L, L), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    places = LlamaRotaryEmbedding(config)(x, torch.arange(L)[None])  # computed in float32
    with torch.no_grad():
        expected, _ = theirs.double()(x, position_embeddings=places, attention_mask=mask)
        assert (expected - ours.double()(x)).abs().max() < 1e-6 * expected.abs().max()
