"""Sampling of tokens: distributions, determinism, greedy decoding, positions and constant memory."""

import pytest
import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from support.tensor_sizes import TensorSizes
from support.tensors import assert_same
from support.tiny_models import EOS, PAD, build_small
from torch.utils._pytree import tree_leaves

from fairseq_lrpe.models.sampling import chooser, probabilities, sample
from fairseq_lrpe.models.token_positions import SinusoidalPositions


def build(arch, **flags):
    flags = {"tokens_per_sample": 64, "max_target_positions": 64, **flags}
    return build_small(arch, **flags).double().eval().decoder


def greedy(decoder, prompt, length):
    choose = chooser(0, 0, 1.0, None, torch.device("cpu"))
    return list(sample(decoder, torch.tensor(prompt), length, choose, PAD))


ADAPTIVE_SOFTMAX = {"adaptive_softmax_cutoff": "5,8", "adaptive_softmax_dropout": 0.0}


@pytest.mark.parametrize("arch, flags", [
    ("linear_lm_tmlr_type1", {}), ("softmax_lm_tupe_r", {}), ("linear_lm_base", ADAPTIVE_SOFTMAX)
])  # fmt: skip
@torch.no_grad()
def test_greedy_tokens_are_the_argmax_of_one_pass(arch, flags):
    decoder, prompt = build(arch, **flags), [EOS, 5, 9, 7]
    tokens = prompt + greedy(decoder, prompt, 8)
    scores = decoder(torch.tensor([tokens[:-1]]))[0]
    if flags:  # the decoder returns features
        scores = decoder.adaptive_softmax.get_log_prob(scores, None)
    scores[..., PAD] = -torch.inf
    assert tokens[4:] == scores[0].argmax(-1).tolist()[3:]


def plain(logits, temperature, top_k, top_p):
    """The definition, token by token."""
    weights = {i: (x / temperature).exp().item() for i, x in enumerate(logits)}
    ranked = sorted(weights, key=lambda i: (-weights[i], i))
    kept = ranked[: top_k or None]
    total, nucleus = sum(weights[i] for i in kept), []
    while sum(weights[i] for i in nucleus) < top_p * total * (1 - 1e-12) and len(nucleus) < len(kept):
        nucleus.append(kept[len(nucleus)])
    total = sum(weights[i] for i in nucleus)
    return [weights[i] / total if i in nucleus else 0.0 for i in range(len(logits))]


@pytest.mark.parametrize("temperature, top_k, top_p", [
    (1.0, 0, 1.0), (0.3, 1, 1.0), (2.5, 4, 1.0), (2.5, 0, 0.5), (0.3, 99, 0.9), (1.0, 4, 0.5), (1.0, 12, 1e-9)
])  # fmt: skip
def test_distribution(temperature, top_k, top_p):
    logits = torch.randn(12, dtype=torch.float64)
    p = probabilities(logits, temperature, top_k, top_p)
    assert_same(p, torch.tensor(plain(logits, temperature, top_k, top_p), dtype=torch.float64))


def test_distribution_with_ties_and_extreme_temperatures():
    assert probabilities(torch.zeros(4), top_k=2).tolist() == [0.5, 0.5, 0, 0]
    assert probabilities(torch.zeros(4), top_p=0.5).tolist() == [0.5, 0.5, 0, 0]
    logits = torch.tensor([3.0, 9.0, -torch.inf], dtype=torch.half)
    assert probabilities(logits, 1e-30).tolist() == [0, 1, 0] and probabilities(logits, 1e30)[2] == 0


def test_seed():
    decoder, prompt = build("linear_lm_rope"), torch.tensor([EOS, 5])

    def draw(seed):
        return list(sample(decoder, prompt, 20, chooser(1.0, 0, 1.0, seed, prompt.device), PAD))

    before = torch.get_rng_state()
    assert draw(1) == draw(1) != draw(2)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(3)
    first = draw(None)
    assert draw(None) != first
    torch.manual_seed(3)
    assert draw(None) == first


@pytest.mark.parametrize("positions", ["learned", "multiplicative"])
def test_text_before_the_limit_is_kept(positions):
    flags = {"token_positions": positions, "decoder_learned_pos": positions == "learned"}
    decoder = build("softmax_lm_nope", max_target_positions=8, tokens_per_sample=8, **flags)
    choose, found = chooser(0, 0, 1.0, None, torch.device("cpu")), []
    with pytest.raises(ValueError, match="at most 8 tokens, not 9"):
        found.extend(sample(decoder, torch.tensor([EOS, 5, 9]), 20, choose, PAD))
    tokens = torch.tensor([[EOS, 5, 9, *found[:-1]]])
    assert len(found) == 6 and decoder(tokens)[0][0, -1].argmax() == found[-1]


@pytest.mark.parametrize("width", [32, 33])
def test_sinusoidal_positions_beyond_the_table(width):
    """Each row is the one that fairseq computes with a longer table, which does not grow."""
    original = build("linear_lm_base").embed_positions
    assert type(original) is SinusoidalPositions
    short, longer = (SinusoidalPositionalEmbedding(width, PAD, size) for size in (10, 200))
    ours = SinusoidalPositions(short)
    for length in (1, 7, 8, 9, 10, 50, 150):
        tokens = torch.full((3, length), 5)
        assert torch.equal(ours(tokens, incremental_state={}), longer(tokens, incremental_state={}))
    assert len(ours.weights) == 10
    assert torch.equal(ours(torch.full((1, 20), 5)), longer(torch.full((1, 20), 5)))


@pytest.mark.parametrize("name", ["base", "tmlr_type1", "per"])
def test_state_of_linear_attention_is_constant(name):
    decoder, sizes = build(f"linear_lm_{name}", max_target_positions=4), []
    forward = type(decoder).forward

    def recorded(tokens, incremental_state):
        out = forward(decoder, tokens, incremental_state=incremental_state)
        sizes.append(sum(x.numel() for x in tree_leaves(incremental_state) if torch.is_tensor(x)))
        return out

    decoder.forward = recorded
    assert len(greedy(decoder, [EOS, 5], 30)) == 30
    assert len(set(sizes)) == 1 and len(sizes) == 30 and sizes[0] > 0


@pytest.mark.parametrize(
    "arch", ["linear_lm_rope", "softmax_transformer_rope", "softmax_question_generator_base"]
)
@torch.no_grad()
def test_a_prompt_takes_no_memory_for_logits(arch):
    """Only the logits of its last token are computed."""
    types, length, inputs = 5_000, 400, {}
    prompt = torch.randint(4, types, (1, length))
    model = build_small(arch, types, max_target_positions=1024).eval()
    if hasattr(model, "encoder"):
        inputs["encoder_out"] = model.encoder(prompt[:, :9], torch.tensor([9]))
    with TensorSizes() as sizes:
        out = model.decoder(prompt, incremental_state={}, **inputs)[0]
    assert out.shape == (1, 1, types) and sizes.largest < types * length / 4


def test_frequencies_are_those_of_the_distribution():
    logits, device = torch.randn(6), torch.device("cpu")
    choose = chooser(0.8, 4, 0.95, 1, device)
    found = torch.bincount(torch.cat([choose(logits) for _ in range(20_000)]), minlength=6) / 20_000
    expected = probabilities(logits, 0.8, 4, 0.95)
    assert (found - expected).abs().max() < 0.015 and (found[expected == 0] == 0).all()
