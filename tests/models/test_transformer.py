"""Translation models: beam search, padding on either side, and fairseq's weights."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.data.data_utils import collate_tokens
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from fairseq.sequence_generator import SequenceGenerator
from support.tiny_models import EOS, PAD, SIZES, architectures, build_model, dictionary_of, task_of

from fairseq_lrpe.attention.fairseq_adapter import FairseqLinearAttention, FairseqSoftmaxAttention
from fairseq_lrpe.config import TOKEN_POSITIONS
from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.methods import METHODS

CROSS_SELF = {"cross_self_attention": True, "no_cross_attention": True}
LINEAR_DECODER = {"decoder_attention": "linear", "encoding_in": "both"}
CASES = [(arch, {}) for arch in architectures("transformer", bidirectional=True)]
CASES += [(f"softmax_transformer_{name}", {"encoding_in": "decoder"}) for name in ("cope", "path", "alibi")]
CASES += [("linear_transformer_base", {"token_positions": positions}) for positions in TOKEN_POSITIONS]
CASES += [
    (f"linear_transformer_{name}", LINEAR_DECODER)
    for name in ("spe", "per", "roper", "tmlr_type1", "iclr_type8")
]
CASES += [("softmax_transformer_shaw_values", CROSS_SELF)]
CASES += [("linear_transformer_tmlr_type1", {**LINEAR_DECODER, **CROSS_SELF})]
every = pytest.mark.parametrize("arch, flags", CASES, ids=str)


def tiny_task():
    return task_of(dictionary_of(prefix="s"), dictionary_of(prefix="t"))


def build(arch, **flags):
    return build_model(arch, tiny_task(), **flags).eval()


def random_sources():
    return [torch.cat([torch.randint(4, 24, (n - 1,)), torch.tensor([EOS])]) for n in (12, 9, 5)]


def translations(model, tokens, incremental=True):
    """The hypotheses of a beam search for each source: [(tokens, score), ..]."""
    generator = SequenceGenerator([model], tiny_task().target_dictionary, beam_size=3, max_len_b=15)
    generator.model.has_incremental = incremental
    lengths = tokens.ne(PAD).sum(1)
    found = generator.generate([model], {"net_input": {"src_tokens": tokens, "src_lengths": lengths}})
    return [[(h["tokens"].tolist(), float(h["score"])) for h in hypotheses] for hypotheses in found]


def assert_same(one, other):
    for mine, yours in zip(one, other, strict=True):
        assert [tokens for tokens, _ in mine] == [tokens for tokens, _ in yours]
        assert [s for _, s in mine] == pytest.approx([s for _, s in yours], abs=1e-4)


@every
@torch.no_grad()
def test_beam_search_with_padding_equals_search_without_state(arch, flags):
    """Neither the state, nor padding on either side, nor the other sources change the translations."""
    model, sources = build(arch, **flags), random_sources()
    alone = [found for row in sources for found in translations(model, row[None], incremental=False)]
    for left_pad in (False, True):
        assert_same(translations(model, collate_tokens(sources, PAD, left_pad=left_pad)), alone)
    assert len({str(x) for x in alone}) == 3


@every
def test_parts_have_the_requested_attention(arch, flags):
    model = build(arch, **flags)
    attention, _, name = arch.split("_", 2)
    kinds = {"linear": FairseqLinearAttention, "softmax": FairseqSoftmaxAttention}
    wanted = {"encoder": attention, "decoder": flags.get("decoder_attention", "softmax")}
    where = flags.get("encoding_in", "both" if attention == "softmax" else "encoder")
    for part, kind in wanted.items():
        encoding = ENCODINGS[METHODS[name].encoding if where in (part, "both") else "none"]
        for number, layer in enumerate(getattr(model, part).layers, 1):
            assert type(layer.self_attn) is kinds[kind] and type(layer.self_attn.encoding) is encoding
            assert layer.self_attn.causal == (part == "decoder")
            assert layer.self_attn.encoding.layer == (1 if encoding.shared_across_layers else number)


OTHER_FLAGS = {"layernorm_embedding": True, "no_scale_embedding": True, "no_decoder_final_norm": True}
OTHER_FLAGS |= {"encoder_normalize_before": True, "decoder_normalize_before": True}


@pytest.mark.parametrize("flags", [{}, CROSS_SELF, {"cross_self_attention": True}, OTHER_FLAGS], ids=str)
def test_softmax_base_equals_fairseqs_transformer(flags):
    """Models with the same weights have the same outputs, translations and gradients."""
    ours = build("softmax_transformer_base", **flags)
    sizes = {f"{part}_{name}": x for part in ("encoder", "decoder") for name, x in SIZES.items()}
    config = SimpleNamespace(**sizes, decoder_output_dim=32, decoder_input_dim=32, **flags)
    config = TransformerConfig.from_namespace(config)
    fairseqs = TransformerModelBase.build_model(config, tiny_task()).eval()
    fingerprints = {name: value for name, value in ours.state_dict().items() if "method" in name}
    assert not ours.load_state_dict(fairseqs.state_dict() | fingerprints).missing_keys
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in fairseqs.parameters())

    tokens = collate_tokens(random_sources(), PAD, left_pad=True)
    lengths = tokens.ne(PAD).sum(1)
    previous, target = torch.randint(4, 24, (2, 3, 7))
    with torch.no_grad():
        outputs = [model(tokens, lengths, previous)[0] for model in (ours, fairseqs)]
        torch.testing.assert_close(*outputs, rtol=0, atol=1e-5)
        assert_same(translations(ours, tokens), translations(fairseqs, tokens))
    gradients = []
    for model in (ours, fairseqs):
        model.double()
        scores, _ = model(tokens, lengths, previous)
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())
        parameters = dict(model.named_parameters())
        found = torch.autograd.grad(loss, list(parameters.values()))
        gradients.append(dict(zip(parameters, found, strict=True)))
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        # fairseq computes its softmax in float32.
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-6, msg=name)
