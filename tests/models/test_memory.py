"""Memory of previous segments: outputs, gradients and decoding."""

from types import SimpleNamespace

import pytest
import torch
from support.pairwise_scores import all_scores, random_encoding
from support.tensors import assert_same, perturbed
from support.tiny_models import ONE_PER_ENCODING, architectures, build_model, check_decoding, dictionary_of

from fairseq_lrpe.attention import AttentionState
from fairseq_lrpe.encodings import ENCODINGS, Context
from fairseq_lrpe.encodings.transformations import encode_values
from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.tasks.memory_lm import MemoryLMConfig, MemoryLMTask, Segment

RELATIVE = [
    name for name in ONE_PER_ENCODING if not ENCODINGS[METHODS[name].encoding].uses_absolute_positions
]
ARCHITECTURES = architectures("lm", RELATIVE)
SOME = [arch for arch in architectures("lm") if not arch.endswith("tupe_r")]
UNSHIFTABLE = [
    f"linear_lm_{name}"
    for name in "spe conv_spe cosformer selective_rope selective_rope_fox grape mamba3_rope".split()
]
SHIFTABLE = [arch for arch in ARCHITECTURES if arch.startswith("linear") and arch not in UNSHIFTABLE]
LENGTH = 24


def build(arch, memory_length=0, memory="hidden", length=5, **flags):
    """A small decoder in float64 without dropout, and its task's flags."""
    args = SimpleNamespace(**vars(MemoryLMConfig()))
    args.tokens_per_sample, args.memory_length, args.memory = length, memory_length, memory
    args.same_length = flags.pop("same_length", False)
    fixed = {"add_bos_token": False, "tpu": False, "dropout": 0.0, "max_target_positions": 64}
    flags = fixed | {"token_positions": "none", "tokens_per_sample": length, **flags}
    torch.manual_seed(1)
    model = build_model(arch, MemoryLMTask(args, dictionary_of()), **flags).double().eval()
    for layer in model.decoder.layers:
        perturbed(layer.self_attn.encoding)
    return model.decoder


def words(length=LENGTH, batch=2):
    return torch.randint(4, 24, (batch, length), generator=torch.Generator().manual_seed(3))


def in_segments(decoder, tokens, length, split="valid", stream=0):
    """Returns the decoder's output (B, n, V) for a text that is read segment by segment."""
    parts = tokens.split(length, dim=1)
    return torch.cat([decoder(x, segment=Segment(split, stream, i))[0] for i, x in enumerate(parts)], dim=1)


EVERY = [(arch, {"memory_length": LENGTH}, 5) for arch in ARCHITECTURES]
EVERY += [(arch, {"memory": "state"}, 5) for arch in SHIFTABLE]
EVERY += [("softmax_lm_xl", {"memory_length": LENGTH}, length) for length in (1, LENGTH)]
EVERY += [("linear_lm_tmlr_type1", {"memory": "state"}, length) for length in (1, LENGTH)]


@pytest.mark.parametrize("arch, memory, length", EVERY)
@torch.no_grad()
def test_segments_with_full_memory_equal_one_pass(arch, memory, length):
    decoder, tokens = build(arch, length=length, **memory), words()
    assert_same(in_segments(decoder, tokens, length), decoder(tokens)[0])


FAR = dict.fromkeys([*SHIFTABLE, "linear_lm_tmlr_type3"], 1e-10)
# Learned angles are larger here, and float64 has no value between 1,000,000 and 1,000,000.0000000001.
FAR |= {arch: 1e-9 for arch in FAR if METHODS[arch.removeprefix("linear_lm_")].flags.get("lrpe_learn_theta")}


@pytest.mark.parametrize("arch", FAR)
@torch.no_grad()
def test_running_sums_at_distant_positions(arch):
    """Sums shifted a thousand times equal those of keys encoded at position 1,000,000."""
    attention, far = build(arch, memory="state").layers[0].self_attn, 10**6
    encoding, g = attention.encoding, torch.Generator().manual_seed(4)
    k, v = (torch.randn(2, 4, 6, 8, generator=g, dtype=torch.float64) for _ in range(2))

    def sums(offset):
        k_sum = encoding(k, k, Context(offset, offset))[1]
        return k_sum.mT @ encode_values(encoding, v, Context(0, offset)), k_sum.sum(-2)

    near, moved = sums(0), AttentionState({"sums": sums(far)})
    for _ in range(1000):
        moved = attention.restart_positions(moved._replace(length=far // 1000))
    assert_same(tuple(moved.past["sums"]), near, FAR[arch])


def reference(decoder, tokens, length):
    """Reference Transformer-XL with a pre-norm decoder, which reads a text segment by segment."""
    memory, outputs = [None] * len(decoder.layers), []
    for part in tokens.split(length, dim=1):
        x, inputs = decoder.embed_scale * decoder.embed_tokens(part).transpose(0, 1), []
        for layer, before in zip(decoder.layers, memory, strict=True):
            keys = x if before is None else torch.cat([before, x])
            inputs.append(keys.detach()[-layer.self_attn.memory_length :])
            norm = layer.self_attn_layer_norm
            x = x + layer.self_attn(norm(x), norm(keys))[0]
            x = x + layer.fc2(torch.relu(layer.fc1(layer.final_layer_norm(x))))
        memory = inputs
        outputs.append(decoder.output_layer(decoder.layer_norm(x).transpose(0, 1)))
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("arch", [*SOME[4:], "softmax_lm_xl"])
def test_gradients_do_not_reach_the_memory(arch):
    """Gradients reach the projections of the memory, but not words that are only in the memory."""
    decoder = build(arch, memory_length=7, share_decoder_input_output_embed=False)
    tokens, gradients = words(15), []
    first = tokens[:, :10].unique()
    tokens[:, 10:] = torch.tensor([w for w in range(4, 24) if w not in first] * 5)[:5]
    for read in (in_segments, reference):
        decoder.zero_grad()
        read(decoder, tokens, 5)[:, 10:].square().sum().backward()
        gradients.append([p.grad.clone() for p in decoder.parameters()])
    assert_same(*gradients)
    assert not decoder.embed_tokens.weight.grad[first].any()
    assert decoder.embed_tokens.weight.grad[tokens[:, 10:]].any()


@pytest.mark.parametrize("arch", SHIFTABLE)
def test_gradients_with_running_sums(arch):
    """Gradients of tokens and parameters equal finite differences; previous sums are constant."""
    attention = build(arch, memory="state").layers[0].self_attn
    first, x = torch.randn(2, 3, 2, 32, dtype=torch.float64)
    with torch.no_grad():
        before = attention.restart_positions(attention(first, return_state=True)[1])
    leaves = [x.requires_grad_(), *attention.parameters()]

    def read(*_):
        return attention(x, state=before)[0]

    assert torch.autograd.gradcheck(read, leaves, fast_mode=True)


@torch.no_grad()
def test_memory_of_another_place_is_dropped(caplog):
    decoder, tokens = build("softmax_lm_rope", memory_length=8), words()
    decoder.train()
    decoder(tokens[:, :5], segment=Segment("train", 0, 0))
    alone = decoder(tokens[:, 5:10])[0]
    with caplog.at_level("INFO"):
        assert_same(decoder(tokens[:, 5:10], segment=Segment("train", 0, 3))[0], alone)
    assert "the memory starts empty at segment 3" in caplog.text
    decoder(tokens[:, :5], segment=Segment("train", 0, 9))
    assert_same(decoder(tokens[:, 5:10], segment=Segment("train", 0, 0))[0], alone)


@torch.no_grad()
def test_same_length():
    """Each position attends to the last M inputs up to itself."""
    decoder, tokens, memory = build("softmax_lm_xl", memory_length=6, same_length=True), words(), 6
    attention = decoder.layers[0].self_attn
    x = torch.randn(12, 2, 32, dtype=torch.float64)
    found = attention(x[7:], memory=x[:7])[0]
    for i in range(5):
        seen = x[7 + i + 1 - memory : 7 + i + 1]
        assert_same(found[i : i + 1], attention(seen[-1:], seen)[0])
    assert not torch.equal(in_segments(decoder, tokens, 5), in_segments(build("softmax_lm_xl", 6), tokens, 5))


BY_DISTANCE = [name for name, cls in ENCODINGS.items() if cls.uses_distance_table]


@pytest.mark.parametrize("name", BY_DISTANCE)
@torch.no_grad()
def test_clamp_length(name):
    """With equal contents, the bias depends on the distance alone."""
    encoding = random_encoding(name)
    x = torch.randn(1, 2, 1, 4, dtype=torch.float64).expand(1, 2, 20, 4)
    offset = 10
    free = all_scores(encoding, x[:, :, :10], x, offset)
    encoding.clamp_length = 6
    clamped = all_scores(encoding, x[:, :, :10], x, offset)
    for i in range(10):
        far = i + offset - 6
        assert_same(clamped[..., i, far : i + offset + 1], free[..., i, far : i + offset + 1])
        assert_same(clamped[..., i, :far], free[..., i, far : far + 1].expand(*free.shape[:2], far))


DECODED = [(arch, {"memory_length": 7}, 7) for arch in SOME]
DECODED += [(arch, {"memory": "state"}, 7) for arch in SHIFTABLE]
DECODED += [("softmax_lm_xl", {"memory_length": 7}, prompt) for prompt in (1, 15)]


@pytest.mark.parametrize("arch, memory, prompt", DECODED)
@torch.no_grad()
def test_decoding_with_memory(arch, memory, prompt):
    """Decoding after a prompt, even one longer than a segment, equals evaluation by segments."""
    decoder, tokens = build(arch, **memory), words()
    check_decoding(decoder, tokens, in_segments(decoder, tokens, 5), prompt)


KEPT = [("softmax_lm_xl", {"memory_length": 7}, True), ("linear_lm_rope", {"memory": "state"}, False)]
KEPT += [("softmax_lm_rope", {}, False), ("linear_lm_rope", {}, False)]


@pytest.mark.parametrize("arch, memory, kept", KEPT)
@torch.no_grad()
def test_inputs_that_are_kept_while_decoding(arch, memory, kept):
    attention = build(arch, **memory).layers[0].self_attn
    state = {}
    attention(torch.zeros(1, 2, 32, dtype=torch.float64), incremental_state=state)
    saved = attention.get_incremental_state(state, "attention")
    assert (saved.segment_inputs is not None) is kept
