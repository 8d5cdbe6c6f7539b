"""Parameters that stay in float32 in half precision."""

import copy

import pytest
import torch
from torch import nn

from fairseq_lrpe.encodings import ENCODINGS, build_encoding
from fairseq_lrpe.ops.precision import Float32Parameters
from fairseq_lrpe.positions import POSITIONS, build_position


class Toy(Float32Parameters):
    float32_parameters = ("angle", "linear.weight", "base")

    def __init__(self):
        super().__init__()
        self.angle, self.gain = nn.Parameter(torch.tensor([1 / 3])), nn.Parameter(torch.ones(1))
        self.linear = nn.Linear(2, 2)
        self.register_buffer("base", torch.tensor([1 / 3]))


def dtypes(module):
    kept = {x.dtype for name, x in module.state_dict().items() if name in Toy.float32_parameters}
    return kept, {x.dtype for name, x in module.state_dict().items() if name not in Toy.float32_parameters}


def expected(dtype):
    return {torch.promote_types(dtype, torch.float32)}, {dtype}


every_half = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


@every_half
def test_conversions(dtype):
    """Also inside of another module, of a copy, and of gradients; values are exactly those before."""
    toy = Toy()
    for parameter in toy.parameters():
        parameter.grad = parameter.detach().clone()
    model, parameters, third = nn.Sequential(toy), list(toy.parameters()), torch.tensor([1 / 3])
    for convert in (lambda: model.to(dtype), lambda: model.to("cpu", dtype), lambda: copy.deepcopy(model)):
        kept = convert()[0]
        assert dtypes(kept) == expected(dtype)
        assert kept.angle.equal(third) and kept.base.equal(third)
    assert toy.angle.grad.equal(third) and toy.linear.weight.grad.dtype == torch.float32
    assert toy.gain.grad.dtype == dtype
    assert all(x is y for x, y in zip(parameters, toy.parameters(), strict=True))
    for other in (torch.float64, dtype, torch.float32):
        assert dtypes(model.to(other)[0]) == expected(other)


@every_half
def test_meta_device(dtype):
    with torch.device("meta"):
        toy = Toy().to(dtype)
    assert dtypes(toy) == expected(dtype) and toy.angle.is_meta
    assert dtypes(toy.to_empty(device="cpu")) == expected(dtype) and not toy.angle.is_meta


@pytest.mark.parametrize("dtype, assign", [(torch.float16, False), (torch.bfloat16, True)])
def test_checkpoints_of_both_kinds_can_be_loaded(dtype, assign):
    rounded = {name: x.to(dtype) for name, x in Toy().state_dict().items()}  # without ``float32_parameters``
    toy = Toy().to(dtype)
    toy.load_state_dict(rounded, assign=assign)
    assert dtypes(toy) == expected(dtype) and toy.angle == rounded["angle"]
    assert rounded["angle"].dtype == dtype
    toy.load_state_dict(Toy().state_dict(), assign=assign)
    assert toy.angle.item() == torch.tensor(1 / 3).item()


@every_half
def test_parameters_that_were_created_in_half_precision(dtype):
    torch.set_default_dtype(dtype)
    try:
        toy, lrpe = Toy(), build_encoding("lrpe", num_heads=1, head_dim=4, causal=True, learn_theta=True)
    finally:
        torch.set_default_dtype(torch.float32)
    assert lrpe.theta.dtype == torch.float32 and dtypes(toy.to(dtype)) == expected(dtype)


def test_names_are_those_of_parameters():
    """A misspelled name would have no effect."""
    shared = {"num_heads": 2, "head_dim": 4, "causal": True, "max_positions": 8, "layers": 2}
    options = {"lrpe": {"learn_theta": True}}
    modules = [build_encoding(name, **shared, **options.get(name, {})) for name in ENCODINGS]
    modules += [build_position(name, embed_dim=4, vocab_size=5) for name in POSITIONS]
    names = {name for module in modules for name in module.float32_parameters}
    for module in modules:
        assert set(module.float32_parameters) <= module.state_dict().keys()
    assert {"theta", "generators", "freqs", "omega.weight", "outer.weight", "w"} <= names


@every_half
@pytest.mark.parametrize("weight_norm", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm])
def test_parametrized_parameters(dtype, weight_norm):
    """Those from which a parameter in float32 is computed have float32, too."""

    class Double(nn.Module):
        def forward(self, x):
            return 2 * x

    toy = Toy()
    nn.utils.parametrize.register_parametrization(toy, "angle", Double())
    weight_norm(toy.linear)
    before = toy.angle.detach()
    toy.to(dtype)
    assert toy.angle.equal(before) and toy.gain.dtype == toy.linear.bias.dtype == dtype
    kept = [name for name, x in toy.named_parameters() if x.dtype == torch.float32]
    assert len(kept) == 3 and not {"gain", "linear.bias"} & {*kept}
    toy.load_state_dict({key: x.to(dtype) for key, x in toy.state_dict().items()}, assign=True)
    assert toy.angle.dtype == torch.float32
