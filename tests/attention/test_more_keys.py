"""Attention with more keys than queries, as a memory of earlier positions requires."""

import pytest
import torch
from exact import assert_same

from fairseq_lrpe.attention.fairseq_adapter import FairseqLinearAttention, FairseqSoftmaxAttention
from fairseq_lrpe.encodings import ENCODINGS, build_encoding

H, D, B = 2, 4, 2
E = H * D
NORMS = ("denominator", "layernorm", "content")
WAYS = {False: "bidirectional", True: "causal"}
OPTIONS = {
    "shaw": [{"k": 3}, {"k": 3, "values": True}],
    "lfhc": [{"k": 2}],
    "deberta": [{"k": 5}],
    "lrpe": [
        {"core": "unitary", "rotation": "fft", "learn_theta": True},
        {"core": "orthogonal", "learn_theta": True, "learn_householder": True},
        {"core": "mixed", "rotation": "identity"},
        {"core": "permutation", "rotation": "odd_even"},
    ],
}
LENGTHS = [
    (1, 7),
    (3, 7),
    (6, 7),
    (7, 7),
    (75, 140),
    (135, 140),
]  # the last two are split into blocks in both attentions


def cases(causal):
    for name, cls in ENCODINGS.items():
        if not (causal or cls.bidirectional):
            continue
        for options in OPTIONS.get(name, [{}]):
            for norm in (None, *(NORMS if cls.decomposable else ())):
                text = "-".join(map(str, (name, *options.values(), norm)))
                yield pytest.param(name, options, norm, causal, id=f"{text}-{WAYS[causal]}")


every_causal = pytest.mark.parametrize(("name", "options", "norm", "causal"), list(cases(True)))
every_module = pytest.mark.parametrize(("name", "options", "norm", "causal"), [*cases(False), *cases(True)])


def build(name, options, norm, causal=True):
    """Returns softmax attention if ``norm`` is None, else linear attention; all parameters are random."""
    encoding = build_encoding(name, num_heads=H, head_dim=D, causal=causal, layer=2, **options)
    module = FairseqLinearAttention(encoding, norm) if norm else FairseqSoftmaxAttention(encoding)
    with torch.no_grad():
        for parameter in module.parameters():
            # Near 1, encoded denominators are rarely close to 0, where rounding errors dominate.
            parameter.normal_(std=0.3)
    return module.double().eval()


def random_input(length, padded):
    padding = torch.zeros(B, length, dtype=torch.bool)
    padding[0, 1:3] = padding[1, -1:] = padded and length > 1
    x = torch.randn(length, B, E, dtype=torch.float64, requires_grad=True)
    return x, padding if padded else None


@every_module
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_last_queries_match_full_sequence(name, options, norm, causal, padded):
    module = build(name, options, norm, causal)
    for queries, keys in LENGTHS:
        x, padding = random_input(keys, padded)
        w = torch.randn(queries, B, E, dtype=torch.float64)
        if padded:
            w[padding.T[keys - queries :]] = 0  # the output at padding is arbitrary
        leaves, results = [x, *module.parameters()], []
        whole, _ = module(x, key_padding_mask=padding)
        last, _ = module(x[keys - queries :], x, x, key_padding_mask=padding)
        for out in (last, whole[keys - queries :]):
            gradients = torch.autograd.grad((out * w).sum(), leaves, materialize_grads=True)
            results.append((out * (w != 0), *gradients))
        assert_same(*results)


@every_causal
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_more_keys_than_queries_with_incremental_state(name, options, norm, causal, padded):
    """Positions that were only keys are part of the state as well."""
    module = build(name, options, norm, causal)
    x, padding = random_input(9, padded)
    whole, state = module(x, key_padding_mask=padding)[0], {}
    for start, query, stop in ((0, 0, 2), (2, 4, 6), (6, 6, 7), (7, 8, 9)):
        mask = padding[:, start:stop] if padded else None
        out, _ = module(x[query:stop], x[start:stop], key_padding_mask=mask, incremental_state=state)
        real = ~padding.T[query:stop] if padded else slice(None)
        assert_same(out[real], whole[query:stop][real])


@pytest.mark.parametrize("norm", [None, *NORMS])
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
def test_fewer_keys_than_queries_are_rejected(norm, causal):
    x, _ = random_input(5, False)
    with pytest.raises(ValueError, match=r"at least as many keys as queries, got 4 and 5$") as error:
        build("rope", {}, norm, causal)(x, x[1:])
    assert "\n" not in str(error.value)
