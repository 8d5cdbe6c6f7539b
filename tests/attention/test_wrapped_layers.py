"""Layers with adapters, hooks or quantized weights, and gradients of parameters and of tokens that are 0."""

import pytest
import torch
from support.tensors import assert_same, perturbed, randn
from torch import nn

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention
from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.positions import POSITIONS, build_position

B, H, D, L = 2, 2, 8, 11
E = H * D
OPTIONS = [(name, {}) for name in ENCODINGS]
OPTIONS += [
    ("tupe", {"relative_bias": True}),
    ("shaw", {"values": True, "per_head": True}),
    ("selective_rope", {"gate": True}),
    ("lrpe", {"learn_theta": True, "learn_householder": True}),
]


def built(linear_norm="denominator"):
    """Yields all modules: every encoding in linear and softmax attention, causal and not."""
    for attention in (LinearAttention, SoftmaxAttention):
        for causal in (True, False):
            own = {"linear_norm": linear_norm} if attention is LinearAttention else {}
            for name, options in OPTIONS:
                cls = ENCODINGS[name]
                fits = cls.decomposable or attention is SoftmaxAttention
                if fits and (causal or cls.bidirectional):
                    yield (
                        name,
                        attention(E, H, name, causal=causal, layers=2, max_positions=16, **own, **options),
                    )


class Adapter(nn.Module):
    """A layer plus a product of two small matrices, as LoRA; ``weight`` is that of the layer."""

    def __init__(self, base, rank=2):
        super().__init__()
        rows, columns = base.weight.shape
        self.base = base
        self.down = nn.Parameter(0.3 * torch.randn(rank, columns, dtype=base.weight.dtype))
        self.up = nn.Parameter(0.3 * torch.randn(rows, rank, dtype=base.weight.dtype))

    weight = property(lambda self: self.base.weight)
    bias = property(lambda self: getattr(self.base, "bias", None))

    def forward(self, x):
        if isinstance(self.base, nn.Embedding):
            return self.base(x) + self.up[x] @ self.down
        return self.base(x) + x @ self.down.mT @ self.up.mT

    def merged(self):
        with torch.no_grad():
            self.base.weight += self.up @ self.down
        return self.base


def replace(module, cls, function):
    for name, child in module.named_children():
        if type(child) is cls:
            setattr(module, name, function(child))
        else:
            replace(child, cls, function)


def steps(module, x):
    outputs, state = [], None
    for token in x.split(1, dim=1):
        y, state = module(token, state=state, return_state=True)
        outputs.append(y)
    return torch.cat(outputs, dim=1)


def outputs_of(module, x):
    """Returns the outputs of a forward pass, and those of decoding if causal."""
    with torch.no_grad():
        return [module(x), *([steps(module, x)] if module.causal else [])]


def test_attention_calls_layers_with_adapters():
    x = randn(B, L, E)
    for _, module in built():
        module = perturbed(module.double().eval())
        for layer in (nn.Linear, nn.Embedding):
            replace(module, layer, Adapter)
        found = outputs_of(module, x)
        replace(module, Adapter, Adapter.merged)
        expected = module(x)
        for y in found:
            assert_same(y, expected, 1e-7)


def test_attention_calls_layers_with_hooks():
    x = randn(B, L, E)
    for _, module in built():
        if not module.causal:
            continue
        module = perturbed(module.double().eval())
        for layer in module.modules():
            if isinstance(layer, (nn.Linear, nn.Embedding)):
                layer.register_forward_hook(lambda layer, inputs, output: 1.5 * output)
        whole, decoded = outputs_of(module, x)
        assert_same(decoded, whole, 1e-7)


def test_quantized_attention_decodes():
    x = torch.randn(B, L, E)
    for _, module in built():
        quantized = torch.ao.quantization.quantize_dynamic(module.eval(), {nn.Linear})
        for y in outputs_of(quantized, x):
            assert y.shape == x.shape and y.isfinite().all()


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_call_layers_with_adapters(name):
    shared = {"embed_dim": E, "vocab_size": 9, "max_positions": 16, "causal": True}
    module, x = build_position(name, **shared).double().eval(), randn(B, L, E)
    arguments = x, torch.arange(L).expand(B, L), torch.full((B, L), 5)
    before = module(*arguments).detach()
    for layer in (nn.Linear, nn.Embedding):
        replace(module, layer, Adapter)
    with torch.no_grad():
        found = module(*arguments)
        adapters = [child for child in module.modules() if isinstance(child, Adapter)]
        replace(module, Adapter, Adapter.merged)
        assert_same(found, module(*arguments), 1e-7)
    assert not (adapters and torch.equal(found, before))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", [1, 2])
def test_every_parameter_has_a_gradient(length, padded):
    """DistributedDataParallel raises an error or waits for ever if a parameter has none."""
    mask = torch.zeros(B, length, dtype=torch.bool)
    mask[:, 1:] = True
    for name, module in built():
        has_noise = module.encoding.name in ("spe", "conv_spe")  # refuses a state in training
        for return_state in (False, module.causal and not padded and not has_noise):
            module.zero_grad()
            y = module.train()(torch.randn(B, length, E), key_padding_mask=mask if padded else None)
            if return_state:
                y, _ = module(torch.randn(B, length, E), return_state=True)
            y.sum().backward()
            missing = [key for key, p in module.named_parameters() if p.grad is None]
            assert not missing, (name, type(module), missing)


@pytest.mark.parametrize("name", POSITIONS)
def test_every_parameter_of_positions_has_a_gradient(name):
    for causal in (True, False):
        shared = {"embed_dim": E, "vocab_size": 9, "max_positions": 16, "causal": causal}
        module = build_position(name, **shared).train()
        x, tokens = torch.randn(B, 1, module.width, requires_grad=True), torch.full((B, 1), 5)
        module(x, torch.zeros(B, 1).long(), tokens).sum().backward()
        assert all(p.grad is not None for p in module.parameters())


ZERO_ROWS = {
    "zeros": lambda x: x.index_fill(1, torch.tensor([0, 4, 5]), 0.0),
    "equal": lambda x: x[:, :1].expand_as(x),
    "all zeros": torch.zeros_like,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ZERO_ROWS)
def test_gradients_at_zero_rows_are_bounded(kind, dtype):
    weights = randn(B, L, E, seed=1).to(dtype)
    for name, module in built("layernorm"):  # denominators can be small
        module = module.to(dtype).train()
        largest = []
        for x in (randn(B, L, E), ZERO_ROWS[kind](randn(B, L, E)).clone()):
            x = x.to(dtype).requires_grad_()
            module.zero_grad()
            (module(x) * weights).sum().backward()
            gradients = [x.grad, *(p.grad for p in module.parameters() if p.grad is not None)]
            largest.append(max(float(g.abs().max()) for g in gradients))
        assert largest[1] < 100 * largest[0], (name, type(module), largest)


def test_unit_vectors_have_the_gradient_of_their_definition():
    from fairseq_lrpe.ops.normalization import unit_vectors

    x = randn(5, 4)
    x[2], x[3] = 0, 1e-9
    x.requires_grad_()
    y, g = unit_vectors(x), randn(5, 4, seed=1)
    y.backward(g)
    norm = x.detach().norm(dim=-1, keepdim=True)
    unit = x.detach() / norm.clamp(min=1e-12)
    expected = (g - unit * (unit * g).sum(-1, keepdim=True)) / norm
    expected[2:4] = 0
    assert_same(y.detach(), unit)
    assert_same(x.grad, expected)


def test_householder_of_a_zero_vector_is_the_identity():
    from fairseq_lrpe.ops.reflections import householder

    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        x, v = torch.randn(3, 8).to(dtype).requires_grad_(), torch.zeros(8, dtype=dtype, requires_grad=True)
        y = householder(x, v)
        y.sum().backward()
        assert y.equal(x) and x.grad.isfinite().all() and v.grad.isfinite().all()
