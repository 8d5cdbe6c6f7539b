"""Packed rows: attention of each document equals that of a separate call."""

import re

import pytest
import torch
from support.pairwise_scores import heads
from support.tensors import assert_same, perturbed, randn, with_gradients
from torch.autograd import gradgradcheck

from fairseq_lrpe.attention import (
    LinearAttention,
    MultiheadLinearAttention,
    MultiheadSoftmaxAttention,
    SoftmaxAttention,
    apply_encoding,
    attention_bias,
)
from fairseq_lrpe.attention.fairseq_adapter import FairseqSoftmaxAttention
from fairseq_lrpe.encodings import ENCODINGS, build_encoding
from fairseq_lrpe.encodings.rotation import scale_rotations
from fairseq_lrpe.ops import linear_attention
from fairseq_lrpe.ops.documents import Documents, by_document, document_ids_from_cu_seqlens
from fairseq_lrpe.ops.position_index import PositionIndex
from fairseq_lrpe.ops.rope_scaling import RopeScaling

B, L, E, H, D = 2, 18, 16, 2, 8
IDS = torch.tensor([[0] * 5 + [1] + [2] * 9 + [3] * 3, [-4] * 2 + [1] * 12 + [2] * 3 + [7]])
SIMILAR = torch.tensor([[3] * 9 + [4] * 9, [0] * 8 + [1] * 10])
PADDING = torch.zeros(B, L, dtype=torch.bool)
PADDING[0, 8] = PADDING[0, 15] = PADDING[1, -4:] = True  # in a document, before one, and whole documents
KINDS = {"linear": LinearAttention, "softmax": SoftmaxAttention}
MASKS = {"no mask": None, "mask": PADDING}


def spans(ids):
    """Returns (row, first token, token after the last one) of each document, from the definition."""
    found = []
    for row, numbers in enumerate(ids.tolist()):
        starts = [i for i in range(len(numbers)) if i == 0 or numbers[i] != numbers[i - 1]]
        found += [(row, *span) for span in zip(starts, [*starts[1:], len(numbers)], strict=True)]
    return found


def separate(function, ids, *inputs):
    """Returns the outputs (B, L, ...) of calls for each document with its part of each input, or None."""
    rows = [[] for _ in ids]
    for row, start, stop in spans(ids):
        parts = [None if x is None else x[row : row + 1, start:stop] for x in inputs]
        rows[row].append(function(*parts)[0])
    return torch.stack([torch.cat(row) for row in rows])


def build(attention, name, causal=True, **options):
    torch.manual_seed(0)
    options = {"layers": 2, "max_positions": L, **options}
    return perturbed(attention(E, H, name, causal=causal, **options).double().eval())


def check(module, ids, mask=None, x=None):
    """Compares outputs and gradients of a packed batch with those of separate calls."""
    x = randn(*ids.shape, E).requires_grad_() if x is None else x
    leaves = [x, *module.parameters()]

    def alone(x, mask):
        return module(x, key_padding_mask=mask)

    packed = module(x, document_ids=ids, key_padding_mask=mask)
    assert packed.shape == x.shape and packed.dtype == x.dtype
    assert_same(with_gradients(packed, leaves), with_gradients(separate(alone, ids, x, mask), leaves))


CASES = []
for kind, attention in KINDS.items():
    for name, cls in ENCODINGS.items():
        if kind == "softmax" or cls.decomposable:
            CASES += [(attention, name, causal) for causal in (True, False) if causal or cls.bidirectional]


@pytest.mark.parametrize("attention, name, causal", CASES)
def test_packed_rows_equal_separate_calls(attention, name, causal):
    module = build(attention, name, causal)
    for mask in MASKS.values():
        check(module, IDS, mask)
    check(module, SIMILAR)


@pytest.mark.parametrize("name, options", [
    ("lrpe", {"linear_norm": "layernorm", "core": "unitary", "learn_theta": True}),
    ("lrpe_decay", {"linear_norm": "content"}),
    ("gla", {"linear_norm": "rmsnorm", "feature_map": "silu", "scale_queries": True}),
    ("selective_rope_fox", {"linear_norm": "content"}),
])  # fmt: skip
def test_norms_of_linear_attention(name, options):
    check(build(LinearAttention, name, **options), IDS, PADDING)


def test_windows_keys_and_long_documents():
    module = build(SoftmaxAttention, "t5", max_positions=999)
    module.window = 3
    check(module, IDS)
    lengths = torch.tensor([0, 1100, 1103, 1110])  # above 1,024 positions, softmax attention recomputes
    check(module, document_ids_from_cu_seqlens(lengths), x=randn(1, 1110, E).requires_grad_())
    keys = randn(B, L, E, seed=1)
    expected = separate(lambda x, keys: module(x, keys=keys), IDS, randn(B, L, E), keys)
    assert_same(module(randn(B, L, E), keys=keys, document_ids=IDS), expected)


def test_numbers_of_any_type_and_documents():
    module, x = build(LinearAttention, "xpos"), randn(B, L, E)
    expected = module(x, document_ids=IDS)
    assert module(x, document_ids=Documents.from_ids(IDS)).equal(expected)
    for dtype in (torch.uint8, torch.int8, torch.int32, torch.uint16):
        assert module(x, document_ids=(IDS + 4).to(dtype)).equal(expected)
    assert_same(module(x, document_ids=torch.zeros(B, L, dtype=torch.bool)), module(x))
    starts = torch.cat([torch.ones(B, 1).long(), IDS.diff().clamp(max=1)], dim=1)
    assert module(x, document_ids=starts.cumsum(1)).equal(expected)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("decay", [None, (H,), (H, D), (1, D), (H, 1), (B, H, L), (B, H, L, 1), (B, H, L, D)])
def test_linear_attention(decay, mask):
    for normalize, causal in ((True, True), (False, True), (True, False)):
        if decay is not None and not causal:
            continue
        q, k, v = (randn(B, L, H, d, seed=d).abs().requires_grad_() for d in (D, D, 5))
        log_decay = None if decay is None else (-2 * randn(*decay).abs()).requires_grad_()
        varies = log_decay is not None and log_decay.dim() > 2
        of_keys = log_decay.transpose(1, 2) if varies else None
        leaves = [q, k, v] if decay is None else [q, k, v, log_decay]
        options = {"causal": causal, "normalize": normalize}

        def attend(q, k, v, of_keys, mask, **packed):
            decay = of_keys.transpose(1, 2) if varies else log_decay  # noqa: B023
            heads = (x.transpose(1, 2) for x in (q, k, v))
            options_ = {**options, "log_decay": decay, "key_padding_mask": mask, **packed}  # noqa: B023
            return linear_attention(*heads, **options_).transpose(1, 2)

        for backend in ("reference", "chunk"):
            found = attend(q, k, v, of_keys, mask, document_ids=IDS, backend=backend)
            expected = separate(attend, IDS, q, k, v, of_keys, mask)
            assert_same(with_gradients(found, leaves), with_gradients(expected, leaves))


LENGTHS = [[1], [7, 7], [7, 6, 7, 6, 7], [1] * 40 + [100], [1, 2, 3, 4, 5, 8, 9, 64], list(range(1, 40))]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_groups_at_most_double_the_number_of_tokens(lengths):
    ids = document_ids_from_cu_seqlens(torch.tensor([0, *lengths]).cumsum(0))
    groups = Documents.from_ids(ids).groups
    assert sum(group.count for group in groups) == len(lengths)
    assert sum(len(group.tokens) for group in groups) == sum(lengths)
    assert sum(group.count * group.length for group in groups) <= 2 * sum(lengths)
    assert (len(groups) == 1) == (len(lengths) * max(lengths) <= 1.25 * sum(lengths))
    x = randn(*ids.shape, 3)
    found = by_document(lambda x, key_padding_mask: x.cumsum(1), ids, causal=True, x=x)
    assert_same(found, separate(lambda x: x.cumsum(1), ids, x))
    found = by_document(lambda x, key_padding_mask: count(x, key_padding_mask), ids, causal=False, x=x)
    assert_same(found, separate(lambda x: count(x, None), ids, x))


def count(x, padding):
    """Returns the number of tokens of each row, at each of them."""
    seen = torch.ones(x.shape[:2]) if padding is None else (~padding).float()
    return seen.sum(1, keepdim=True).expand(x.shape[:2])


def test_cu_seqlens():
    for dtype in (torch.int32, torch.int64):
        found = document_ids_from_cu_seqlens(torch.tensor([0, 2, 2, 5], dtype=dtype))
        assert found.tolist() == [[0, 0, 2, 2, 2]]
    assert document_ids_from_cu_seqlens(torch.tensor([0])).shape == (1, 0)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("attention", KINDS.values(), ids=KINDS)
def test_values_that_are_not_finite_stay_in_their_document(attention, value):
    module, x = build(attention, "fox"), randn(B, L, E)
    x[0, 7] = value
    x.requires_grad_()
    out = module(x, document_ids=IDS)
    others = (IDS != 2) | (torch.arange(B)[:, None] == 1)
    assert out[0, 7].isnan().all() and out[others].isfinite().all()
    out[others].sum().backward()
    assert x.grad[others].isfinite().all()


@pytest.mark.parametrize("attention", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("batch, length", [(0, 5), (2, 0)])
def test_empty_inputs(attention, batch, length):
    module = build(attention, "xpos")
    x = torch.zeros(batch, length, E, dtype=torch.float64, requires_grad=True)
    out = module(x, document_ids=torch.zeros(batch, length, dtype=torch.int64))
    out.sum().backward()
    assert out.shape == x.grad.shape == x.shape and out.dtype == x.dtype
    assert all(p.grad is None or not p.grad.any() for p in module.parameters())


@pytest.mark.parametrize("attention", KINDS.values(), ids=KINDS)
def test_noise_is_shared_as_in_a_batch(attention):
    module, x = build(attention, "spe").train(), randn(1, 6, E)
    ids = torch.tensor([[0] * 6 + [1] * 6])
    first, second = module(torch.cat([x, x], dim=1), document_ids=ids).split(6, dim=1)
    assert_same(first, second)
    assert not module(torch.cat([x, x], dim=1), document_ids=ids)[:, :6].allclose(first)


def test_second_derivatives_and_transforms():
    module, ids = build(LinearAttention, "xpos"), torch.tensor([[0] * 3 + [1] + [2] * 2])
    x = randn(1, 6, E).requires_grad_()
    assert gradgradcheck(lambda x: module(x, document_ids=ids), (x,), fast_mode=True)
    batch = randn(3, 6, E)
    found = torch.func.vmap(lambda x: module(x[None], document_ids=ids)[0])(batch)
    assert_same(found, module(batch, document_ids=ids.expand(3, 6)))
    found = torch.func.grad(lambda x: module(x, document_ids=ids).square().sum())(x.detach())
    assert_same(found, torch.autograd.grad(module(x, document_ids=ids).square().sum(), x)[0])


@pytest.mark.slow
@pytest.mark.parametrize("attention", KINDS.values(), ids=KINDS)
def test_compiled_modules(attention):
    """One group of documents, and then two, of which one has documents of one token."""
    torch._dynamo.reset()
    module = build(attention, "alibi")
    compiled = torch.compile(module, backend="eager")
    whole = torch.compile(module, backend="eager", fullgraph=True)
    for ids in ([[0, 0, 1, 1]], [[0, 1, 2, 2, 2, 2]]):
        x, ids = randn(1, len(ids[0]), E).requires_grad_(), torch.tensor(ids)
        documents = Documents.from_ids(ids)
        expected = with_gradients(module(x, document_ids=ids), [x])
        for out in (compiled(x, document_ids=ids), whole(x, document_ids=documents)):
            assert_same(with_gradients(out, [x]), expected)
    exported = torch.export.export(module, (x,), {"document_ids": documents}).module()
    assert_same(exported(x, document_ids=documents), expected[0])


def test_compiled_modules_refuse_positions_that_restart():
    torch._dynamo.reset()
    module = build(LinearAttention, "alibi")
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    x, message = randn(1, 4, E), "positions must not descend or restart in causal attention"
    for positions in ([0, 1, 5, 9], [0, 1, 0, 1]):
        index = PositionIndex(torch.tensor(positions), torch.tensor(positions), 9)
        if positions[2]:
            assert_same(compiled(x, position_index=index), module(x, position_index=index))
            continue
        for refusing, error in ((module, ValueError), (compiled, RuntimeError)):
            with pytest.raises(error, match=message) as raised:
                refusing(x, position_index=index)
            assert "pass document_ids" in str(raised.value) and "\n" not in str(raised.value)


OWN = {  # functions that encode q and k or return a bias, with a mask that separates documents
    "rope": (True, False),
    "lrpe": (True, False),
    "lrpe_decay": (True, True),
    "retnet": (True, True),
    "alibi": (False, True),
    "t5": (False, True),
    "tupe": (False, True),
}


@pytest.mark.parametrize("name", OWN)
def test_positions_that_restart_in_own_attention(name):
    module, x = build(SoftmaxAttention, name), randn(1, L, E)
    ids = IDS[:1]
    positions = by_document(
        lambda x, key_padding_mask: x.cumsum(1) - 1, ids, causal=True, x=torch.ones_like(ids)
    )
    q, k, v = heads(module, x)
    encodes, adds_bias = OWN[name]
    if encodes:
        q, k = apply_encoding(module.encoding, q, k, positions)
    scores = module.encoding.scale * q @ k.mT
    if adds_bias:
        scores = scores + attention_bias(module.encoding, q, k, positions)
    visible = (ids[0][:, None] == ids[0]) & torch.ones(L, L).tril().bool()
    out = module.out_proj(module.merge_heads(scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v))
    assert_same(out, module(x, document_ids=ids))


@pytest.mark.parametrize("attention", [MultiheadLinearAttention, MultiheadSoftmaxAttention])
def test_interface_of_torch(attention):
    plain = KINDS["linear" if attention is MultiheadLinearAttention else "softmax"]
    module, x = build(attention, "alibi"), randn(B, L, E)
    expected = plain(E, H, module.encoding).double()
    expected.load_state_dict(module.state_dict())
    found, _ = module(x, x, x, PADDING, document_ids=IDS)
    assert_same(found, expected(x, key_padding_mask=PADDING, document_ids=IDS))


X, Q = torch.zeros(B, L, E), torch.zeros(B, H, L, D)
INDEX = PositionIndex(torch.arange(L), torch.arange(L), L - 1)
EXCLUDED = "document_ids cannot be combined with memory, state, return_state or position_index: call the"
SHAPE = "document_ids must have shape"


def called(**options):
    return lambda: LinearAttention(E, H, "rope", causal=True)(X, **{"document_ids": IDS, **options})


def function(**options):
    options = {"causal": True, "normalize": True, "document_ids": IDS, **options}
    return lambda: linear_attention(Q, Q, Q, **options)


def dynamic():
    module = SoftmaxAttention(E, H, "rope", causal=True)
    scale_rotations(module, RopeScaling("dynamic", original_length=4))
    return module(X, document_ids=IDS)


STATE = LinearAttention(E, H, "rope", causal=True)(X, return_state=True)[1]
SUMS = torch.zeros(B, H, D, D), torch.zeros(B, H, D)
WRONG = [
    (called(document_ids=IDS.flip(1)), "document_ids must not descend along a row, because a document is"),
    (called(document_ids=IDS[0]), f"{SHAPE} (batch, length), not (18,)"),
    (called(document_ids=IDS[:, 1:]), f"{SHAPE} (2, 18) of the tokens, not (2, 17)"),
    (called(document_ids=IDS[:1]), f"{SHAPE} (2, 18) of the tokens, not (1, 18)"),
    (called(document_ids=IDS.float()), "document_ids must be a tensor of integers, not torch.float32"),
    (called(document_ids=IDS.tolist()), "document_ids must be a tensor of integers, not list"),
    (
        called(document_ids=IDS.to("meta")),
        "document_ids have no values on the meta device and in torch.export",
    ),
    (called(memory=X), EXCLUDED),
    (called(state=STATE), EXCLUDED),
    (called(return_state=True), EXCLUDED),
    (called(position_index=INDEX), EXCLUDED),
    (called(key_padding_mask=PADDING[:, 1:]), "key_padding_mask must have shape (2, 18), not (2, 17)"),
    (called(key_padding_mask=PADDING.byte()), "key_padding_mask must be torch.bool"),
    (called(keys=X[:, 1:]), "keys must have the shape (2, 18, 16) of x, not (2, 17, 16)"),
    (dynamic, "dynamic scaling depends on the length of a call, which is not that of each document"),
    (function(state=SUMS), "document_ids require as many queries as keys, and neither state nor"),
    (function(return_state=True), "document_ids require as many queries as keys, and neither state nor"),
    (function(document_ids=IDS.flip(1)), "document_ids must not descend"),
    (function(document_ids=IDS[:1]), f"{SHAPE} (2, 18) of the tokens, not (1, 18)"),
    (function(document_ids=IDS[0]), f"{SHAPE} (batch, length), not (18,)"),
    (function(log_decay=torch.zeros(B, H, 3)), "log_decay must have shape"),
    (
        lambda: linear_attention(Q[:, :, 1:], Q, Q, causal=True, normalize=True, document_ids=IDS),
        "document_ids require as many queries as keys",
    ),
    *(
        (lambda c=cu_seqlens: document_ids_from_cu_seqlens(torch.tensor(c)), message)
        for cu_seqlens, message in (
            ([1, 4], "cu_seqlens must be the cumulative lengths (documents + 1,)"),
            ([0, 4, 3], "cu_seqlens must be the cumulative lengths (documents + 1,)"),
            ([[0, 4]], "cu_seqlens must be the cumulative lengths (documents + 1,)"),
            ([], "cu_seqlens must be a tensor of integers, not torch.float32"),
            ([0.0, 3.0], "cu_seqlens must be a tensor of integers, not torch.float32"),
        )
    ),
]


@pytest.mark.parametrize("call, message", WRONG)
def test_wrong_calls(call, message):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_attention_of_fairseqs_models_does_not_ignore_documents():
    module = FairseqSoftmaxAttention(build_encoding("rope", num_heads=2, head_dim=4, causal=True))
    x = torch.randn(5, 1, 8)
    with pytest.raises(ValueError, match="does not support document_ids: use LinearAttention or Softmax"):
        module(x, document_ids=torch.tensor([[0, 0, 1, 1, 1]]))
