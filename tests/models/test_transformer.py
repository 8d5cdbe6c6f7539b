"""Translation models: beam search with and without state, padding on either side, fairseq's own weights."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase, TransformerModelBase
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf

import fairseq_lrpe.models  # noqa: F401
from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention
from fairseq_lrpe.config import TOKEN_POSITIONS
from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.methods import METHODS

CASES = [
    (f"{attention}_transformer_{name}", {})
    for name, method in METHODS.items()
    for attention in method.attentions()
    if ENCODINGS[method.encoding].bidirectional
]
CASES += [
    (f"softmax_transformer_{name}", {"encoding_in": "decoder"})
    for name, method in METHODS.items()
    if not ENCODINGS[method.encoding].bidirectional
]
CASES += [("linear_transformer_base", {"token_positions": positions}) for positions in TOKEN_POSITIONS]
# The decoder's attention may be linear too.
CASES += [
    (f"linear_transformer_{name}", {"decoder_attention": "linear", "encoding_in": "both"})
    for name in ("base", "rope", "spe", "per", "roper", "cosformer", "tmlr_type1", "tmlr_type3", "iclr_type8")
]
every = pytest.mark.parametrize(
    "arch, flags", CASES, ids=lambda x: x if isinstance(x, str) else "-".join(x.values())
)
SHAPE = {
    f"{part}_{name}": value
    for part in ("encoder", "decoder")
    for name, value in (("layers", 2), ("embed_dim", 32), ("ffn_embed_dim", 48), ("attention_heads", 4))
}


def tiny_task():
    source, target = Dictionary(), Dictionary()
    for i in range(20):
        source.add_symbol(f"s{i}")
        target.add_symbol(f"t{i}")
    return SimpleNamespace(source_dictionary=source, target_dictionary=target)


def build(arch, **flags):
    config = OmegaConf.structured(MODEL_DATACLASS_REGISTRY[arch]())
    for name, value in {**SHAPE, **flags}.items():
        setattr(config, name, value)
    model = ARCH_MODEL_REGISTRY[arch].build_model(OmegaConf.create({"model": config}).model, tiny_task())
    return model.eval()


def batch(side):
    """Sources of 12, 9 and 5 tokens, padded on one side."""
    pad, lengths = Dictionary().pad(), (12, 9, 5)
    tokens = torch.full((3, 12), pad)
    for row, length in zip(tokens, lengths, strict=True):
        place = slice(12 - length, 12) if side == "left" else slice(0, length)
        row[place] = torch.randint(4, 24, (length,))
        row[place][-1] = Dictionary().eos()
    return tokens, torch.tensor(lengths)


def sources(tokens):
    return [row[row != Dictionary().pad()][None] for row in tokens]


def translations(model, tokens, beam=3):
    """What beam search finds for each source: [(tokens, score), ..] of all hypotheses."""
    generator = SequenceGenerator([model], tiny_task().target_dictionary, beam_size=beam, max_len_b=15)
    lengths = tokens.ne(Dictionary().pad()).sum(1)
    found = generator.generate([model], {"net_input": {"src_tokens": tokens, "src_lengths": lengths}})
    return [[(h["tokens"].tolist(), float(h["score"])) for h in hypotheses] for hypotheses in found]


def without_state(model):
    """The same model, whose decoder makes everything anew in each step."""
    decoder, forward = model.decoder, model.decoder.forward

    def anew(prev_output_tokens, encoder_out=None, incremental_state=None, **kwargs):
        return forward(prev_output_tokens, encoder_out=encoder_out, **kwargs)

    decoder.forward = anew
    return model


def assert_same(one, other):
    for mine, yours in zip(one, other, strict=True):
        assert [tokens for tokens, _ in mine] == [tokens for tokens, _ in yours]
        assert [s for _, s in mine] == pytest.approx([s for _, s in yours], abs=1e-4)


@every
@torch.no_grad()
def test_beam_search_with_state_is_that_without(arch, flags):
    model = build(arch, **flags)
    tokens, _ = batch("left")
    with_state = translations(model, tokens)
    assert_same(with_state, translations(without_state(model), tokens))
    assert len({str(x) for x in with_state}) == 3


@every
@torch.no_grad()
def test_padding_on_either_side_changes_no_translation(arch, flags):
    model = build(arch, **flags)
    tokens, _ = batch("left")
    left = translations(model, tokens)
    alone = [found for row in sources(tokens) for found in translations(model, row)]
    right = torch.full_like(tokens, Dictionary().pad())
    for row, source in zip(right, sources(tokens), strict=True):
        row[: source.numel()] = source
    assert_same(left, alone)
    assert_same(translations(model, right), alone)


@torch.no_grad()
def test_the_encoders_output_is_copied_only_where_rows_leave_their_sentence():
    encoder = build("linear_transformer_rope").encoder
    tokens, lengths = batch("left")
    out = encoder.reorder_encoder_out(encoder(tokens, lengths), torch.tensor([0, 0, 1, 1, 2, 2]))
    same = encoder.reorder_encoder_out(out, torch.tensor([1, 0, 2, 2, 4, 5]))
    assert same["encoder_out"][0] is out["encoder_out"][0]
    for order in ([0, 1, 4, 5], [2, 3, 0, 1, 4, 5]):
        moved = encoder.reorder_encoder_out(same, torch.tensor(order))
        expected = TransformerEncoderBase.reorder_encoder_out(encoder, same, torch.tensor(order))
        for name in ("encoder_out", "encoder_padding_mask"):
            assert torch.equal(moved[name][0], expected[name][0])
    again = encoder.reorder_encoder_out(moved, torch.tensor([1, 1, 2, 3, 4, 4]))
    assert again["encoder_out"][0] is moved["encoder_out"][0]


@every
def test_each_part_has_the_attention_that_was_asked_for(arch, flags):
    model = build(arch, **flags)
    attention, _, name = arch.split("_", 2)
    kinds = {"linear": LinearAttention, "softmax": SoftmaxAttention}
    wanted = {"encoder": attention, "decoder": flags.get("decoder_attention", "softmax")}
    where = flags.get("encoding_in", "both" if attention == "softmax" else "encoder")
    for part, kind in wanted.items():
        encoding = ENCODINGS[METHODS[name].encoding if where in (part, "both") else "none"]
        for number, layer in enumerate(getattr(model, part).layers, 1):
            assert type(layer.self_attn) is kinds[kind] and type(layer.self_attn.encoding) is encoding
            assert layer.self_attn.causal == (part == "decoder")
            assert layer.self_attn.encoding.layer == (1 if encoding.shared_by_layers else number)


def stamps(model):
    return {name: value for name, value in model.state_dict().items() if "method" in name}


def ours_and_fairseqs():
    """Two models with the same weights."""
    ours = build("softmax_transformer_base")
    config = TransformerConfig.from_namespace(
        SimpleNamespace(**SHAPE, decoder_output_dim=32, decoder_input_dim=32)
    )
    fairseqs = TransformerModelBase.build_model(config, tiny_task()).eval()
    assert not ours.load_state_dict(fairseqs.state_dict() | stamps(ours)).missing_keys
    return ours, fairseqs


@torch.no_grad()
def test_softmax_base_is_fairseqs_own():
    ours, fairseqs = ours_and_fairseqs()
    tokens, lengths = batch("left")
    previous = torch.randint(4, 24, (3, 7))
    torch.testing.assert_close(
        ours(tokens, lengths, previous)[0], fairseqs(tokens, lengths, previous)[0], rtol=0, atol=1e-5
    )
    assert_same(translations(ours, tokens), translations(fairseqs, tokens))
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in fairseqs.parameters())


def test_softmax_base_learns_what_fairseqs_own_does():
    tokens, lengths = batch("left")
    previous, target = torch.randint(4, 24, (2, 3, 7))
    gradients = []
    for model in ours_and_fairseqs():
        model.double()
        scores, _ = model(tokens, lengths, previous)
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())
        parameters = dict(model.named_parameters())
        found = torch.autograd.grad(loss, list(parameters.values()))
        gradients.append(dict(zip(parameters, found, strict=True)))
    ours, fairseqs = gradients
    assert ours.keys() == fairseqs.keys()
    for name, gradient in ours.items():
        # fairseq takes its softmax in float32.
        torch.testing.assert_close(gradient, fairseqs[name], rtol=1e-4, atol=1e-6, msg=name)
