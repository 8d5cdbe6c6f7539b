"""Delta rules in chunks against the recurrence that defines them, and against public code."""

import pytest
import torch
from support.launches import Launches
from support.tensors import assert_same, randn, with_gradients

from fairseq_lrpe.ops import constants, decay, delta_rule
from fairseq_lrpe.ops.linear import delta_chunks

DECAYS = [0, 1, 2]
"""Kinds of decays: none, one per head, one per feature."""


def inputs(kind, length, strength=1.0, d=4, dv=3, dtype=torch.float64):
    """Returns tensors by argument name; keys have norm 1, and log decays are from -strength to 0."""
    k = randn(2, 2, length, d, seed=1)
    found = {
        "q": randn(2, 2, length, d, seed=2),
        "k": k / k.norm(dim=-1, keepdim=True),
        "v": randn(2, 2, length, dv, seed=3),
        "beta": randn(2, 2, length, seed=4).sigmoid(),
        "state": randn(2, 2, d, dv, seed=5),
    }
    if kind:
        shape = (2, 2, length, d)[: 2 + kind]
        found["log_decay"] = -strength * randn(*shape, seed=6).sigmoid()
    return {name: x.to(dtype) for name, x in found.items()}


def results(arguments, **options):
    """Returns the output, the state, and the gradients of all tensors."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in arguments.items()}
    return with_gradients(delta_rule(**leaves, return_state=True, **options), [*leaves.values()])


def loop(q, k, v, beta, state, log_decay=None):
    """Computes the outputs and the last state with the matrices of the definition, for each head."""
    outputs = torch.zeros_like(v)
    states = state.clone()
    for b in range(len(q)):
        for h in range(q.size(1)):
            s = state[b, h]
            for t in range(q.size(2)):
                key = k[b, h, t]
                reflection = torch.eye(len(key), dtype=key.dtype) - beta[b, h, t] * torch.outer(key, key)
                if log_decay is not None:
                    alpha = log_decay[b, h, t].exp()
                    s = torch.diag(alpha) @ s if alpha.dim() else alpha * s
                s = reflection @ s + beta[b, h, t] * torch.outer(key, v[b, h, t])
                outputs[b, h, t] = s.T @ q[b, h, t]
            states[b, h] = s
    return outputs, states


@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("backend", ["reference", "chunk"])
def test_definition(kind, backend):
    arguments = inputs(kind, 11)
    found = delta_rule(**arguments, return_state=True, backend=backend, chunk_size=4)
    assert_same(found, loop(**arguments))


@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("strength", [0.01, 3.0, 100.0])
@pytest.mark.parametrize("length, size", [(2, None), (5, 1), (37, 8), (64, 64), (150, None)])
def test_chunks_match_the_recurrence(kind, strength, length, size):
    """All gradients, too; the decays are so strong that products of them underflow in float64."""
    arguments = inputs(kind, length, strength)
    found = results(arguments, backend="chunk", chunk_size=size)
    expected = results(arguments, backend="reference")
    assert_same(found, expected)
    narrow = results({name: x.float() for name, x in arguments.items()}, backend="chunk", chunk_size=size)
    assert_same([x.double() for x in narrow], expected, 1e-5)


@pytest.mark.parametrize("kind", DECAYS)
def test_decays_that_are_not_read(kind, monkeypatch):
    """As on a GPU, where the products of decays of features cannot depend on values."""
    monkeypatch.setattr(decay, "_can_read", lambda x: False)
    monkeypatch.setattr(delta_chunks, "_CHUNK_SIZE", 128)
    for strength in (0.1, 100.0):
        arguments = inputs(kind, 300, strength)
        assert_same(results(arguments), results(arguments, backend="reference"))


@pytest.mark.parametrize("kind", DECAYS)
def test_short_sequences(kind):
    arguments = inputs(kind, 1)
    assert_same(results(arguments), results(arguments, backend="chunk"))
    for backend in ("auto", "chunk", "reference"):
        out, state = delta_rule(**inputs(kind, 0), return_state=True, backend=backend)
        assert out.shape == (2, 2, 0, 3) and state.equal(inputs(kind, 0)["state"])


@pytest.mark.parametrize("kind", DECAYS)
def test_parts_of_a_sequence(kind):
    """The state continues a sequence, and fewer queries are the last ones."""
    arguments = inputs(kind, 20)
    expected = delta_rule(**arguments, return_state=True)
    state = arguments.pop("state")
    outputs = []
    for part in (slice(0, 7), slice(7, 8), slice(8, 20)):
        own = {name: x[:, :, part] for name, x in arguments.items()}
        out, state = delta_rule(**own, state=state, return_state=True)
        outputs.append(out)
    assert_same((torch.cat(outputs, dim=2), state), expected)
    whole = inputs(kind, 20)
    for backend in ("chunk", "reference"):
        for start in (13, 19, 20):
            fewer = whole | {"q": whole["q"][:, :, start:]}
            out, state = delta_rule(**fewer, return_state=True, chunk_size=8, backend=backend)
            assert out.shape == (2, 2, 20 - start, 3)
            assert_same(torch.cat([expected[0][:, :, :start], out], dim=2), expected[0])
            assert_same(state, expected[1])


@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("backend", ["reference", "chunk"])
def test_padding_changes_nothing(kind, backend):
    arguments = inputs(kind, 12)
    padding = torch.zeros(2, 12, dtype=torch.bool)
    padding[0, [0, 1, 5, 6, 11]] = True
    padding[1, 3:] = True
    options = {"return_state": True, "backend": backend, "chunk_size": 4}
    out, state = delta_rule(**arguments, key_padding_mask=padding, **options)
    for b in range(2):
        seen = ~padding[b]
        own = {
            name: x[b : b + 1] if name == "state" else x[b : b + 1, :, seen] for name, x in arguments.items()
        }
        assert_same((out[b : b + 1, :, seen], state[b : b + 1]), delta_rule(**own, **options))


@pytest.mark.parametrize("kind", DECAYS)
def test_second_derivatives(kind):
    arguments = inputs(kind, 5, d=2, dv=2)

    def function(*tensors):
        named = dict(zip(arguments, tensors, strict=True))
        return delta_rule(**named, return_state=True, chunk_size=2, backend="chunk")

    leaves = [x[:1, :1].clone().requires_grad_() for x in arguments.values()]
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


@pytest.mark.parametrize("kind", DECAYS)
def test_compiled_as_one_graph(kind):
    arguments = inputs(kind, 70)
    leaves = [x.requires_grad_() for x in arguments.values()]

    def function(*tensors):
        return delta_rule(**dict(zip(arguments, tensors, strict=True)), return_state=True, chunk_size=16)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert_same(with_gradients(compiled(*leaves), leaves), with_gradients(function(*leaves), leaves))


@pytest.mark.parametrize("kind", DECAYS)
def test_meta_tensors(kind):
    arguments = {name: x.to("meta") for name, x in inputs(kind, 200).items()}
    out, state = delta_rule(**arguments, return_state=True)
    assert out.shape == (2, 2, 200, 3) and state.shape == (2, 2, 4, 3) and out.device.type == "meta"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", DECAYS)
def test_half_precision_computes_in_float32(kind, dtype):
    arguments = inputs(kind, 70, dtype=dtype)
    out, state = delta_rule(**arguments, return_state=True)
    wide = {name: x.double() for name, x in arguments.items()}
    assert out.dtype == state.dtype == torch.float32
    assert_same((out.double(), state.double()), delta_rule(**wide, return_state=True), 1e-5)


def test_equal_keys_in_float32():
    """Rounding errors are not amplified, although each key replaces all of the state."""
    for kind in DECAYS:
        arguments = inputs(kind, 500, 1e-3, dtype=torch.float32)
        arguments["k"] = arguments["k"][:, :, :1].expand(-1, -1, 500, -1)
        wide = {name: x.double() for name, x in arguments.items()}
        assert_same(delta_rule(**arguments).double(), delta_rule(**wide, backend="reference"), 1e-5)


@pytest.mark.parametrize("kind", DECAYS)
def test_flash_linear_attention(kind):
    pytest.importorskip("fla")
    from fla.ops.delta_rule.naive import delta_rule_recurrence
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
    from fla.ops.kda.naive import naive_recurrent_kda

    arguments = inputs(kind, 70, d=8, dv=6, dtype=torch.float32)
    found = delta_rule(**arguments | {"q": arguments["q"] * 8**-0.5}, return_state=True)
    state = arguments.pop("state")
    if not kind:
        expected = delta_rule_recurrence(*arguments.values(), state.clone())
    else:
        rows = {name: x.transpose(1, 2) for name, x in arguments.items()}
        g = rows.pop("log_decay")
        naive = naive_recurrent_kda if kind == 2 else naive_recurrent_gated_delta_rule
        out, last = naive(**rows, g=g, initial_state=state, output_final_state=True)
        expected = out.transpose(1, 2), last
    assert_same(found, expected, 1e-5)


LIMITS = {0: 115, 1: 170, 2: 215}
"""{kind of decay: largest number of kernels of a forward and backward pass of 2,048 tokens}"""


@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("length", [512, 2048])
def test_launches(kind, length, monkeypatch):
    monkeypatch.setattr(delta_chunks, "_CHUNK_SIZE", delta_chunks._LARGE_CHUNK_SIZE)
    monkeypatch.setattr(decay, "_can_read", lambda x: False)
    monkeypatch.setattr(constants, "is_tracing", lambda: False)  # the counter is a dispatch mode
    arguments = inputs(kind, length, dtype=torch.bfloat16)
    leaves = {name: x.requires_grad_() for name, x in arguments.items()}

    def run():
        with Launches() as counted:
            delta_rule(**leaves).sum().backward()
        return counted

    run()  # constants are computed once
    assert run().kernels <= LIMITS[kind]


@pytest.mark.parametrize("change, message", [
    ({"q": torch.zeros(2, 3)}, r"q must have shape \(batch, heads, length, width\), not \(2, 3\)"),
    ({"q": torch.zeros(2, 2, 6, 4)}, "at least as many keys as queries, not 5 and 6"),
    ({"v": torch.zeros(2, 2, 6, 3)}, r"v must have shape \(2, 2, 5, 3\) for k"),
    ({"beta": torch.zeros(2, 2, 5, 1)}, r"beta must have shape \(2, 2, 5\) for k"),
    ({"log_decay": torch.zeros(2)}, r"log_decay must have shape \(2, 2, 5\) for k"),
    ({"log_decay": torch.zeros(2, 2, 5, 3)}, r"log_decay must have shape \(2, 2, 5, 4\) for k"),
    ({"state": torch.zeros(2, 2, 3, 4)}, r"state must have shape \(2, 2, 4, 3\) for k"),
    ({"key_padding_mask": torch.zeros(2, 5)}, "key_padding_mask must be bool"),
    ({"chunk_size": 0}, "chunk_size must be at least 1, not 0"),
    ({"backend": "fla"}, "unknown backend 'fla'.*auto, chunk, reference"),
])  # fmt: skip
def test_invalid_arguments(change, message):
    with pytest.raises(ValueError, match=message) as raised:
        delta_rule(**inputs(0, 5) | change)
    assert "\n" not in str(raised.value)
