"""Scaled angles: their formulas, Hugging Face's definitions, and invalid scalings."""

import math

import pytest
import torch
from support.tensors import assert_same, with_gradients

from fairseq_lrpe.ops.rope_scaling import SCALINGS, RopeScaling
from fairseq_lrpe.ops.rotation import rotary_angles


def formula(scaling, theta, width, length=None):
    """Returns the scaled angles of a list, in loops."""
    s, m, n, found = scaling.factor, scaling.original_length, len(theta), []
    if scaling.type == "dynamic":
        s = 1 if s is None else s
        s = s * length / m - (s - 1) if length > m else 1
    if m is not None:
        low = math.floor(width / 2 * math.log(m / (32 * 2 * math.pi)) / math.log(10000))
        high = math.ceil(width / 2 * math.log(m / (2 * math.pi)) / math.log(10000))
    for t, x in enumerate(theta):
        if scaling.type == "linear":
            found.append(x / s)
        elif scaling.type in ("ntk", "dynamic"):
            found.append(x / s ** (t / (n - 1)))
        elif scaling.type == "llama3":
            wavelength = 2 * math.pi / abs(x)
            smooth = (m / wavelength - 1) / 3
            if wavelength > m:
                found.append(x / s)
            elif wavelength < m / 4:
                found.append(x)
            else:
                found.append(smooth * x + (1 - smooth) * x / s)
        else:
            index = -width / 2 * torch.as_tensor(x, dtype=torch.float64).abs().log() / math.log(10000)
            ramp = ((index - max(0, low)) / (high - max(0, low))).clamp(0, 1)
            found.append((1 - ramp) * x + ramp * x / s)
    return found


CASES = [
    RopeScaling("linear", 4),
    RopeScaling("ntk", 3.5),
    RopeScaling("dynamic", None, 128),
    RopeScaling("dynamic", 2, 300),
    RopeScaling("yarn", 8, 128),
    RopeScaling("yarn", 2.5, 4096),
    RopeScaling("llama3", 8, 512),
    RopeScaling("llama3", 8, 8192),
]
every = pytest.mark.parametrize("scaling", CASES, ids=str)
LENGTH = 500


def scaled(scaling, theta, width, length=LENGTH, base=10000.0):
    current = scaling.at_length(length)
    return theta if current is None else current.scale(theta, width, base)


@every
@pytest.mark.parametrize("count, width", [(8, 16), (64, 128), (24, 24), (5, 12)])
def test_ladders_match_the_formula(scaling, count, width):
    """Those of RoPE, of unitary LRPE and of half of the features."""
    theta = rotary_angles("a", count, width, 512)
    expected = torch.tensor(formula(scaling, theta.tolist(), width, LENGTH), dtype=torch.float64)
    assert_same(scaled(scaling, theta, width) / theta, expected / theta, 1e-12)
    current = scaling.at_length(LENGTH)
    assert rotary_angles("a", count, width, 512, current).equal(scaled(scaling, theta, width))


@every
def test_any_angles_match_the_formula(scaling):
    """Learned angles are negative, not sorted, or above 1."""
    g = torch.Generator().manual_seed(0)
    sign = torch.tensor([1, -1, 1, 1, -1, 1, -1, 1]).double()
    size = torch.exp(2 - 10 * torch.rand(8, generator=g, dtype=torch.float64))
    theta = (sign * size).requires_grad_()
    expected = formula(scaling, list(theta), 16, LENGTH)
    expected = torch.stack([torch.as_tensor(x, dtype=torch.float64) for x in expected])
    found = scaled(scaling, theta, 16)
    assert_same(with_gradients(found, [theta])[0] / size, with_gradients(expected, [theta])[0] / size)

    def logarithmic(*x):
        return scaled(scaling, *x, 16)

    assert torch.autograd.gradcheck(logarithmic, (theta,), eps=1e-7, atol=1e-6)


@every
def test_angle_of_zero(scaling):
    theta = torch.tensor([0.0, 0.01], dtype=torch.float64, requires_grad=True)
    found, gradient = with_gradients(scaled(scaling, theta, 4), [theta])
    assert found[0] == 0 and gradient.isfinite().all()


def test_factor_one_changes_nothing():
    theta = rotary_angles("a", 16, 32, 512)
    for name in SCALINGS:
        divisors = (1.0,) * 16 if name == "longrope" else None
        scaling = RopeScaling(name, 1, 64, divisors).at_length(64)
        if scaling is not None:
            assert_same(scaling.scale(theta, 32), theta, 1e-15)
            assert scaling.attention_factor == 1
    assert RopeScaling("dynamic", None, 64).at_length(64) is None
    assert RopeScaling("yarn", 4, 64).attention_factor == pytest.approx(0.1 * math.log(4) + 1, rel=1e-15)


def divisors_of(count):
    return tuple(1 + t / 4 for t in range(count))


@pytest.mark.parametrize("base", [10000, 500000])
@pytest.mark.parametrize("d", [16, 64, 128])
@pytest.mark.parametrize("scaling", [*CASES, "longrope"], ids=str)
def test_definitions_of_hugging_face(scaling, d, base):
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if scaling == "longrope":
        scaling = RopeScaling("longrope", 4, 128, divisors_of(d // 2))
    factor, length = scaling.factor or 1, scaling.original_length or 77
    values, kind = {"rope_type": scaling.type, "factor": float(factor)}, scaling.type
    if kind == "ntk":  # the base of their dynamic type at the length factor · M
        values |= {"rope_type": "dynamic", "factor": 1.0}
        kind, length, current = "dynamic", 1000, int(factor * 1000)
    else:
        current = LENGTH
    if kind == "llama3":
        values |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        values["original_max_position_embeddings"] = length
    if kind == "longrope":
        divisors = list(scaling.divisors)
        values |= {"long_factor": divisors, "short_factor": divisors}
        values["original_max_position_embeddings"] = length
    config = LlamaConfig(
        hidden_size=2 * d, num_attention_heads=2, rope_theta=base, max_position_embeddings=length
    )
    config.rope_scaling = values
    theirs, attention_factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=current)
    theta = rotary_angles("a", d // 2, d, 512, None, base)
    ours = scaled(scaling, theta, d, base=base)
    torch.testing.assert_close(ours / theta, theirs.double() / theta, rtol=0, atol=1e-6)
    assert rotary_angles("a", d // 2, d, 512, scaling.at_length(LENGTH), base).equal(ours)
    assert scaling.attention_factor == pytest.approx(attention_factor, abs=1e-12)


def test_texts():
    assert RopeScaling.parse("yarn:8:128") == RopeScaling("yarn", 8, 128)
    assert RopeScaling.parse("yarn", factor=2, original_length=64) == RopeScaling("yarn", 2, 64)
    assert RopeScaling.parse("yarn:3", factor=2, original_length=64) == RopeScaling("yarn", 3, 64)
    assert RopeScaling.parse("dynamic", factor=2, original_length=64) == RopeScaling("dynamic", None, 64)
    assert str(RopeScaling("dynamic", None, 64)) == "dynamic:1:64"
    longrope = RopeScaling("longrope", 4, 512, (1.0, 1 / 3, 4.5))
    for scaling in (*CASES, RopeScaling("ntk", 7 / 3), longrope):
        again = RopeScaling.parse(str(scaling))
        assert again.at_length(LENGTH) == scaling.at_length(LENGTH) and str(again) == str(scaling)


def test_another_number_of_divisors():
    scaling = RopeScaling("longrope", 4, 128, divisors_of(3))
    with pytest.raises(ValueError, match="needs 4 divisors, one for each angle, not 3"):
        scaling.scale(rotary_angles("a", 4, 8, 512), 8)


@pytest.mark.parametrize("text, message", [
    ("yarm:4:128", "unknown rope scaling 'yarm' (did you mean 'yarn'?): choose from linear, ntk"),
    ("", "unknown rope scaling ''"),
    ("linear", "linear scaling needs a factor of at least 1, such as linear:4"),
    ("linear:0.5", "the factor of rope scaling must be finite and at least 1, not 0.5"),
    ("linear:nan", "must be finite and at least 1, not nan"),
    ("linear:inf", "must be finite and at least 1, not inf"),
    ("yarn:4", "yarn scaling needs the length in training, such as 512 in yarn:4:512"),
    ("dynamic", "dynamic scaling needs the length in training, such as 512 in dynamic:4:512"),
    ("llama3:4:0", "the length in training must be at least 1, not 0"),
    ("yarn:four", "must be TYPE, TYPE:FACTOR or TYPE:FACTOR:LENGTH, such as yarn:4:512, not 'yarn:four'"),
    ("longrope:4:128", "longrope scaling, and no other one, needs a divisor for each angle"),
    ("longrope:4:128:1,0", "the divisors of longrope scaling must be positive, not (1.0, 0.0)"),
    ("longrope:4:1:1,2", "longrope scaling needs a length in training of at least 2"),
    ("longrope:4:128:1,b", "must be TYPE, TYPE:FACTOR or TYPE:FACTOR:LENGTH"),
    ("yarn:4:128:1", "must be TYPE, TYPE:FACTOR or TYPE:FACTOR:LENGTH"),
])  # fmt: skip
def test_invalid_texts(text, message):
    with pytest.raises(ValueError) as raised:
        RopeScaling.parse(text)
    assert message in str(raised.value) and "\n" not in str(raised.value)
