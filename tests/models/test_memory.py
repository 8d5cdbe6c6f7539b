"""A memory of the segments before: what it sees, what it learns, and that decoding goes on from it."""

from types import SimpleNamespace

import pytest
import torch
from exact import assert_same
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY

import fairseq_lrpe.models  # noqa: F401
from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.tasks.memory_lm import MemoryLMConfig, MemoryLMTask, Segment

RELATIVE = {name: method for name, method in METHODS.items() if not ENCODINGS[method.encoding].absolute}
ARCHITECTURES = [f"{a}_lm_{name}" for name, method in RELATIVE.items() for a in method.attentions()]
LINEAR = [arch for arch in ARCHITECTURES if arch.startswith("linear")]
MOVABLE = [arch for arch in LINEAR if not arch.endswith("_spe")]
LENGTH = 24


def build(arch, memory_length=0, memory="hidden", length=5, **flags):
    """A small decoder in float64 without dropout, and its task's flags."""
    dictionary = Dictionary()
    for i in range(20):
        dictionary.add_symbol(f"w{i}")
    args = SimpleNamespace(**vars(MemoryLMConfig()))
    args.tokens_per_sample, args.memory_length, args.memory = length, memory_length, memory
    task_flags = {k: flags.pop(k) for k in ("clamp_length", "same_length") if k in flags}
    vars(args).update(task_flags)
    config = MODEL_DATACLASS_REGISTRY[arch]()
    sizes = {"embed_dim": 32, "input_dim": 32, "output_dim": 32, "ffn_embed_dim": 48, "layers": 2}
    sizes = {f"decoder_{name}": size for name, size in sizes.items()} | {"decoder_attention_heads": 4}
    fixed = {"add_bos_token": False, "tpu": False, "dropout": 0.0, "max_target_positions": 64}
    for name, value in (sizes | fixed | {"token_positions": "none", **flags}).items():
        setattr(config, name, value)
    torch.manual_seed(1)
    model = ARCH_MODEL_REGISTRY[arch].build_model(config, MemoryLMTask(args, dictionary)).double().eval()
    with torch.no_grad():
        for layer in model.decoder.layers:
            for parameter in layer.self_attn.encoding.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.decoder


def words(length=LENGTH, batch=2):
    return torch.randint(4, 24, (batch, length), generator=torch.Generator().manual_seed(3))


def in_segments(decoder, tokens, length, split="valid", stream=0):
    """The decoder's output (B, n, V) of a text that it reads segment by segment."""
    parts = tokens.split(length, dim=1)
    return torch.cat([decoder(x, segment=Segment(split, stream, i))[0] for i, x in enumerate(parts)], dim=1)


@pytest.mark.parametrize("length", [1, 5, LENGTH])
@pytest.mark.parametrize("arch", ARCHITECTURES)
@torch.no_grad()
def test_with_a_memory_of_all_segments_are_one_pass(arch, length):
    decoder, tokens = build(arch, memory_length=LENGTH, length=length), words()
    assert_same(in_segments(decoder, tokens, length), decoder(tokens)[0])


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("arch", MOVABLE)
@torch.no_grad()
def test_with_running_sums_segments_are_one_pass(arch, length):
    decoder, tokens = build(arch, memory="state", length=length), words()
    assert_same(in_segments(decoder, tokens, length), decoder(tokens)[0])


FAR = {arch: 1e-10 for arch in MOVABLE if "ablation" not in arch}
# Learned angles are larger here, and float64 has none between 1,000,000 and 1,000,000.0000000001.
FAR |= {arch: 1e-9 for arch in FAR if METHODS[arch.removeprefix("linear_lm_")].flags.get("lrpe_learn_theta")}


@pytest.mark.parametrize("arch", FAR)
@torch.no_grad()
def test_running_sums_far_from_the_start(arch):
    """At position 1,000,000, where sums are moved a thousand times and where keys are encoded anew."""
    attention, far = build(arch, memory="state").layers[0].self_attn, 10**6
    encoding, g = attention.encoding, torch.Generator().manual_seed(4)
    k, v = (torch.randn(2, 4, 6, 8, generator=g, dtype=torch.float64) for _ in range(2))

    def sums(offset):
        k_sum = encoding(k, k, offset, offset)[1]
        return k_sum.mT @ encoding.encode_values(v, offset), k_sum.sum(-2)

    near, moved = sums(0), {"sums": sums(far)}
    for _ in range(1000):
        moved = attention.moved(moved, far // 1000)
    assert_same(tuple(moved["sums"]), near, FAR[arch])


@pytest.mark.parametrize("arch", ["softmax_lm_xl", "linear_lm_tmlr_type1", "linear_lm_per"])
@torch.no_grad()
def test_without_a_memory_segments_stand_alone(arch):
    decoder, tokens = build(arch), words()
    alone = torch.cat([decoder(part)[0] for part in tokens.split(5, dim=1)], dim=1)
    assert torch.equal(in_segments(decoder, tokens, 5), alone)


def test_matrices_start_from_the_normal_distribution_that_is_asked_for():
    """Each of N(0, 0.02); biases are 0, and so is the embedding of padding."""
    decoder = build("softmax_lm_xl", init_std=0.02)
    for name, parameter in decoder.named_parameters():
        if "encoding" not in name and "norm" not in name:  # build has moved the encodings' own
            drawn = parameter[parameter.any(-1)] if parameter.dim() == 2 else parameter
            expected = 0.02 if parameter.dim() == 2 else 0.0
            assert abs(drawn.std() - expected) < 0.1 * expected + 1e-12, name
    assert not decoder.embed_tokens.weight[decoder.padding_idx].any()
    untouched = build("softmax_lm_xl").layers[0].fc1.weight
    assert untouched.std() > 0.1


@pytest.mark.parametrize("arch", ["softmax_lm_rope", "linear_lm_tmlr_type1"])
@torch.no_grad()
def test_each_layer_reaches_as_far_as_the_memory(arch):
    """What a position depends on, by changing each word, is what plain counting of its keys' keys gives."""
    length, memory, tokens = 4, 3, words(batch=1)
    decoder = build(arch, memory_length=memory, length=length)

    def reached(position, layers):
        if not layers:
            return {position}
        first = max(0, position // length * length - memory)
        return set().union(*(reached(key, layers - 1) for key in range(first, position + 1)))

    before = in_segments(decoder, tokens, length)
    for place in range(LENGTH):
        other = tokens.clone()
        other[0, place] = 4 + (tokens[0, place] - 3) % 20
        changed = (in_segments(decoder, other, length) - before).abs().amax((0, 2)) > 1e-9
        assert [bool(x) for x in changed] == [place in reached(i, 2) for i in range(LENGTH)]


def plain(decoder, tokens, memory):
    """Transformer-XL written out for a pre-norm decoder; ``memory`` has the inputs of each layer before."""
    x, kept = decoder.embed_scale * decoder.embed_tokens(tokens).transpose(0, 1), []
    for layer, before in zip(decoder.layers, memory, strict=True):
        both = x if before is None else torch.cat([before, x])
        kept.append(both.detach())
        norm = layer.self_attn_layer_norm
        x = x + layer.self_attn(norm(x), norm(both))[0]
        x = x + layer.fc2(torch.relu(layer.fc1(layer.final_layer_norm(x))))
    return decoder.output_layer(decoder.layer_norm(x).transpose(0, 1)), kept


@pytest.mark.parametrize(
    "arch",
    [f"softmax_lm_{name}" for name in ("xl", "shaw", "roper", "cope", "path")] + ["linear_lm_tmlr_type1"],
)
def test_gradients_are_those_of_a_constant_memory(arch):
    """They reach the projections of what is remembered, and no word that is seen in the memory alone."""
    decoder = build(arch, memory_length=7, share_decoder_input_output_embed=False)
    tokens, gradients = words(15), []
    first = tokens[:, :10].unique()
    tokens[:, 10:] = torch.tensor([w for w in range(4, 24) if w not in first] * 5)[:5]
    for read in (in_segments, written_out):
        decoder.zero_grad()
        read(decoder, tokens, 5)[:, 10:].square().sum().backward()
        gradients.append([p.grad.clone() for p in decoder.parameters()])
    assert_same(*gradients)
    assert not decoder.embed_tokens.weight.grad[first].any()
    assert decoder.embed_tokens.weight.grad[tokens[:, 10:]].any()


def written_out(decoder, tokens, length):
    memory, found = [None] * len(decoder.layers), []
    for part in tokens.split(length, dim=1):
        logits, kept = plain(decoder, part, memory)
        memory = [x[-decoder.memory.length :] for x in kept]
        found.append(logits)
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("arch", [arch for arch in MOVABLE if "ablation" not in arch])
def test_gradients_with_running_sums(arch):
    """Against differences, of the tokens and of each parameter; what was summed up before is a constant."""
    attention = build(arch, memory="state").layers[0].self_attn
    first, x = torch.randn(2, 3, 2, 32, dtype=torch.float64)
    attention.carries = True
    attention(first)
    before, leaves = attention.carried, [x.requires_grad_(), *attention.parameters()]

    def read(*_):
        attention.carried = before
        return attention(x)[0]

    assert torch.autograd.gradcheck(read, leaves, fast_mode=True)


@torch.no_grad()
def test_training_and_validation_have_a_memory_each():
    decoder, tokens = build("softmax_lm_rope", memory_length=8), words()
    expected = in_segments(decoder, tokens, 5)
    for number, part in enumerate(tokens.split(5, dim=1)):
        decoder.train()
        assert_same(decoder(part, segment=Segment("train", 0, number))[0], expected[:, 5 * number :][:, :5])
        decoder.eval()
        in_segments(decoder, words(), 4)
        in_segments(decoder, words(), 3, "train")  # the training text, evaluated


@torch.no_grad()
def test_each_group_of_streams_has_a_memory():
    decoder, tokens = build("softmax_lm_rope", memory_length=8), words(batch=4)
    whole = in_segments(decoder, tokens, 5)
    parts = []
    for number, part in enumerate(tokens.split(5, dim=1)):
        both = [decoder(part[i : i + 2], segment=Segment("valid", i, number))[0] for i in (0, 2)]
        parts.append(torch.cat(both))
    assert_same(torch.cat(parts, dim=1), whole)


@torch.no_grad()
def test_a_memory_of_another_place_is_not_used(caplog):
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
def test_with_the_same_length_each_position_sees_as_many_keys():
    """By the definition: of each layer's inputs the last M up to the position itself, anew for each."""
    decoder, tokens, memory = build("softmax_lm_xl", memory_length=6, same_length=True), words(), 6
    attention = decoder.layers[0].self_attn
    x = torch.randn(12, 2, 32, dtype=torch.float64)
    attention.before, last = x[:7], x[7:]
    found = attention(last)[0]
    attention.before = None
    for i in range(5):
        seen = x[7 + i + 1 - memory : 7 + i + 1]
        assert_same(found[i : i + 1], attention(seen[-1:], seen)[0])
    assert not torch.equal(in_segments(decoder, tokens, 5), in_segments(build("softmax_lm_xl", 6), tokens, 5))


BY_DISTANCE = [name for name, cls in ENCODINGS.items() if cls.by_distance]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", BY_DISTANCE)
@torch.no_grad()
def test_a_clamped_distance_is_as_the_largest(name, causal):
    """With the same content everywhere a bias says how far a key is."""
    encoding = ENCODINGS[name](num_heads=2, head_dim=4, causal=causal, max_positions=64).double()
    for parameter in encoding.parameters():
        parameter.normal_()
    x = torch.randn(1, 2, 1, 4, dtype=torch.float64).expand(1, 2, 20, 4)
    offset = 10
    free = encoding.bias(x[:, :, :10], x, offset)
    encoding.clamp_length = 6
    clamped = encoding.bias(x[:, :, :10], x, offset)
    for i in range(10):
        far = i + offset - 6
        assert_same(clamped[..., i, far : i + offset + 1], free[..., i, far : i + offset + 1])
        assert_same(clamped[..., i, :far], free[..., i, far : far + 1].expand(*free.shape[:2], far))


@pytest.mark.parametrize("prompt", [1, 7, 15])
@pytest.mark.parametrize("arch", ARCHITECTURES)
@torch.no_grad()
def test_decoding_goes_on_from_a_memory(arch, prompt):
    """Step by step, after a prompt that may be longer than a segment, as segments are evaluated."""
    decoder, tokens = build(arch, memory_length=7), words()
    check_decoding(decoder, tokens, prompt)


@pytest.mark.parametrize("arch", MOVABLE)
@torch.no_grad()
def test_decoding_goes_on_from_running_sums(arch):
    check_decoding(build(arch, memory="state"), words(), 7)


def check_decoding(decoder, tokens, prompt):
    whole = in_segments(decoder, tokens, 5)
    state, order = {}, torch.tensor([1, 0])
    assert_same(decoder(tokens[:, :prompt], incremental_state=state)[0], whole[:, :prompt])
    for step in range(prompt, LENGTH):
        decoder.reorder_incremental_state_scripting(state, order)
        tokens, whole = tokens[order], whole[order]
        out = decoder(tokens[:, : step + 1], incremental_state=state)[0]
        assert_same(out[:, -1], whole[:, step])


@torch.no_grad()
def test_the_memory_of_a_decoding_does_not_grow():
    decoder, tokens, state = build("softmax_lm_rope", memory_length=7), words(200, 1), {}
    for step in range(200):
        decoder(tokens[:, : step + 1], incremental_state=state)
    largest = max(x.size(1) for saved in state.values() for x in [saved["read"]])
    assert largest <= 7 + 5
