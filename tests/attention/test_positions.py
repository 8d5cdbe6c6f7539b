"""Explicit positions: their types, order, range and number of coordinates; the largest position."""

import re

import pytest
import torch
from support.pairwise_scores import in_parts
from support.tensor_sizes import TensorSizes
from support.tensors import assert_same, perturbed, randn
from torch._subclasses.fake_tensor import FakeTensorMode

from fairseq_lrpe.attention import (
    LinearAttention,
    MultiheadLinearAttention,
    MultiheadSoftmaxAttention,
    SoftmaxAttention,
    apply_encoding,
    attention_bias,
)
from fairseq_lrpe.encodings import ENCODINGS, Context, build_encoding
from fairseq_lrpe.ops.position_index import PositionIndex, grid_position_index
from fairseq_lrpe.positions import POSITIONS, build_position

B, E, H, D, L = 2, 16, 2, 8, 6
KINDS = {"linear": LinearAttention, "softmax": SoftmaxAttention}
INTEGERS = [getattr(torch, name) for name in "int8 int16 int32 uint8 uint16 uint32 uint64".split()]


def modules(causal, **options):
    """Returns {name: module} of every encoding in each attention that supports it."""
    found = {}
    for kind, attention in KINDS.items():
        for name, cls in ENCODINGS.items():
            if (causal or cls.bidirectional) and (kind == "softmax" or cls.decomposable):
                torch.manual_seed(0)
                module = attention(E, H, name, causal=causal, layers=2, max_positions=40, **options)
                found[f"{kind} {name}"] = perturbed(module.double().eval())
    return found


def index_of(positions, last=None):
    positions = torch.as_tensor(positions)
    return PositionIndex(positions, positions, int(positions.max()) if last is None else last)


def refuses(call, message, error=ValueError):
    with pytest.raises(error, match=re.escape(message)) as raised:
        call()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("causal", [True, False])
def test_integers_of_any_type(causal):
    """uint8 tensors are not used as masks: neither all positions, equal ones, nor one of each row."""
    x, q = randn(B, L, E), randn(B, H, L, D)
    samples = [torch.arange(L), torch.ones(L).long(), torch.tensor([1, 1, 3, 9, 9, 20])]
    for name, module in modules(causal).items():
        for positions in samples:
            if not module.encoding.accumulates:
                expected = module(x, position_index=index_of(positions))
                for dtype in INTEGERS:
                    found = module(x, position_index=index_of(positions.to(dtype), int(positions.max())))
                    assert found.equal(expected), (name, dtype)
            for function in (apply_encoding, attention_bias):
                try:
                    expected = function(module.encoding, q, q, positions)
                except ValueError:  # which encodings they support does not depend on the positions
                    continue
                for dtype in INTEGERS:
                    found = function(module.encoding, q, q, positions.to(dtype))
                    assert_same(found, expected, 1e-15)
    for positions in (torch.arange(L) * 1.0, torch.arange(L).tolist()):
        index = PositionIndex(positions, positions, L - 1)
        refuses(lambda i=index: module(x, position_index=i), "must be a tensor of integers", TypeError)


def test_token_positions_and_orders_of_any_type():
    x, positions, tokens = randn(1, 3, E), torch.tensor([[1, 1, 2]]), torch.tensor([[3, 4, 5]])
    for name in POSITIONS:
        module = build_position(name, embed_dim=E, vocab_size=9, max_positions=9).double().eval()
        for dtype in INTEGERS:
            assert module(x, positions.to(dtype), tokens).equal(module(x, positions, tokens)), name
    for name, module in modules(causal=True).items():
        _, state = module(randn(3, 4, E), return_state=True)
        step, order = randn(2, 1, E), torch.tensor([1, 1])
        expected = module(step, state=module.reorder_state(state, order))
        for dtype in INTEGERS:
            assert module(step, state=module.reorder_state(state, order.to(dtype))).equal(expected), name
        refuses(lambda m=module, s=state: m.reorder_state(s, step[0, 0]), "order must be a", TypeError)  # noqa: B023


@pytest.mark.parametrize("order", [[0, 1, 2, 0, 1, 2], [5, 4, 3, 2, 1, 0], [1, 4, 9, 8, 11, 12]], ids=str)
def test_descending_positions(order):
    """Causal attention would look at later positions; otherwise the order of tokens does not matter."""
    x, positions = randn(B, L, E), torch.tensor(order)
    for module in modules(causal=True).values():
        message = "accumulates" if module.encoding.accumulates else "must not descend or restart"
        refuses(lambda m=module: m(x, position_index=index_of(positions)), message)
    ascending = positions.argsort(stable=True)
    for name, module in modules(causal=False).items():
        found = module(x, position_index=index_of(positions))[:, ascending]
        expected = module(x[:, ascending], position_index=index_of(positions[ascending]))
        assert_same(found, expected), name


def test_wrong_positions():
    module, x, p = SoftmaxAttention(E, H, "t5", causal=False), torch.zeros(B, 3, E), torch.arange(3)
    for index, message in [
        (PositionIndex(p - 1, p - 1, 2), "positions must be from 0 to max_position 2"),
        (PositionIndex(p, p, 1), "positions must be from 0 to max_position 1"),
        (PositionIndex(p, p + 1, 9), "query_positions and key_positions must be equal"),
        (PositionIndex(p[:2], p, 9), "query_positions must have shape (3,) for 3 tokens and 1 coord"),
        (PositionIndex(p, p[:1], 9), "key_positions must have shape (3,) for 3 tokens and 1 coord"),
        (grid_position_index(1, 3), "query_positions must have shape (3,) for 3 tokens and 1 coord"),
    ]:
        refuses(lambda i=index: module(x, position_index=i), message)
    refuses(lambda: module(x, position_index=p), "must be a PositionIndex(positions", TypeError)
    refuses(lambda: SoftmaxAttention(E, H, "none", causal=True, max_positions=0), "must be at least 1")


@pytest.mark.parametrize("attention", KINDS.values())
@pytest.mark.parametrize("name", [name for name, cls in ENCODINGS.items() if cls.multidimensional])
def test_coordinates_are_required(attention, name):
    x, (rows, columns) = randn(B, 6, E), (2, 3)
    for causal in (True, False):
        module = attention(E, H, name, causal=causal, axes=2).double()
        for call in (lambda: module(x), lambda: module(x[:, :1], return_state=causal)):  # noqa: B023
            refuses(call, f"{name} encodes positions with 2 coordinates: pass position_index, such as grid_p")
        for q in (0, index_of(torch.arange(6)), index_of(torch.zeros(6, 1).long())):
            refuses(lambda q=q: module.encoding(x[:, None], x[:, None], Context(q, q)), "with 2 coord")  # noqa: B023
        grid, index = grid_position_index(rows, columns), torch.arange(6)
        for wrong in (index, index[:, None], torch.zeros(6, 3).long(), grid.query_positions[:5]):
            refuses(lambda w=wrong: module(x, position_index=index_of(w)), "must have shape (6, 2)")  # noqa: B023
        refuses(lambda: module(x, position_index=grid, return_state=True), "requires consecutive")  # noqa: B023
        out = module(x, position_index=grid)
        assert module(x, position_index=index_of(grid.query_positions.to(torch.uint8), 2)).equal(out)
    wrapped = MultiheadLinearAttention if attention is LinearAttention else MultiheadSoftmaxAttention
    wrapped = wrapped(E, H, module.encoding).double()
    wrapped.load_state_dict(module.state_dict())
    refuses(lambda: wrapped(x, x, x), "with 2 coordinates: pass position_index")
    assert wrapped(x, x, x, position_index=grid)[0].equal(out)


def test_three_coordinates():
    """LieRE's rotation is the exponential of a sum over the coordinates."""
    encoding = build_encoding(
        "liere", num_heads=1, head_dim=4, causal=False, axes=3, max_positions=5
    ).double()
    positions, x = torch.tensor([[0, 0, 0], [1, 2, 3], [4, 0, 1]]), randn(1, 1, 3, 4)
    found, _ = apply_encoding(encoding, x, x, positions)
    for s in range(3):
        upper = torch.zeros(4, 4, dtype=torch.float64)
        upper[tuple(torch.triu_indices(4, 4, 1))] = (
            positions[s].double() @ encoding.generators[:, 0, 0].detach().double() / 4
        )
        assert_same(found[0, 0, s], torch.matrix_exp(upper - upper.T) @ x[0, 0, s])
    for name, axes, message in [
        ("rope_mixed", 3, "rope_mixed has angles for 1 or 2 coordinates, not 3"),
        ("liere", 0, "axes and max_positions must be at least 1"),
        ("rope", 2, "rope does not support positions with 2 coordinates"),
    ]:
        refuses(lambda n=name, a=axes: SoftmaxAttention(48, 2, n, causal=False, axes=a), message)


@pytest.mark.parametrize("mode", [torch.device("meta"), FakeTensorMode()], ids=["meta", "fake"])
@pytest.mark.parametrize("attention, name", [(LinearAttention, "rope"), (SoftmaxAttention, "alibi")])
def test_positions_without_values(attention, name, mode):
    """Their order, their range and the list of their distances are not computed."""
    with mode:
        module = attention(E, H, name, causal=True)
        positions = torch.arange(L)
        out = module(torch.zeros(B, L, E), position_index=PositionIndex(positions, positions, 10**6))
    assert out.shape == (B, L, E)


LIMITED = [(LinearAttention, "cosformer", {}), (SoftmaxAttention, "cosformer", {})]
LIMITED += [(SoftmaxAttention, "tupe", {}), (SoftmaxAttention, "tupe", {"relative_bias": True})]


@pytest.mark.parametrize("attention, name, options", LIMITED)
def test_positions_beyond_the_maximum(attention, name, options):
    message = "position 9 is beyond"
    for causal in (True, False):
        module = attention(E, H, name, causal=causal, max_positions=9, **options).double()
        module(randn(B, 9, E))
        module(randn(B, 2, E), position_index=index_of([3, 8]))
        refuses(lambda: module(randn(B, 10, E)), message)  # noqa: B023
        refuses(lambda: module(randn(B, 2, E), position_index=index_of([3, 9])), message)  # noqa: B023
        refuses(lambda: module.to("meta")(randn(B, 10, E).to("meta")), message)  # noqa: B023
    module = attention(E, H, name, causal=True, max_positions=9, **options).double().eval()
    for sizes in ([1] * 10, [4, 5, 1], [7, 3], [9, 1]):
        refuses(lambda s=sizes: in_parts(module, randn(B, 10, E), s), message)
        in_parts(module, randn(B, 9, E), [*sizes[:-1], sizes[-1] - 1] if sizes[-1] > 1 else sizes[:-1])
    refuses(lambda: module(randn(B, 4, E), memory=randn(B, 6, E)), message)
    function = apply_encoding if name == "cosformer" else attention_bias
    q = randn(1, H, 2, D)
    function(module.encoding, q, q, torch.tensor([0, 8]))
    refuses(lambda: function(module.encoding, q, q, torch.tensor([[0, 9]])), message)
    refuses(
        lambda: function(module.encoding, q[:, :, :1], q, torch.tensor([9]), torch.tensor([0, 9])), message
    )


def test_shifted_keys_of_cosformer():
    module = LinearAttention(E, H, "cosformer", causal=True)
    _, state = module(torch.zeros(1, 3, E), return_state=True)
    refuses(lambda: module.restart_positions(state), "cosformer cannot shift the positions of encoded keys")


@pytest.mark.parametrize("name", ["recurrent", "floater", "floater_every_layer"])
def test_token_positions_with_too_many_steps(name):
    module, x, token = (
        build_position(name, embed_dim=4, vocab_size=9),
        torch.zeros(1, 1, 4),
        torch.tensor([[3]]),
    )
    refuses(lambda: module(x, torch.tensor([[2**40]]), token), "at most 1048576 tokens, not 1099511627777")


@pytest.mark.parametrize("attention", KINDS.values())
@pytest.mark.parametrize("name", ["spe", "conv_spe"])
def test_a_state_in_training_with_noise(attention, name):
    module, x = attention(E, H, name, causal=True).double(), randn(B, 4, E)
    message = f"{name} draws new noise in each call in training mode"
    refuses(lambda: module(x, return_state=True), message)
    _, state = module.eval()(x, return_state=True)
    refuses(lambda: module.train()(x, state=state), message)
    module(x)
    found, _ = in_parts(module.eval(), x, [1, 2, 1])
    assert_same(found, module(x))


FAR = 2**40
FORMULAS = {  # the bias of head 0 at a far distance
    "alibi": lambda encoding, distance: -(2.0**-4) * distance,
    "t5": lambda encoding, distance: encoding.relative_attention_bias.weight[-1, 0],
    "kerple": lambda encoding, distance: -encoding.bias_p[0] * (1 + encoding.bias_a[0] * distance).log(),
}


@pytest.mark.parametrize("causal", [True, False])
def test_tables_of_far_positions(causal):
    """They have the given distances only, in attention_bias and in attention modules."""
    q, k, positions = randn(1, H, 4, D), randn(1, H, 4, D, seed=1), torch.tensor([0, 3, 9, FAR])
    for name in ENCODINGS:
        if not (causal or ENCODINGS[name].bidirectional) or name in ("cosformer", "tupe"):
            continue
        module = SoftmaxAttention(E, H, name, causal=causal, layers=2).double().eval()
        if not module.encoding.accumulates:
            with TensorSizes() as sizes:
                assert module(randn(1, 4, E), position_index=index_of(positions)).isfinite().all()
            assert sizes.total < 10**7, name
        try:
            near = attention_bias(module.encoding, q, k, positions.clamp(max=10))
        except ValueError:
            continue
        with TensorSizes() as sizes:
            far = attention_bias(module.encoding, q, k, positions)
        assert sizes.total < 10**6, name
        assert_same(far[..., :3, :3].tril(), near[..., :3, :3].tril())
        if name in FORMULAS and causal:
            assert_same(far[0, 0, 3, 1], FORMULAS[name](module.encoding, torch.tensor(FAR - 3.0).double()))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("causal", [True, False])
def test_inputs_that_are_not_finite(value, causal):
    """The output of their own token is not a number; no encoding uses one as an index."""
    x = randn(B, L, E)
    x[0, 2, 3] = value
    x.requires_grad_()
    for name, module in modules(causal).items():
        out = module(x)
        assert out[0, 2].isnan().any() and out[1].isfinite().all(), name
        out.sum().backward()
        if causal:
            found, _ = in_parts(module, x.detach(), [1] * L)
            assert found[0, 2].isnan().any() and found[1].isfinite().all(), name
