"""Attention at random positions in ascending order, compared with padded sequences."""

import itertools

import pytest
import torch
from support.pairwise_scores import D, H
from support.tensors import assert_same, perturbed, randn, with_gradients

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention, softmax
from fairseq_lrpe.encodings import ENCODINGS, InputsMixin
from fairseq_lrpe.methods import METHODS, Method
from fairseq_lrpe.ops.position_index import PositionIndex, random_position_index

E, L, N = H * D, 9, 40
KINDS = {"linear": LinearAttention, "softmax": SoftmaxAttention}
INPUT = {name for name, cls in ENCODINGS.items() if issubclass(cls, InputsMixin)}
INPUT |= {"cope", "stick_breaking", "stick_breaking_norm"}

MORE = [
    Method({"encoding": "shaw", "shaw_k": 2, "shaw_values": True, "shaw_per_head": True}, ""),
    Method({"encoding": "shaw", "shaw_k": 3, "shaw_k_after": 1}, ""),
]


def build(kind, name, options, causal=True):
    shared = {"causal": causal, "layer": 2, "layers": 3, "max_positions": N}
    return perturbed(kind(E, H, name, **shared, **options).double().eval())


def cases():
    """Returns {test name: (attention, encoding, its options, causal)} for the encodings of all methods."""
    found = {}
    for method in [*METHODS.values(), *MORE]:
        name, flags = method.encoding, method.flags
        if name in INPUT | {"none"} or "liere_block_size" in flags:
            continue
        options = {k.removeprefix(f"{name}_"): v for k, v in flags.items() if k.startswith(f"{name}_")}
        if name == "tupe":
            options["cls"] = False
        for attention, causal in itertools.product(method.attentions(), (True, False)):
            if causal or ENCODINGS[name].bidirectional:
                case = KINDS[attention], name, options, causal
                found[f"{attention}-{name}-{sorted(options.items())}-{causal}"] = case
    return found


CASES = cases()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_tokens_at_positions_equal_a_padded_sequence(monkeypatch, case):
    monkeypatch.setattr(softmax, "_CAUSAL_BLOCK_SIZE", 4)
    check(build(*case))


@pytest.mark.parametrize("name", ["alibi", "xpos", "per", "rope"])
@pytest.mark.parametrize("options", [{"linear_norm": "content"}, {"linear_norm": "layernorm"}], ids=str)
def test_linear_attention_with_other_options(name, options):
    check(build(LinearAttention, name, options))


def check(module):
    """The tokens are at their positions in a sequence whose other positions are padding."""
    p, x = random_position_index(L, N), randn(2, L, E).requires_grad_()
    padding = torch.zeros(2, L, dtype=torch.bool)
    padding[1, 3:5] = padding[1, -1] = True
    leaves = [x, *module.parameters()]
    for given in (None, padding):
        hidden = torch.zeros_like(padding) if given is None else given
        padded = x.new_zeros(2, N, E).index_copy(1, p.query_positions, x)
        mask = torch.ones(2, N, dtype=torch.bool).index_copy(1, p.query_positions, hidden)
        found = module(x, key_padding_mask=given, position_index=p)[~hidden]
        expected = module(padded, key_padding_mask=mask)[:, p.query_positions][~hidden]
        assert_same(with_gradients(found, leaves), with_gradients(expected, leaves))


def test_draw():
    first, second = (random_position_index(20, N) for _ in range(2))
    for index in (first, second):
        p = index.query_positions.tolist()
        assert p == sorted(set(p)) and p[0] >= 0 and p[-1] < N and len(p) == 20
        assert index.key_positions is index.query_positions and index.max_position == N - 1
    assert first.query_positions.tolist() != second.query_positions.tolist()
    state = torch.get_rng_state()
    fixed = [random_position_index(20, N, fixed=True).query_positions for _ in range(2)]
    assert fixed[0].equal(fixed[1]) and state.equal(torch.get_rng_state())
    counts = sum(
        torch.zeros(6).index_fill(0, random_position_index(2, 6).query_positions, 1) for _ in range(3000)
    )
    assert (counts / 1000 - 1).abs().max() < 0.15
    assert random_position_index(0, N).query_positions.tolist() == []
    assert random_position_index(N, N).query_positions.tolist() == list(range(N))
    with pytest.raises(
        ValueError, match="41 tokens cannot have different positions below 40: use at least 41"
    ):
        random_position_index(N + 1, N)


@pytest.mark.parametrize("arguments", [{"return_state": True}, {"memory": torch.zeros(1, 2, E)}], ids=list)
def test_states_are_refused(arguments):
    for kind in (LinearAttention, SoftmaxAttention):
        module, p = kind(E, H, "rope", causal=True), torch.tensor([2, 5, 6])
        with pytest.raises(ValueError, match="a memory or a state requires consecutive"):
            module(torch.zeros(1, 3, E), position_index=PositionIndex(p, p, 9), **arguments)


@pytest.mark.parametrize("name", sorted(INPUT))
def test_encodings_that_depend_on_the_input_are_refused(name):
    module, p = SoftmaxAttention(E, H, name, causal=True), torch.tensor([2, 5, 6])
    with pytest.raises(ValueError, match=f"^position_index does not support the encoding {name}, which"):
        module(torch.zeros(1, 3, E), position_index=PositionIndex(p, p, 9))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "kind, name", [(LinearAttention, "xpos"), (SoftmaxAttention, "xpos"), (LinearAttention, "alibi")]
)
def test_half_precision(kind, name, dtype):
    module, index = build(kind, name, {}), random_position_index(L, N)
    x = randn(2, L, E).to(dtype)
    exact = module(x.double(), position_index=index)
    found = module.to(dtype)(x, position_index=index)
    assert found.dtype == dtype and (found.double() - exact).abs().max() < 30 * torch.finfo(dtype).eps
