"""A token at a far position takes the time, the memory and the numbers of any other token."""

import pytest
import torch
from support.tensor_sizes import TensorSizes

from fairseq_lrpe.attention import LinearAttention, apply_encoding, attention_bias
from fairseq_lrpe.encodings import ENCODINGS, Context, Encoding, InputsMixin, build_encoding
from fairseq_lrpe.ops import constants, rotation
from fairseq_lrpe.ops.position_index import PositionIndex
from fairseq_lrpe.ops.rotation import cached_phases, phases, rotary_angles
from fairseq_lrpe.positions import build_position

FAR, E, H = 2**20, 32, 2
CASES = [(name, {}) for name, cls in ENCODINGS.items() if cls.decomposable and name != "cosformer"]
CASES += [("cosformer", {"max_positions": 2 * FAR})]  # which refuses positions beyond it
CASES += [("lrpe", {"core": core, "rotation": "odd_even"}) for core in ("unitary", "mixed", "permutation")]
CASES += [("lrpe", {"core": "unitary", "rotation": "fft"}), ("lrpe", {"learn_theta": True})]
CASES += [("liere", {"block_size": 4}), ("conv_spe", {"kernel_size": 70})]
ENCODES_ONLY_Q_AND_K = [
    (name, options)
    for name, options in CASES
    if ENCODINGS[name].forward is not Encoding.forward and name not in ("roper", "rope_values")
    if not issubclass(ENCODINGS[name], InputsMixin)
]


def elements(function, monkeypatch):
    constants.constant._cached.cache_clear()
    for module in (constants, rotation):  # the mode that measures must not be taken for tracing
        monkeypatch.setattr(module, "is_tracing", lambda: False)
    with TensorSizes() as sizes, torch.no_grad():
        function()
    monkeypatch.undo()
    return sizes.total


@pytest.mark.parametrize("name, options", CASES)
def test_decoding_step(name, options, monkeypatch):
    module = LinearAttention(E, H, name, causal=True, layers=2, **options).eval()
    x = torch.randn(1, 5, E)
    _, state = module(x, return_state=True)

    def step(position):
        moved = state._replace(length=position)
        return elements(lambda: module(x[:, :1], state=moved, return_state=True), monkeypatch)

    assert step(FAR + 300) <= 1.2 * step(300)


@pytest.mark.parametrize("name, options", ENCODES_ONLY_Q_AND_K)
def test_explicit_positions(name, options, monkeypatch):
    shared = {"num_heads": H, "head_dim": 8, "causal": True, "layers": 2}
    encoding = build_encoding(name, **shared, **options).eval()
    positions = torch.tensor([FAR + 70, 3, FAR])
    q, k = torch.randn(1, H, 3, 8), torch.randn(1, H, 3, 8)
    far = apply_encoding(encoding, q, k, positions)
    for i, position in enumerate(positions.tolist()):
        alone = encoding(q[:, :, i : i + 1], k[:, :, i : i + 1], Context(position, position))
        for ours, theirs in zip(far, alone, strict=True):
            torch.testing.assert_close(ours[:, :, i : i + 1], theirs, rtol=1e-4, atol=1e-4)
    near = elements(lambda: apply_encoding(encoding, q, k, positions.clamp(max=10)), monkeypatch)
    assert elements(lambda: apply_encoding(encoding, q, k, positions), monkeypatch) <= 20 * near


@pytest.mark.parametrize("name", ["alibi", "t5", "xl", "deberta", "kerple"])
def test_biases_at_explicit_positions(name, monkeypatch):
    encoding = build_encoding(name, num_heads=H, head_dim=8, causal=True).eval()
    q, k, positions = torch.randn(1, H, 3, 8), torch.randn(1, H, 3, 8), torch.tensor([0, 3, 70])

    def bias(first):
        return attention_bias(encoding, q, k, positions + first)

    assert torch.equal(bias(FAR), bias(0))
    assert elements(lambda: bias(FAR), monkeypatch) == elements(lambda: bias(0), monkeypatch)


def test_tables_of_consecutive_positions():
    dtype = torch.complex64
    arguments, device = ("a", 3, 6, 512), torch.device("cpu")
    whole = phases(rotary_angles(*arguments), 0, FAR + 2000).to(dtype)
    for offset, length in ((0, 1), (5, 700), (250, 20), (FAR - 1, 2), (FAR + 3, 1), (FAR + 100, 600)):
        table = cached_phases(arguments, offset, length, dtype, device)
        assert table.equal(whole[offset : offset + length])
        assert table.untyped_storage().nbytes() <= 4 * max(256, length) * 3 * dtype.itemsize
    index = torch.tensor([[FAR, 2], [9, FAR + 1]])
    table = cached_phases(arguments, PositionIndex(index, index, FAR + 1), 2, dtype, device)
    assert table.equal(whole[index])


@pytest.mark.parametrize("name", ["cape", "complex_order", "concatenation"])
def test_position_embeddings(name, monkeypatch):
    module = build_position(name, embed_dim=E, vocab_size=9).eval()
    x, tokens, positions = torch.randn(2, 1, E), torch.full((2, 1), 3), torch.tensor([[300], [FAR]])
    assert elements(lambda: module(x, positions, tokens), monkeypatch) < 100_000
