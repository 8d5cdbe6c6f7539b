"""Attention and encodings in models that do not use fairseq, and the examples of docs/own_models.md."""

import itertools
import re

import pytest
import torch
import torch.nn.functional as F
from support.documents import block
from support.pairwise_scores import heads, in_parts, score_of_pair
from support.tensors import assert_same, perturbed, randn, with_gradients
from support.tiny import REPOSITORY
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention, apply_encoding, attention_bias, linear
from fairseq_lrpe.encodings import ENCODINGS, START, Context, Encoding, ValuesMixin, build_encoding, dape
from fairseq_lrpe.ops import linear_attention
from fairseq_lrpe.ops.position_index import PositionIndex, grid_position_index

B, H, D, L = 2, 2, 8, 12
E = H * D
QUALIFIERS = {
    "causal": lambda options, causal: causal,
    "not causal": lambda options, causal: not causal,
    "without values": lambda options, causal: not options.get("values"),
    "with values": lambda options, causal: options.get("values"),
    "method 4": lambda options, causal: options.get("method", 4) == 4,
    "methods 1 to 3": lambda options, causal: options.get("method", 4) < 4,
}


def table():
    """Returns (encoding, qualifier, softmax attention, linear attention) from docs/own_models.md."""
    lines = (REPOSITORY / "docs/own_models.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]
    return [
        (name, qualifier, *cells)
        for names, *cells in rows
        for name, qualifier in re.findall(r"`(\w+)`(?: \((.*?)\))?", names)
    ]


TABLE = table()


def cells(name, options, causal):
    """Returns the only two cells that apply to an encoding, which are empty for "none"."""
    if name == "none":
        return "", ""
    fits = [row for row in TABLE if row[0] == name]
    fits = [row for row in fits if not row[1] or QUALIFIERS[row[1]](options, causal)]
    assert len(fits) == 1, f"the table of docs/own_models.md has {len(fits)} rows for {name}"
    return fits[0][2:]


# Every encoding in bidirectional attention if it supports that, and some options and causal encodings.
CASES = [(name, {}, not cls.bidirectional) for name, cls in ENCODINGS.items()]
CASES += [(name, {}, True) for name in ("rope", "t5", "tupe", "per", "lrpe", "huang")]
CASES += [
    ("lrpe", {"core": "unitary", "learn_theta": True, "learn_householder": True}, False),
    ("lrpe", {"core": "permutation", "rotation": "odd_even"}, False),
    ("shaw", {"values": True}, False),
    ("huang", {"method": 1}, False),
    ("tupe", {"relative_bias": True}, False),
    ("conv_spe", {"kernel_size": 1}, True),
]
every = pytest.mark.parametrize("name, options, causal", CASES, ids=str)


def build(attention, name, causal=True, **options):
    """Returns a float64 module with random parameters."""
    options = {"max_positions": 16, "layers": 2, **options}
    return perturbed(attention(E, H, name, causal=causal, **options).double().eval())


def encoded(encoding, q, k, *positions, functions="both functions"):
    """Returns the encoded q and k, and the bias or 0, from the ``functions`` that the table names."""
    bias = 0
    if functions in ("both functions", "`apply_encoding`"):
        q, k = apply_encoding(encoding, q, k, *positions)
    if functions in ("both functions", "`attention_bias`"):
        bias = attention_bias(encoding, q, k, *positions)
    return q, k, bias


def own_softmax(encoding, q, k, v, positions, visible, functions="`apply_encoding`"):
    q, k, bias = encoded(encoding, q, k, positions, functions=functions)
    return (encoding.scale * q @ k.mT + bias).masked_fill(~visible, -torch.inf).softmax(-1) @ v


def visible(causal, length=L):
    return torch.ones(length, length, dtype=torch.bool).tril(0 if causal else length)


@every
def test_own_softmax_attention_matches_the_module(name, options, causal):
    module, x = build(SoftmaxAttention, name, causal, **options), randn(B, L, E).requires_grad_()
    functions, _ = cells(name, options, causal)

    def own():
        places = torch.arange(L), visible(causal)
        o = own_softmax(module.encoding, *heads(module, x), *places, functions)
        return module.out_proj(module.merge_heads(o))

    if functions == "`SoftmaxAttention`":
        with pytest.raises(ValueError, match=r"use (LinearAttention or )?SoftmaxAttention"):
            attention_bias(module.encoding, *heads(module, x)[:2], torch.arange(L))
        return
    leaves = [x, *module.parameters()]
    assert_same(with_gradients(own(), leaves), with_gradients(module(x), leaves))


@every
def test_own_linear_attention_matches_the_module(name, options, causal):
    _, functions = cells(name, options, causal)
    assert bool(functions) == (ENCODINGS[name].decomposable and name != "none")
    assert {row[0] for row in TABLE} <= {*ENCODINGS}
    if not functions:
        return
    module, x = build(LinearAttention, name, causal, **options), randn(B, L, E)
    q, k, v = heads(module, x)
    q, k = module.feature_map(q), module.feature_map(k)
    if functions == "`LinearAttention`":
        with pytest.raises(ValueError, match=f"{name} (also changes the values|depends on the inputs)"):
            apply_encoding(module.encoding, q, k, torch.arange(L))
        return
    if "`apply_encoding`" in functions:
        q, k = apply_encoding(module.encoding, q, k, torch.arange(L))
    decay = module.encoding.log_decay() if "`log_decay`" in functions else None
    o = linear_attention(q, k, v, causal=causal, log_decay=decay, normalize=True)
    assert_same(module.out_proj(module.merge_heads(o)), module(x))


@every
def test_positions_of_each_row_match_single_pairs(name, options, causal):
    functions, _ = cells(name, options, causal)
    if functions in ("", "`SoftmaxAttention`"):
        return
    encoding = build(SoftmaxAttention, name, causal, **options).encoding
    q, k = randn(2, H, 3, D), randn(2, H, 5, D, seed=1)
    at_q = torch.tensor([[9, 4, 4], [2, 11, 0]])
    at_k = torch.tensor([[0, 3, 4, 1, 9], [5, 0, 1, 2, 2]])
    of_q, of_k, bias = encoded(encoding, q, k, at_q, at_k, functions=functions)
    found = encoding.scale * of_q @ of_k.mT + bias
    assert found.isfinite().all()
    for b, n, m in itertools.product(range(2), range(3), range(5)):
        i, j = int(at_q[b, n]), int(at_k[b, m])
        if i >= j or not causal:
            expected = score_of_pair(encoding, q[b : b + 1, :, n], k[b : b + 1, :, m], i, j)
            assert_same(found[b : b + 1, :, n, m], expected)
    for queries, keys in ((q[:0], k[:0]), (q[:, :, :0], k)):
        positions = at_q[: len(queries), : queries.size(2)], at_k[: len(keys)]
        empty_q, empty_k, bias = encoded(encoding, queries, keys, *positions, functions=functions)
        assert (empty_q @ empty_k.mT + bias).shape == (*queries.shape[:3], 5)
    shared = encoded(encoding, q, k, at_q[:1], at_k[0], functions=functions)
    assert_same(shared[0][0], of_q[0])
    assert_same(shared[1][0], of_k[0])


@pytest.mark.parametrize("name", [name for name, cls in ENCODINGS.items() if cls.multidimensional])
def test_positions_with_two_axes(name):
    module, x = build(SoftmaxAttention, name, causal=False, axes=2), randn(B, L, E)
    index, (q, k, v) = grid_position_index(3, 4), heads(module, x)
    expected = module(x, position_index=index)
    for positions in (index.query_positions, index.query_positions.expand(B, L, 2)):
        o = own_softmax(module.encoding, q, k, v, positions, visible(False))
        assert_same(module.out_proj(module.merge_heads(o)), expected)
    with pytest.raises(ValueError, match=r"positions must be integers of shape \(12, 2\) or \(2, 12, 2\)"):
        apply_encoding(module.encoding, q, k, torch.arange(L))


def small(name="rope"):
    return build_encoding(name, num_heads=H, head_dim=D, causal=True)


def rope_attention():
    return SoftmaxAttention(E, H, small())


Q, X, THREE = torch.zeros(B, H, 3, D), torch.zeros(B, 3, E), torch.arange(3)
WRONG = [  # (call, part of the message)
    (lambda: apply_encoding(small(), Q, Q, THREE - 1), "must not be negative"),
    (lambda: apply_encoding(small(), Q, Q, torch.arange(3.0)), "must be integers of shape (3,) or"),
    (lambda: apply_encoding(small(), Q, Q, torch.arange(4)), "must be integers of shape (3,) or"),
    (lambda: apply_encoding(small(), Q, Q[:, :, :2], THREE), "key_positions must be integers of shape (2,)"),
    (
        lambda: apply_encoding(small(), Q, Q[:, :1], THREE),
        "k must have shape (batch, 2 heads, length,",
    ),
    (lambda: apply_encoding(small("t5"), Q, Q, THREE), "t5 changes the scores, not q and k"),
    (lambda: apply_encoding(small("cope"), Q, Q, THREE), "cope are not q·k plus a bias: use SoftmaxA"),
    (lambda: attention_bias(small(), Q, Q, THREE), "rope does not add a bias to the scores"),
    (lambda: attention_bias(small("xpos"), Q, Q, THREE), "the scores of xpos are not q·k plus a bias"),
    (lambda: LinearAttention(10, 3, "rope", causal=True), "embed_dim must be a multiple of num_heads"),
    (lambda: LinearAttention(E, H, "rope"), "pass causal=True or causal=False"),
    (lambda: LinearAttention(E, H, "ropes", causal=True), "unknown encoding 'ropes'"),
    (lambda: LinearAttention(E, H, "t5", causal=True), "use SoftmaxAttention"),
    (lambda: LinearAttention(E, H, small(), core="unitary"), "core cannot be passed with an existing"),
    (lambda: SoftmaxAttention(E, 4, small()), "4 of dimension 4: pass num_heads=2 and embed_dim=16"),
    (lambda: SoftmaxAttention(E, H, small(), causal=False), "the encoding has causal=True"),
    (lambda: LinearAttention(E, H, small())(Q[0]), "the last is embed_dim 16, not shape (2, 3, 8)"),
    *(
        (lambda m=mask, o=options: rope_attention()(X, key_padding_mask=m, **o), message)
        for mask, options, message in (
            (torch.zeros(B, 2) > 0, {}, "key_padding_mask must have shape (2, 3), not (2, 2)"),
            (torch.zeros(B, 4) > 0, {}, "key_padding_mask must have shape (2, 3), not (2, 4)"),
            (torch.zeros(1, 3) > 0, {}, "key_padding_mask must have shape (2, 3), not (1, 3)"),
            (torch.zeros(3) > 0, {}, "key_padding_mask must have shape (2, 3), not (3,)"),
            (torch.zeros(B, 4) > 0, {"memory": X}, "must have shape (2, 3) or (2, 6), not (2, 4)"),
            (torch.zeros(B, 3).byte(), {}, "must be torch.bool (True at padding), not torch.uint8"),
            (torch.zeros(B, 3), {}, "must be torch.bool (True at padding), not torch.float32"),
        )
    ),
    *(
        (lambda k=keys: rope_attention()(X, keys=k), f"shape (2, 3, 16) of x, not {tuple(keys.shape)}")
        for keys in (X[:, :2], X[:1])
    ),
    (lambda: small("per")(Q, Q, -1), "must not be negative"),
]


@pytest.mark.parametrize("call, message", WRONG)
def test_wrong_calls(call, message):
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_states_of_the_wrong_shape():
    x = randn(B, L, E)
    for attention, name, options in (
        (LinearAttention, "rope", {"linear_norm": "content"}),
        (LinearAttention, "fox", {}),
        (LinearAttention, "rope", {}),
        (SoftmaxAttention, "fox", {}),
        (SoftmaxAttention, "rope", {}),
    ):
        module = build(attention, name, **options)
        for given in (x, x[:, :1]):  # of a single token, linear attention stores the key
            fewer_rows = module(given[:1], return_state=True)[1]
            more_heads = attention(E, 4, name, causal=True, **options).double()(given, return_state=True)[1]
            for wrong in (fewer_rows, module.reorder_state(fewer_rows, torch.tensor([0])), more_heads):
                with pytest.raises(ValueError, match=r"(the state has|must have shape)"):
                    module(x, state=wrong)
    softmax_state = module(x, return_state=True)[1]
    with pytest.raises(ValueError, match=r"\(2, 2, 12\), not \(2, 2, 5\)"):
        module(x, state=softmax_state._replace(length=5))
    with pytest.raises(ValueError, match="the state is not one of linear attention"):
        build(LinearAttention, "rope")(x, state=softmax_state)
    with pytest.raises(ValueError, match="the state is not one of softmax attention"):
        module(x, state=build(LinearAttention, "rope")(x, return_state=True)[1])


def example(*parts):
    names = {}
    for part in parts:
        exec(block("python", part), names)
    return names


def test_example_of_a_gpt():
    names = example("class Block(nn.Module)", "class GPT(nn.Module)", "lrpe = GPT(99")
    for name in ("lrpe", "xpos", "alibi", "decay"):
        out, _ = names[name](torch.randint(99, (2, 20)))
        assert out.shape == (2, 20, 99) and out.isfinite().all()


def test_short_examples():
    layer, both = example("layer = nn.TransformerEncoderLayer")["y"], example("t5 = build_encoding")["out"]
    assert layer.shape == (2, 100, 64) and layer.isfinite().all()
    assert both.shape == (2, 8, 100, 64) and both.isfinite().all()


def test_example_of_attention_weights():
    names = example("import LinearAttention, attention_weights")
    assert names["weights"].shape == (2, 4, 100, 100) and names["weights"].isfinite().all()


def test_example_of_packed_sequences():
    names = example("document_ids_from_cu_seqlens(boundaries)")
    module, texts = names["attention"], names["x"][0].split([30, 50, 20])
    expected = torch.cat([module(text[None]) for text in texts], dim=1)
    torch.testing.assert_close(names["y"], expected, rtol=1e-4, atol=1e-5)


def test_example_of_packed_sequences_in_own_attention():
    names = example("# three texts in one row")
    encoding, first = names["encoding"], slice(30, 80)
    q, k, v = (names[x][:, :, first] for x in "qkv")
    expected = own_softmax(encoding, q, k, v, torch.arange(50), visible(True, 50))
    torch.testing.assert_close(names["packed"][:, :, first], expected, rtol=1e-4, atol=1e-5)


def test_example_of_longer_sequences():
    names = example("scale_rotations")
    assert names["y"].shape == (1, 2048, 64) and names["y"].isfinite().all()
    assert names["attention"].encoding.rope_scaling is None


def test_example_of_images():
    names = example('"rope_mixed"')
    index = grid_position_index(14, 14)
    q, k = names["encoding"](names["q"], names["k"], Context(index, index))
    expected = F.scaled_dot_product_attention(q, k, names["v"])
    torch.testing.assert_close(names["image"], expected, rtol=1e-4, atol=1e-5)


def test_example_of_images_in_a_module():
    """The module's output is that of LieRE's rotations at rows and columns, in softmax attention."""
    names = example("grid_position_index(14, 14)")
    module, x = names["attention"], names["patches"]
    q, k, v = heads(module, x)
    positions = torch.cartesian_prod(torch.arange(14), torch.arange(14))
    o = own_softmax(module.encoding, q, k, v, positions, visible(False, 14 * 14))
    torch.testing.assert_close(module.out_proj(module.merge_heads(o)), names["y"], rtol=1e-4, atol=1e-5)


def test_example_of_positions():
    """The tokens are those of a sequence whose other positions are padding."""
    names, padding = example("position_index=PositionIndex("), torch.ones(2, 10, dtype=torch.bool)
    module, positions = names["attention"], names["positions"]
    torch.manual_seed(0)
    tokens = torch.randn(2, 4, 64)
    padding[:, positions] = False
    padded = torch.zeros(2, 10, 64).index_copy(1, positions, tokens)
    expected = module(padded, key_padding_mask=padding)[:, positions]
    found = module(tokens, position_index=PositionIndex(positions, positions, 9))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert names["y"].shape == found.shape


def test_documented_effects_of_padding():
    """docs/own_models.md lists the encodings whose output padding changes, before tokens and between them."""
    absolute, gaps = set(), set()
    for name, cls in ENCODINGS.items():
        kinds = [SoftmaxAttention, LinearAttention] if cls.decomposable else [SoftmaxAttention]
        for kind in kinds:
            module = kind(E, H, name, causal=True, layers=2, max_positions=16).double().eval()
            perturbed(module.encoding)
            x, other = randn(1, 9, E), randn(1, 3, E, seed=1)
            if name == "fire":
                module.encoding.threshold.fill_(2)
            if name == "log_scale":
                module.encoding.length = 2
            expected = module(x)
            for start in (0, 5, 9):
                padded = torch.cat([x[:, :start], other, x[:, start:]], dim=1)
                padding = torch.zeros(1, 12, dtype=torch.bool)
                padding[:, start : start + 3] = True
                found = module(padded, key_padding_mask=padding)[:, ~padding[0]]
                differs = not torch.allclose(found, expected, rtol=1e-9, atol=1e-9)
                parts, _ = in_parts(module, padded, [start + 3] + [1] * (9 - start), padding)
                assert_same(parts[:, ~padding[0]], found)
                if differs:
                    assert start < 9, name
                    (absolute if start == 0 else gaps).add(name)
    assert absolute == {"spe", "conv_spe", "fire", "tupe", "rope_values", "fope", "log_scale"}
    without_distances = {"none", "fox", "gla", "wall", "grape", "mamba3_rope", "cope"}
    without_distances |= {"stick_breaking", "stick_breaking_norm"}
    assert set(ENCODINGS) - gaps == without_distances


@every
def test_empty_inputs(name, options, causal):
    for attention in (SoftmaxAttention, LinearAttention)[: 1 + ENCODINGS[name].decomposable]:
        module = build(attention, name, causal, **options)
        for batch, length in ((0, 5), (2, 0)):
            x = torch.zeros(batch, length, E, dtype=torch.float64, requires_grad=True)
            out = module(x, key_padding_mask=torch.zeros(batch, length, dtype=torch.bool))
            out.sum().backward()
            assert out.shape == x.grad.shape == x.shape and out.dtype == x.dtype
            assert all(p.grad is None or not p.grad.any() for p in module.parameters())
        if causal:  # an empty prompt, and an empty continuation
            x = randn(2, 3, E)
            out, state = in_parts(module, x, [0, 2, 0, 1])
            assert state.length == 3
            assert_same(out, module(x))


@pytest.mark.parametrize("name, options", [
    *((name, {"linear_norm": "content"}) for name in ("spe", "lrpe_decay", "selective_rope_fox", "gla")),
    ("lrpe", {"linear_norm": "content", "learn_theta": True}),
    ("gla", {}),
])  # fmt: skip
def test_gradients_of_each_sample_and_export(name, options):
    module = build(LinearAttention if options else SoftmaxAttention, name, **options)
    x, parameters = randn(3, L, E), dict(module.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(module, parameters, (x[None],)).square().sum()

    module(x)  # caches the tables
    actual = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for i in range(3):
        leaves, alone = list(parameters.values()), module(x[i : i + 1]).square().sum()
        gradients = torch.autograd.grad(alone, leaves, materialize_grads=True)
        assert_same([actual[key][i] for key in parameters], list(gradients))
    exported = torch.export.export(module, (x,)).module()
    assert_same(exported(x), module(x))


@every
def test_forward_mode_and_batched_gradients(name, options, causal):
    for attention in (SoftmaxAttention, LinearAttention)[: 1 + ENCODINGS[name].decomposable]:
        module, x, tangent = build(attention, name, causal, **options), randn(1, 3, E), randn(1, 3, E, seed=1)
        with sdpa_kernel(SDPBackend.MATH):
            jacobian = torch.autograd.functional.jacobian(module, x)
            with forward_ad.dual_level():
                actual = forward_ad.unpack_dual(module(forward_ad.make_dual(x, tangent))).tangent
            assert_same(actual, torch.einsum("abcdef,def->abc", jacobian, tangent))
            if name not in ("xl", "gcdf", "deberta", "cope"):  # torch's operators in them have no rule
                assert_same(torch.autograd.functional.jacobian(module, x, vectorize=True), jacobian)


@pytest.mark.parametrize("attention, name, causal, length", [
    (LinearAttention, "rope", False, L),
    (SoftmaxAttention, "t5", False, 1100),
    (SoftmaxAttention, "dape", True, L),
    (SoftmaxAttention, "fire", True, L),
])  # fmt: skip
def test_transforms_of_what_the_backward_pass_recomputes(monkeypatch, attention, name, causal, length):
    monkeypatch.setattr(linear, "_MIN_CHECKPOINT_KEYS", 0)
    monkeypatch.setattr(dape, "_MAX_HIDDEN_ELEMENTS", 1)
    module, x = build(attention, name, causal), randn(1, length, E)
    parameters = dict(module.named_parameters())
    found = torch.func.grad(lambda p: torch.func.functional_call(module, p, (x,)).square().sum())(parameters)
    expected = torch.autograd.grad(module(x).square().sum(), list(parameters.values()))
    assert_same(list(found.values()), list(expected))


@pytest.mark.parametrize("causal, padded", [(True, False), (True, True), (False, False)])
def test_weights_are_masked(causal, padded):
    """An encoding gets the weights that attention uses, whether or not it has a bias."""
    seen = []

    class Watching(ValuesMixin, Encoding):
        name = "watching"
        needs_weights = True

        def decode_output(self, o, context=START, weights=None):
            seen.append(weights)
            return o

    plain, x = build(SoftmaxAttention, "none", causal), randn(B, L, E)
    module = SoftmaxAttention(E, H, Watching(num_heads=H, head_dim=D, causal=causal)).double()
    module.load_state_dict(plain.state_dict())
    padding = torch.zeros(B, L, dtype=torch.bool)
    padding[1, -2:] = True
    assert_same(*(y(x, key_padding_mask=padding if padded else None) for y in (module, plain)))
    allowed = visible(causal) & ~(padding & padded)[:, None, None]
    assert (seen[0] > 0).equal(allowed.expand_as(seen[0]))


@pytest.mark.parametrize("decay", [(H,), (H, 1), (H, D)], ids=str)
def test_softmax_attention_with_a_decay_of_zero(decay):
    log_decay = torch.full(decay, -torch.inf, requires_grad=True)

    class Forgetful(Encoding):
        name = "forgetful"

        def log_decay(self, context=START):
            return log_decay

        forward = Encoding.forward

    encoding = Forgetful(num_heads=H, head_dim=D, causal=True)
    module, x = SoftmaxAttention(E, H, encoding).double(), randn(B, L, E).requires_grad_()
    q, k, v = heads(module, x)
    scores = torch.diag_embed((q * k).sum(-1) * encoding.scale)
    if len(decay) == 1:
        scores = scores.masked_fill(~torch.eye(L, dtype=torch.bool), -torch.inf)
    scores = scores.masked_fill(torch.ones(L, L, dtype=torch.bool).triu(1), -torch.inf)
    expected = module.out_proj(module.merge_heads(scores.softmax(-1) @ v))
    assert_same(module(x), expected)
    gradients = torch.autograd.grad(module(x).square().sum(), [x, log_decay])
    assert all(gradient.isfinite().all() for gradient in gradients)
