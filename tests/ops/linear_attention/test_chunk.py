"""Tests the chunk backend: equality with the reference, precision, memory, invalid arguments."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import assert_same

from fairseq_lrpe.ops import linear_attention

MAX_PART_ELEMENTS = "fairseq_lrpe.ops.linear_attention.causal._max_part_elements"


def draw_inputs(data):
    """Returns float64 leaves by argument name, and the other arguments."""
    n, before = data.draw(st.integers(1, 300), "length"), data.draw(st.sampled_from([0, 0, 1, 30]), "before")
    batch, heads = (data.draw(st.integers(1, 3), x) for x in "BH")
    d, dv = (data.draw(st.integers(1, 9), x) for x in ("d", "dv"))
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6), "seed"))

    def random(*shape):
        return torch.rand(batch, heads, *shape, generator=g, dtype=torch.float64)

    leaves = {"q": random(n, d), "k": random(before + n, d), "v": random(before + n, dv) - 0.5}
    if data.draw(st.booleans(), "state"):
        leaves |= {"kv": random(d, dv) - 0.5, "k_sum": random(d)}
    shape = {"none": None, "heads": (heads,), "features": (heads, d), "shared": (1, d)}
    if shape := shape[data.draw(st.sampled_from(["none", "heads", "features", "shared"]), "decay")]:
        strength = data.draw(st.sampled_from([0.01, 1.0, 30.0]), "strength")
        leaves["log_decay"] = -strength * torch.rand(shape, generator=g, dtype=torch.float64)
    padding = {
        "none": None,
        "some": torch.rand(batch, before + n, generator=g) < 0.5,
        "rows": (torch.rand(batch, generator=g) < 0.5)[:, None].expand(batch, before + n),
        "all": torch.ones(batch, before + n, dtype=torch.bool),
    }[data.draw(st.sampled_from(["none", "some", "rows", "all"]), "padding")]
    return leaves, {"causal": True, "normalize": data.draw(st.booleans(), "normalize"), "padding": padding}


def results(leaves, *, padding, **options):
    """Returns outputs, state, and the gradients of a random weighted sum of them."""
    leaves = {name: x.clone().requires_grad_() for name, x in leaves.items()}
    inputs = dict(leaves)
    state = inputs.pop("kv", None), inputs.pop("k_sum", None)
    out, new = linear_attention(
        **inputs,
        **options,
        key_padding_mask=padding,
        state=None if state[0] is None else state,
        return_state=True,
    )
    g = torch.Generator().manual_seed(1)
    loss = sum((x * torch.randn(x.shape, generator=g, dtype=torch.float64)).sum() for x in (out, *new))
    gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return out, *new, *gradients


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data())
def test_chunk_matches_reference(data):
    leaves, options = draw_inputs(data)
    expected = results(leaves, backend="reference", **options)
    size = data.draw(st.sampled_from([None, 1, 7, 16, 64]), "chunk size")
    # Elements processed at once: one chunk of one sequence, some chunks, or all.
    elements = data.draw(st.sampled_from([1, 500, 2000, 2**18]), "elements")
    with patch(MAX_PART_ELEMENTS, lambda device: elements):
        actual = results(leaves, backend="chunk", chunk_size=size, **options)
    assert_same(actual, expected)


@pytest.mark.parametrize("causal, decay, normalize", [
    (False, (2,), True),
    (True, (2,), True),
    (True, (2, 3), True),
    (True, (1, 3), False),
])  # fmt: skip
def test_gradcheck(causal, decay, normalize):
    g = torch.Generator().manual_seed(0)
    shapes = (2, 2, 7, 3), (2, 2, 7, 3), (2, 2, 7, 2), decay, (2, 2, 3, 2), (2, 2, 3)
    q, k, v, decay, kv, k_sum = (
        torch.rand(shape, generator=g, dtype=torch.float64).requires_grad_() for shape in shapes
    )

    options = {"causal": causal, "normalize": normalize, "return_state": True, "chunk_size": 3}

    def function(q, k, v, decay, kv, k_sum):
        decay = -decay if causal else None
        out, state = linear_attention(q, k, v, log_decay=decay, state=(kv, k_sum), **options)
        return out, *state

    assert torch.autograd.gradcheck(function, (q, k, v, decay, kv, k_sum))
    assert torch.autograd.gradgradcheck(function, (q, k, v, decay, kv, k_sum), fast_mode=True)


@pytest.mark.parametrize("shape, dtype", [
    ((2,), torch.float16),
    ((2, 16), torch.bfloat16),
    ((1, 16), torch.float16),
])  # fmt: skip
def test_gradient_of_a_decay_in_half_precision(shape, dtype):
    g = torch.Generator().manual_seed(0)
    half = [torch.rand(2, 2, 1024, 16, generator=g).to(dtype).requires_grad_() for _ in range(3)]
    decay, w = -0.05 * torch.rand(shape, generator=g), torch.randn(2, 2, 1024, 16, generator=g)
    gradients = []
    for backend, inputs in (("chunk", half), ("reference", [x.double() for x in half])):
        leaf = decay.to(torch.promote_types(inputs[0].dtype, torch.float32)).requires_grad_()
        out = linear_attention(*inputs, causal=True, normalize=True, log_decay=leaf, backend=backend)
        gradients.append(torch.autograd.grad((out * w).sum(), leaf)[0].double())
    # As accurate as with inputs in float32, whose error is up to 3e-5.
    assert (gradients[0] - gradients[1]).abs().max() <= 1e-4 * gradients[1].abs().max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("decay", [None, -0.02], ids=["plain", "decay"])
def test_half_precision_against_float64(dtype, decay):
    """Outputs up to float32 rounding of 300 terms, gradients up to twice the rounding of half precision."""
    g = torch.Generator().manual_seed(0)
    half = {name: torch.rand(2, 2, 300, 16, generator=g).to(dtype) for name in "qkv"}
    options = {"causal": True, "normalize": True, "padding": None}
    if decay:
        options["log_decay"] = torch.tensor([decay, 2 * decay], dtype=torch.float64)
    exact = results({name: x.double() for name, x in half.items()}, backend="reference", **options)
    actual = results(half, backend="chunk", **options)
    for ours, theirs in zip(actual[:3], exact[:3], strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    for ours, theirs in zip(actual[3:], exact[3:], strict=True):
        assert ours.dtype == dtype
        assert (ours.double() - theirs).abs().max() <= 2 * torch.finfo(dtype).eps * theirs.abs().max()


@pytest.mark.parametrize(
    "decay",
    [None, [-1e-5, -3.0], [[-1e-5, -1e-3, -0.01, -0.1, -0.5, -1.0, -2.0, -3.0]]],
    ids=["plain", "decay", "features"],
)
def test_100_000_tokens(decay):
    g = torch.Generator().manual_seed(0)
    leaves = {name: torch.rand(1, 2, 100_000, 8, generator=g) for name in "qkv"}
    options = {"causal": True, "normalize": True, "padding": None}
    if decay:
        options["log_decay"] = torch.tensor(decay)
    actual = results(leaves, backend="chunk", **options)
    exact = results({name: x.double() for name, x in leaves.items()}, backend="chunk", **options)
    for ours, theirs in zip(actual, exact, strict=True):
        assert torch.isfinite(ours).all()
        assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
def test_strided_inputs_are_not_modified(causal):
    """q, k and v as views of a projection's output (L, B, H·d) give the same results and are not modified.

    The output lies in memory as they do, so that it goes on as (L, B, H·d) without a copy, and so do the
    gradients of causal attention.
    """
    g = torch.Generator().manual_seed(0)
    rows = {name: torch.rand(70, 2, 3 * 4, generator=g, dtype=torch.float64) for name in "qkv"}
    views = {name: x.unflatten(-1, (3, 4)).permute(1, 2, 0, 3) for name, x in rows.items()}
    before = {name: x.clone() for name, x in rows.items()}
    options = {"causal": causal, "normalize": True, "backend": "chunk"}
    if causal:
        options["log_decay"] = torch.tensor([-0.1, -1.0, -2.0], dtype=torch.float64)
    plain = results({name: x.contiguous() for name, x in views.items()}, padding=None, **options)
    assert_same(results(views, padding=None, **options), plain, 1e-13)
    leaves = {name: x.detach().requires_grad_() for name, x in views.items()}
    out = linear_attention(**leaves, **options)
    gradients = torch.autograd.grad(out.sum(), list(leaves.values()))
    assert all(torch.equal(rows[name], before[name]) for name in rows)
    assert all(x.permute(2, 0, 1, 3).is_contiguous() for x in (out, *gradients * causal))


def test_backward_twice_gives_the_same_gradients():
    g = torch.Generator().manual_seed(0)
    leaves = [torch.rand(2, 2, 200, 4, generator=g, dtype=torch.float64).requires_grad_() for _ in "qkv"]
    log_decay = torch.full((2,), -0.1, dtype=torch.float64)
    out = linear_attention(*leaves, causal=True, normalize=True, log_decay=log_decay, backend="chunk")
    first, second = (torch.autograd.grad(out.sum(), leaves, retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


Q, V = torch.rand(2, 3, 5, 4), torch.rand(2, 3, 5, 6)
STATE = torch.zeros(2, 3, 4, 6), torch.zeros(2, 3, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": Q[0]}, r"^q must have shape \(batch, heads, length, width\), not \(3, 5, 4\)$"),
        ({"k": Q[..., :3]}, r"^k must have shape \(2, 3, 5, 4\) .* not \(2, 3, 5, 3\)$"),
        ({"v": V[:, :1]}, r"^v must have shape \(2, 3, 5, 6\) .* not \(2, 1, 5, 6\)$"),
        ({"state": (STATE[0].mT, STATE[1])}, r"^state\[0\].* must have shape \(2, 3, 4, 6\)"),
        ({"state": (STATE[0], STATE[1][:1])}, r"^state\[1\].* must have shape \(2, 3, 4\)"),
        ({"log_decay": torch.zeros(2)}, r"^log_decay must have shape \(3,\)"),
        ({"log_decay": torch.zeros(3), "causal": False}, "causal=True"),
        (
            {"key_padding_mask": torch.zeros(2, 4, dtype=torch.bool)},
            r"^key_padding_mask must have shape \(2, 5\)",
        ),
        ({"key_padding_mask": torch.zeros(2, 5)}, "^key_padding_mask must be bool"),
        ({"q": torch.cat([Q, Q], dim=2)}, "as many keys as queries, got 5 keys and 10 queries.*`state`"),
        ({"chunk_size": 0}, "^chunk_size must be at least 1, not 0"),
        ({"backend": "magic"}, "'magic'.*auto, reference, chunk, fla"),
        ({"backend": "fla"}, "^backend 'fla' "),
    ],
)
def test_errors_are_one_line_and_name_the_argument(change, message):
    arguments = {"q": Q, "k": Q, "v": V, "causal": True, "normalize": True}
    linear_attention(**arguments, state=STATE)
    with pytest.raises(ValueError, match=message) as error:
        linear_attention(**{**arguments, **change})
    assert "\n" not in str(error.value)
