"""Every architecture: registration, training, checkpoints and incremental decoding."""

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from support.tiny_models import (
    ONE_PER_ENCODING,
    PAD,
    architectures,
    build_small,
    check_decoding,
)

from fairseq_lrpe.config import TOKEN_POSITIONS
from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.positions import POSITIONS, build_position

ARCHITECTURES = architectures("lm")


@pytest.mark.parametrize("family, own", [
    ("lm", {"decoder_normalize_before": True}),
    ("roberta", {"token_positions": "learned"}),
    ("transformer", {}),
    ("question_generator", {}),
    ("classifier", {}),
    ("vit", {}),
])  # fmt: skip
def test_one_architecture_per_method_and_attention(family, own):
    names = [f"linear_{family}", f"softmax_{family}"]
    found = [arch for arch in ARCH_MODEL_REGISTRY if arch.startswith(tuple(names))]
    assert sorted(found) == sorted([*architectures(family, METHODS), *names])
    for name, method in METHODS.items():
        assert method.encoding in ENCODINGS and method.source
        for attention in method.attentions():
            config = MODEL_DATACLASS_REGISTRY[f"{attention}_{family}_{name}"]()
            expected = own | method.flags | {"attention": attention}
            assert {flag: getattr(config, flag) for flag in expected} == expected


def test_papers_types_have_their_published_flags():
    def row(name):
        flags = METHODS[name].flags
        learned = [what for what in ("theta", "householder") if flags.get(f"lrpe_learn_{what}")]
        return flags["lrpe_rotation"], flags["lrpe_core"], learned

    # TMLR Appendix D.1; ICLR Table 1 with Appendix C.7.
    expected = {
        "tmlr_type1": ("householder", "unitary", ["theta"]),
        "tmlr_type2": ("householder", "orthogonal", ["theta"]),
        "tmlr_type3": ("householder", "permutation", []),
        "iclr_type1": ("householder", "mixed", []),
        "iclr_type2": ("householder", "orthogonal", ["theta"]),
        "iclr_type3": ("householder", "orthogonal", ["theta", "householder"]),
        "iclr_type4": ("householder", "permutation", []),
        "iclr_type5": ("odd_even", "mixed", []),
        "iclr_type6": ("odd_even", "orthogonal", ["theta"]),
        "iclr_type7": ("odd_even", "permutation", []),
        "iclr_type8": ("fft", "unitary", []),
    }
    assert {name: row(name) for name in expected} == expected


def build(arch, **flags):
    """A small float64 language model in evaluation mode."""
    return build_small(arch, tokens_per_sample=64, max_target_positions=64, **flags).double().eval()


@pytest.mark.parametrize("arch", architectures("lm", ONE_PER_ENCODING))
def test_reloaded_model_has_identical_outputs(arch):
    """After updates, which change every parameter."""
    model, tokens = build(arch), torch.randint(4, 24, (2, 20))
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.Adam(model.train().parameters(), 0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model(tokens)[0].log_softmax(-1)[..., 5].sum().backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        assert not torch.equal(parameter, before[name]), f"{name} did not learn"
    reloaded = build(arch)
    reloaded.load_state_dict(model.state_dict())
    with torch.no_grad():
        found = model.eval()(tokens)[0]
        assert found.isfinite().all() and torch.equal(found, reloaded(tokens)[0])


@pytest.mark.parametrize("arch, prefix", [*((arch, 21) for arch in ARCHITECTURES), ("linear_lm_per", 1)])
@torch.no_grad()
def test_step_by_step_equals_the_whole_sequence(arch, prefix):
    model, tokens = build(arch), torch.randint(4, 24, (3, 40))
    check_decoding(model.decoder, tokens, model(tokens)[0], prefix)


@pytest.mark.parametrize("width", [32, 24])
@pytest.mark.parametrize("positions", ["learned", "none", *POSITIONS])
@torch.no_grad()
def test_token_positions(positions, width):
    """Each kind supports padding and decoding step by step, and makes the order of tokens matter.

    Positions follow the projection of embeddings that do not have the model's width of 32.
    """
    flags = {"token_positions": positions, "decoder_input_dim": width}
    model = build("softmax_lm", **flags, decoder_layers=1)
    tokens = torch.randint(4, 24, (3, 30))
    tokens[1, 20:] = PAD
    tokens[0, :2] = torch.tensor([5, 6])
    whole = model(tokens)[0]
    torch.testing.assert_close(model(tokens[1:2, :20])[0][0], whole[1, :20], rtol=0, atol=1e-10)
    for prefix in (1, 14):
        check_decoding(model.decoder, tokens[[0, 2]], whole[[0, 2]], prefix)
    # Without an encoding, one layer depends on the order of its keys only through the token positions.
    swapped = tokens[:1, [1, 0, *range(2, 30)]]
    same = torch.allclose(model(swapped)[0][0, 2:], whole[0, 2:], rtol=0, atol=1e-10)
    assert same == (positions == "none")
    assert ("decoder.embed_positions.weight" in model.state_dict()) == (positions == "learned")


FAMILIES = "lm", "roberta", "classifier", "transformer", "question_generator"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("positions", TOKEN_POSITIONS)
def test_token_positions_in_half_precision(positions, dtype):
    """Some have parameters in float32."""
    tokens = torch.randint(4, 24, (2, 9))
    for family in FAMILIES:
        model = build_small(f"softmax_{family}", token_positions=positions).to(dtype)
        more = (None, tokens) if family in ("transformer", "question_generator") else ()
        out = model(tokens, *more)
        out = out if family == "classifier" else out[0]
        out.float().square().sum().backward()
        assert out.dtype == dtype and out.isfinite().all()


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("family, part, std", [
    ("lm", "decoder", 100), ("classifier", "encoder", 100), ("roberta", "encoder.sentence_encoder", None)
])  # fmt: skip
def test_token_positions_keep_their_initialization(family, part, std, positions):
    """RoBERTa draws the weights of linear layers like BERT, and other families draw them with --init-std."""
    flags = {"token_positions": positions} | ({"init_std": std} if std else {})
    part = build_small(f"softmax_{family}", **flags).get_submodule(part)
    assert part.layers[0].fc1.weight.std().item() == pytest.approx(std or 0.02, rel=0.2)
    alone = build_position(positions, embed_dim=32, vocab_size=24, max_positions=24, layers=2)
    for name, parameter in part.embed_positions.position.named_parameters():
        torch.testing.assert_close(parameter.std(), alone.get_parameter(name).std(), rtol=0.5, atol=1e-6)


def test_positions_in_every_layer_are_added_to_the_inputs_of_attention():
    model = build("softmax_lm", token_positions="floater_every_layer")
    decoder, tokens, inputs = model.decoder, torch.randint(4, 24, (2, 7)), {}
    position = decoder.embed_positions.position
    with torch.no_grad():
        position.start.normal_()
    for n, layer in enumerate(decoder.layers):
        for name in ("q_proj", "k_proj", "v_proj"):
            projection = getattr(layer.self_attn, name)
            projection.register_forward_pre_hook(lambda _, x, key=(n, name): inputs.update({key: x[0]}))
        layer.self_attn_layer_norm.register_forward_hook(lambda _, x, y, n=n: inputs.update({n: (x[0], y)}))
    model(tokens)
    zeros = torch.zeros(2, 7, position.width, dtype=torch.float64)
    terms = position(zeros, torch.arange(7).expand(2, 7), tokens).chunk(2, dim=-1)
    embeddings = decoder.embed_scale * decoder.embed_tokens(tokens)
    torch.testing.assert_close(inputs[0][0], embeddings.transpose(0, 1), rtol=0, atol=0)
    for n, term in enumerate(terms):
        for name in ("q_proj", "k_proj", "v_proj"):
            torch.testing.assert_close(inputs[n, name], inputs[n][1] + term.transpose(0, 1), rtol=0, atol=0)
    assert not terms[0].equal(terms[1])
