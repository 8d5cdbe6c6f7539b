"""Tests of every registered encoding in linear and softmax attention, as far as it supports them.

They check what every encoding must satisfy; the formula of an encoding needs a separate test.
``bash scripts/test.sh --encoding NAME`` runs these tests for one encoding.
"""

import copy
import itertools
from typing import NamedTuple

import pytest
import torch
from support.pairwise_scores import all_scores
from support.tensor_sizes import TensorSizes
from support.tensors import assert_same, perturbed, with_gradients

from fairseq_lrpe.attention import DeltaAttention, LinearAttention, SoftmaxAttention
from fairseq_lrpe.attention.fairseq_adapter import build_attention
from fairseq_lrpe.config import PositionConfig
from fairseq_lrpe.encodings import ENCODINGS, Context, InputsMixin, softmax_scores
from fairseq_lrpe.encodings.transformations import decode_output, encode_values, shift_keys, shift_values
from fairseq_lrpe.methods import METHODS, Method

H, D, B, L = 2, 8, 3, 9
E = H * D
FAR, LONGEST = 100_000, 1024
OPTIONS = ("linear_norm", "feature_map", "scale_queries", "linear_rule")


class Case(NamedTuple):
    """A combination of an encoding, (flag, value) pairs, "linear" or "softmax" attention, and causality."""

    encoding: str
    flags: tuple
    attention: str
    causal: bool


def build(case, dtype=torch.float64, limit=2 * L):
    cfg = PositionConfig()
    for flag, value in {**dict(case.flags), "attention": case.attention}.items():
        setattr(cfg, flag, value)
    sizes = {"embed_dim": E, "num_heads": H, "layer": 2, "layers": 3, "max_positions": limit}
    module = build_attention(cfg, dropout=0.0, causal=case.causal, **sizes)
    perturbed(module.encoding)
    return module.to(dtype).eval()


def limit_of(case, positions):
    """Returns the maximum number of positions: those of the test for cosFormer, which refuses more."""
    return positions if case.encoding == "cosformer" else 2 * L


def cases():
    """Returns {case: test name} for every encoding with its defaults and with the flags of each method.

    Encodings with their defaults are tested in causal attention of both kinds, and in bidirectional attention
    of the first kind that they support; other options in causal attention of the first kind. Leaves out
    rejected bidirectional cases, which test_decay_is_at_most_1_and_only_causal checks.
    """
    named = {name: Method({"encoding": name}, "") for name in ENCODINGS} | METHODS
    found = {}
    for name, method in named.items():
        flags = tuple(sorted((k, v) for k, v in method.flags.items() if k != "token_positions"))
        kinds = [(attention, True) for attention in method.attentions()]
        kinds = [(kinds[0][0], False), *kinds] if name in ENCODINGS else kinds[:1]
        for attention, causal in kinds:
            case = Case(method.encoding, flags, attention, causal)
            if causal or supports(case):
                text = f"{attention}-{name}-{'causal' if causal else 'bidirectional'}"
                found.setdefault(case, text)
    return found


def supports(case):
    try:
        build(case)
    except ValueError:
        return False
    return True


CASES = cases()


def every_case(applies=lambda case: True):
    return pytest.mark.parametrize(
        "case", [pytest.param(case, id=text) for case, text in CASES.items() if applies(case)]
    )


every_causal = every_case(lambda case: case.causal)


def is_relative(encoding):
    """Whether only the difference of two positions reaches a score; for SPE, only in expectation."""
    return not encoding.uses_absolute_positions and encoding.name not in ("spe", "conv_spe")


every_relative = every_case(lambda case: is_relative(ENCODINGS[case.encoding]))


def tokens(length=L, batch=B, dtype=torch.float64):
    return torch.randn(length, batch, E).to(dtype)


def input_features(encoding, length):
    if not isinstance(encoding, InputsMixin):
        return None
    like = next(p for name, p in encoding.named_parameters() if name not in encoding.float32_parameters)
    return encoding.input_features(torch.randn(1, encoding.left_context + length, E).to(like))


def context_at(encoding, features, start, count, q_offset=0, k_offset=0):
    """Returns the context of new keys, of which features (1, H, L, F) of a sequence are given, or None."""
    if features is None:
        return Context(q_offset, k_offset)
    earlier = features[:, :, :start].double().sum(2, keepdim=True)
    return Context(q_offset, k_offset, None, features[:, :, start : start + count], earlier)


@every_case()
def test_right_padding_has_no_effect(case):
    check_padding(case, "right")


@every_relative
def test_left_padding_has_no_effect(case):
    """Left padding shifts all positions, which relative encodings ignore."""
    check_padding(case, "left")


def check_padding(case, side):
    module = build(case)
    x, lengths = tokens().requires_grad_(), (L, 5, 1)
    padding = torch.ones(B, L, dtype=torch.bool)
    places = [slice(0, n) if side == "right" else slice(L - n, L) for n in lengths]
    for b, place in enumerate(places):
        padding[b, place] = False
    out, _ = module(x, key_padding_mask=padding)
    for b, place in enumerate(places):
        assert_same(out[place, b], module(x[place, b : b + 1])[0][:, 0])
    assert out.isfinite().all()  # the next layer also reads the output at padding
    assert torch.autograd.grad(out.sum(), x)[0].isfinite().all()


def encode(encoding, q, k, context):
    return [
        *encoding(q, k, context),
        encode_values(encoding, k, context),
        decode_output(encoding, q, context),
    ]


@every_case()
def test_single_positions_match_full_sequence(case):
    encoding = build(case, limit=limit_of(case, 400)).encoding
    q, k = torch.randn(2, 2, H, 5, D, dtype=torch.float64)
    features = input_features(encoding, 5)
    for q_offset, k_offset in ((0, 0), (9, 2), (300, 290)):
        contexts = [context_at(encoding, features, 0, 5, q_offset, k_offset)]
        contexts += [context_at(encoding, features, i, 1, q_offset + i, k_offset + i) for i in range(5)]
        whole = encode(encoding, q, k, contexts[0])
        steps = [encode(encoding, q[:, :, [i]], k[:, :, [i]], contexts[1 + i]) for i in range(5)]
        assert_same([torch.cat(parts, dim=2) for parts in zip(*steps, strict=True)], whole, 1e-12)


@every_causal
def test_incremental_decoding_matches_full_sequence(case):
    module, x = build(case), tokens()
    padding = torch.zeros(B, L, dtype=torch.bool)
    padding[1, 0] = padding[2, :2] = is_relative(module.encoding)
    whole, _ = module(x, key_padding_mask=padding)
    for cuts in ([0, *range(2, L + 1)], [0, 4, 5, L]):
        state, pieces = {}, []
        for start, stop in itertools.pairwise(cuts):
            mask = padding[:, start:stop] if padding[:, start:stop].any() else None
            pieces.append(module(x[start:stop], key_padding_mask=mask, incremental_state=state)[0])
        assert_same(torch.cat(pieces)[~padding.T], whole[~padding.T])
    # Rows can be reordered several times before a step, and the batch can shrink, grow and become empty.
    for orders in (
        [[2, 0, 0, 1]],
        [[3, 1], [1, 1, 0, 0, 1]],
        [[4, 2, 0], [2, 1, 0], [1]],
        [[0, 0]],
        [[], []],
    ):
        for order in orders:
            order = torch.tensor(order, dtype=torch.int64)
            module.reorder_incremental_state(state, order)
            x, padding = x[:, order], padding[order]
        token = tokens(1, x.size(1))
        x, padding = torch.cat([x, token]), torch.nn.functional.pad(padding, (0, 1))
        found, _ = module(token, incremental_state=state)
        assert found.shape == token.shape
        if len(padding):
            assert_same(found, module(x, key_padding_mask=padding)[0][-1:])


def norms(case):
    """Returns the normalizations of linear attention to test: the case's own, and "content" if supported."""
    norm = getattr(build(case), "linear_norm", None)
    return (norm, "content") if norm == "denominator" else (norm,)


MORE_KEYS = [(1, 7, True), (6, 7, False), (200, 265, True)]
"""(number of queries, number of keys, padded); causal attention splits the last queries into blocks."""


@every_case()
def test_more_keys_than_queries(case):
    for norm, (queries, keys, padded) in itertools.product(norms(case), MORE_KEYS):
        module, x = build(case, limit=LONGEST), tokens(keys).requires_grad_()
        module.linear_norm = norm
        padding, w = None, tokens(queries)
        if padded:
            padding = torch.zeros(B, keys, dtype=torch.bool)
            padding[0, 1:3] = padding[1, -1:] = True
            w[padding.T[keys - queries :]] = 0  # the output at padding is arbitrary
        whole, _ = module(x, key_padding_mask=padding)
        last, _ = module(x[keys - queries :], x, x, key_padding_mask=padding)
        leaves = [x, *module.parameters()]
        assert_same(*(with_gradients(out * w, leaves) for out in (last, whole[keys - queries :])))


@every_causal
def test_more_keys_than_queries_with_incremental_state(case):
    for norm in norms(case):
        module, x, state = build(case, limit=LONGEST), tokens(), {}
        module.linear_norm = norm
        padding = torch.zeros(B, L, dtype=torch.bool)
        padding[0, 1:3] = padding[1, -1:] = True
        whole, _ = module(x, key_padding_mask=padding)
        for start, query, stop in ((0, 0, 2), (2, 4, 6), (6, 6, 7), (7, 8, 9)):
            mask = padding[:, start:stop]
            out, _ = module(x[query:stop], x[start:stop], key_padding_mask=mask, incremental_state=state)
            assert_same(out[~padding.T[query:stop]], whole[query:stop][~padding.T[query:stop]])


@every_case()
def test_plain_module_matches_fairseq_adapter(case):
    adapter, x, memory = build(case), tokens(), tokens(4)
    if case.attention == "linear":
        flags = {name: value for name, value in case.flags if name in OPTIONS}
        shape = adapter.embed_dim, adapter.num_heads
        if "linear_rule" in flags:
            plain = DeltaAttention(*shape, adapter.encoding, rule=flags["linear_rule"])
        else:
            plain = LinearAttention(*shape, adapter.encoding, **flags)
    else:
        plain = SoftmaxAttention(adapter.embed_dim, adapter.num_heads, adapter.encoding)
    plain = plain.to(torch.float64).eval()
    plain.load_state_dict(adapter.state_dict())
    padding = torch.zeros(B, L, dtype=torch.bool)
    padding[1, 6:] = padding[2, :2] = True
    leaves = [x.requires_grad_(), *adapter.encoding.parameters()]
    outputs = (
        adapter(x, key_padding_mask=padding, memory=memory)[0],
        plain(x.transpose(0, 1), memory=memory.transpose(0, 1), key_padding_mask=padding).transpose(0, 1),
    )
    assert_same(*(with_gradients(out[~padding.T], leaves) for out in outputs))
    if not case.causal:
        return
    incremental_state, state = {}, None
    for part in x.detach().split([4, 1, 4]):
        expected, _ = adapter(part, incremental_state=incremental_state)
        out, state = plain(part.transpose(0, 1), state=state, return_state=True)
        assert_same(out.transpose(0, 1), expected)
        adapter.reorder_incremental_state(incremental_state, torch.tensor([2, 0, 0]))
        state = plain.reorder_state(state, torch.tensor([2, 0, 0]))


@every_case()
def test_gradients(case):
    module, x = build(case), tokens(5, 1).requires_grad_()
    leaves = [x, *module.encoding.parameters()]
    w = tokens(5, 1)
    for gradient in torch.autograd.grad((module(x)[0] * w).sum(), leaves):
        assert gradient.isfinite().all() and gradient.any()
    assert torch.autograd.gradcheck(lambda *_: module(x)[0], leaves, fast_mode=True)


@every_case(lambda case: case.encoding not in ("none", "log_scale"))  # log_scale encodes no key
def test_positions_affect_the_output(case):
    """Swapping two tokens changes the output of a third one."""
    module, x = build(case), tokens()
    order = torch.tensor([3, 1, 2, 0, *range(4, L)])
    difference = (module(x[order])[0] - module(x)[0])[-1].abs().max()
    assert difference > 1e-4


@every_case(lambda case: case.attention == "softmax" and case.causal)
def test_decay_changes_the_scores(case):
    """An encoding that overrides the methods for scores includes its decay."""
    encoding = build(case).encoding
    q, k = (torch.randn(1, H, L, D, dtype=torch.float64) for _ in range(2))
    context = context_at(encoding, input_features(encoding, L), 0, L)
    decay = encoding.log_decay(context)
    if decay is not None and decay.any():
        without = context._replace(log_decay=torch.zeros_like(decay))
        scores = [softmax_scores(encoding, *encoding(q, k, x), x).tril() for x in (context, without)]
        assert (scores[0] - scores[1]).abs().max() > 1e-6


@every_causal
def test_decay_is_at_most_1_and_only_causal(case):
    """Encodings that are not ``bidirectional`` are rejected in bidirectional attention."""
    encoding, bidirectional = build(case).encoding, case._replace(causal=False)
    decay = encoding.log_decay(Context(features=input_features(encoding, L)))
    shapes = (H,), (H, 1), (H, D), (1, D), (1, H, L), (1, H, L, D)
    assert decay is None or (decay.shape in shapes and (decay <= 0).all())
    if supports(bidirectional):
        assert build(bidirectional).encoding.log_decay() is None
    else:
        assert not ENCODINGS[case.encoding].bidirectional or "linear_rule" in dict(case.flags)
        with pytest.raises(ValueError, match="only in causal attention"):
            build(bidirectional)


@every_case()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(case, dtype):
    module, state = build(case, dtype, LONGEST), {}
    for x in (tokens(64, dtype=dtype), *tokens(3, dtype=dtype).split(1)):
        out, _ = module(x, incremental_state=state if case.causal else None)
        assert out.dtype == dtype and out.isfinite().all()
    q, k = (torch.randn(1, H, L, D).to(dtype) for _ in range(2))
    steps = input_features(module.encoding, L)
    if module.encoding.decomposable:
        context = context_at(module.encoding, steps, 0, L, 30)
        exact = encode(copy.deepcopy(module.encoding).double(), q.double(), k.double(), context)
        for ours, theirs in zip(encode(module.encoding, q, k, context), exact, strict=True):
            assert ours.dtype == dtype
            assert (ours - theirs).norm() / theirs.norm() < 2 * torch.finfo(dtype).eps
    found = all_scores(module.encoding, q, k, features=steps)
    exact = None if steps is None else steps.double()
    expected = all_scores(module.encoding.double(), q.double(), k.double(), features=exact)
    seen = torch.ones(L, L, dtype=torch.bool).tril() if case.causal else ...
    error = (found - expected)[..., seen].norm() / expected[..., seen].norm()
    assert error < 8 * torch.finfo(dtype).eps


ONCE = {case._replace(attention=""): case for case in CASES}.values()
# TUPE has a table, and the scores of stick_breaking_norm are those of stick_breaking.
OTHERS = ("tupe", "stick_breaking_norm")
every_encoding = every_case(lambda case: case in ONCE and case.encoding not in OTHERS)


@every_encoding
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_far_positions_in_half_precision(case, dtype):
    """Positions multiply no rounded parameter, with autocast either: see ``float32_parameters``."""
    encoding = build(case, torch.float32, limit_of(case, FAR)).encoding
    half, exact = copy.deepcopy(encoding).to(dtype), copy.deepcopy(encoding).double()
    lowest, tolerance = torch.finfo(dtype).min / 2, 4 * torch.finfo(dtype).eps  # biases are finite
    for distance in (100, 1000, 10_000):
        q = torch.randn(1, H, 1, D).to(dtype)
        steps = input_features(half, distance + 1)
        k = q.expand(-1, -1, 1 if encoding.decomposable and steps is None else distance + 1, -1)
        with torch.no_grad():
            given = (q.double(), k.double(), distance, None if steps is None else steps.double())
            expected = score_of_first_key(exact, *given).clamp(min=lowest)
            assert_same(score_of_first_key(half, q, k, distance, steps).double(), expected, tolerance)
            with torch.autocast("cpu", dtype):
                found = score_of_first_key(encoding, q, k, distance, steps)
            assert_same(found.double(), expected, tolerance)


def score_of_first_key(encoding, q, k, position, steps):
    """Returns the score of the query at a position with key 0, or the cosine of their encodings."""
    if not encoding.decomposable:
        return all_scores(encoding, q, k, position, features=steps)[..., 0]
    q, k = encoding(q, k, Context(position, features=steps))
    return torch.cosine_similarity(q.double(), k[:, :, :1].double(), dim=-1)


@every_encoding
def test_far_positions_in_float32(case):
    encoding = build(case, torch.float32, limit_of(case, 2 * FAR)).encoding
    q, k = torch.randn(1, H, 4, D), torch.randn(1, H, FAR + 4, D)
    with torch.no_grad():
        steps = input_features(encoding, FAR + 4)
        far = all_scores(encoding, q, k, FAR, features=steps)
        assert far.isfinite().all()
        if is_relative(encoding):
            last = None if steps is None else steps[:, :, -8:]
            near = all_scores(encoding, q, k[:, :, -8:], 4, features=last)
            seen = torch.ones(4, 8, dtype=torch.bool).tril(4) if case.causal else ...
            assert_same(far[..., -8:][..., seen], near[..., seen], 1e-3)


@every_encoding
def test_shifted_keys_and_values(case):
    """A shift gives the encoding at smaller positions, or is refused."""
    encoding = build(case).encoding
    x, features = torch.randn(1, H, 5, D, dtype=torch.float64), input_features(encoding, 5)
    far, near = (context_at(encoding, features, 0, 5, offset, offset) for offset in (7, 2))
    pairs = [
        (shift_keys, encoding(x, x, far)[1], encoding(x, x, near)[1]),
        (shift_values, encode_values(encoding, x, far), encode_values(encoding, x, near)),
    ]
    for shift, encoded, expected in pairs:
        try:
            shifted = shift(encoding, encoded, 5)
        except ValueError as error:
            assert "cannot shift" in str(error)
        else:
            assert_same(shifted, expected)


@every_case(lambda case: case.attention == "linear" and case.causal)  # softmax would take minutes
def test_linear_attention_over_100_000_tokens(case):
    with torch.no_grad():
        out, _ = build(case, torch.float32, limit_of(case, FAR))(tokens(FAR, 1, torch.float32))
    assert out.isfinite().all()


@every_case()
def test_largest_tensor(case):
    """Its size grows linearly with the length in linear attention, and quadratically in softmax attention."""
    module, largest = build(case, torch.float32, LONGEST), {}
    for length in (512, LONGEST):
        with TensorSizes() as sizes:
            module(tokens(length, 1, torch.float32).requires_grad_())[0].sum().backward()
        largest[length] = sizes.largest
    if case.attention == "linear":
        assert largest[LONGEST] < 2.2 * largest[512]
    else:
        assert largest[512] <= 4 * H * 512 * 512 and largest[LONGEST] <= 4 * H * LONGEST * LONGEST


@every_case()
def test_state_dict_is_complete(case):
    first, second, x = build(case), build(case), tokens()
    second.load_state_dict(first.state_dict())
    assert_same(first(x)[0], second(x)[0])
