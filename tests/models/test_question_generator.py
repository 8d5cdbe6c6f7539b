"""Question generators: copying, search, incremental decoding and padding."""

import pytest
import torch
from fairseq import utils
from fairseq.data.data_utils import collate_tokens
from fairseq.sequence_generator import SequenceGenerator
from support.tensors import assert_same, perturbed, randn
from support.tiny_models import BOS, EOS, PAD, architectures, build_model, dictionary_of, task_of

ARCHS = architectures("question_generator")


def build(arch, types=24, **flags):
    """A float64 model in evaluation mode, with a dictionary of ``types`` types."""
    torch.manual_seed(0)
    model = build_model(arch, task_of(dictionary_of(types)), **flags)
    return perturbed(model).double().eval()  # so that no parameter is close to 0


def batch(side="right"):
    """Sources <s> answer </s> text </s> of 12, 9 and 6 tokens, padded on one side, and their lengths."""
    torch.manual_seed(1)
    lengths = (12, 9, 6)
    rows = [torch.randint(4, 24, (length,)) for length in lengths]
    for row in rows:
        row[0], row[2], row[-1] = BOS, EOS, EOS
    return collate_tokens(rows, PAD, left_pad=side == "left"), torch.tensor(lengths)


TARGET = torch.tensor([[EOS, 5, 9, 11, 5], [EOS, 20, 4, PAD, PAD], [EOS, 7, 8, 9, PAD]])


def test_copying_formula():
    """Probabilities and gradients equal sums over the source positions one by one."""
    model, (tokens, lengths) = build("softmax_question_generator_gcdf"), batch()
    out = model(tokens, lengths, TARGET)
    p = model.get_normalized_probs(out, log_probs=False)
    encoded = model.encoder(tokens, lengths)
    h, _ = model.decoder(TARGET, encoder_out=encoded, features_only=True)
    states, decoder = encoded["encoder_out"][0], model.decoder
    expected = []
    for b, t in ((b, t) for b in range(3) for t in range(5)):
        x, places = h[b, t], [j for j in range(12) if tokens[b, j] != PAD]
        g = torch.sigmoid(decoder.gate.weight[0] @ x + decoder.gate.bias[0])
        logits = model.encoder.embed_tokens.weight @ decoder.to_output(x)
        row = list((g * logits.exp() / logits.exp().sum()).unbind())
        scores = torch.stack([states[j, b] @ decoder.to_copy(x) for j in places])
        for j, a in zip(places, scores.exp() / scores.exp().sum(), strict=True):
            row[tokens[b, j]] = row[tokens[b, j]] + (1 - g) * a
        expected.append(torch.stack(row))
    expected = torch.stack(expected).view(3, 5, 24)
    assert_same(p, expected)
    assert_same(model.get_normalized_probs(out, log_probs=True), (expected + 1e-6).log())
    parameters, outer = list(model.parameters()), randn(3, 5, 24)
    assert_same(*(torch.autograd.grad(x, parameters, outer, retain_graph=True) for x in (p, expected)))


def test_probabilities_sum_to_1():
    model, (tokens, lengths) = build("softmax_question_generator_xl", types=2000).half(), batch()
    p = model.get_normalized_probs(model(tokens, lengths, TARGET), log_probs=False)
    assert p.dtype == torch.float and (p.sum(-1) - 1).abs().max() <= 1e-6


@pytest.mark.parametrize("arch", ARCHS)
def test_step_by_step_equals_all_at_once(arch):
    model, (tokens, lengths) = build(arch), batch()
    encoded, target = model.encoder(tokens, lengths), torch.tensor([[EOS, 5, 9, 11, 5, 6, 7]] * 3)
    whole = model.get_normalized_probs(model.decoder(target, encoder_out=encoded), log_probs=True)
    state = {}
    for t in range(1, 8):
        out = model.decoder(target[:, :t], encoder_out=encoded, incremental_state=state)
        assert_same(model.get_normalized_probs(out, log_probs=True)[:, -1], whole[:, t - 1])


def test_padding_on_either_side(monkeypatch):
    # fairseq computes gelu and softmax in float32, whose kernels treat the end of a vector differently.
    monkeypatch.setattr(utils, "softmax", lambda x, dim, onnx_trace=False: torch.softmax(x, dim))
    model = build("linear_question_generator_tmlr_type1")
    for module in model.modules():
        if hasattr(module, "activation_fn"):
            module.activation_fn = torch.relu
    found = [
        model.get_normalized_probs(model(*batch(side), TARGET), log_probs=True) for side in ("right", "left")
    ]
    assert_same(*found)
    tokens, lengths = batch()
    alone = model.get_normalized_probs(model(tokens[2:, :6], lengths[2:], TARGET[2:]), log_probs=True)
    assert_same(found[0][2:], alone)


def test_search_scores_equal_the_models():
    model, (tokens, lengths) = build("softmax_question_generator_gcdf"), batch()
    generator = SequenceGenerator(
        [model], dictionary_of(24), beam_size=5, max_len_a=0, max_len_b=12, len_penalty=0.6,
        no_repeat_ngram_size=3,
    )  # fmt: skip
    found = generator.generate([model], {"net_input": {"src_tokens": tokens, "src_lengths": lengths}})
    for row, hypotheses in enumerate(found):
        assert len(hypotheses) == 5
        for hypothesis in hypotheses:
            out = hypothesis["tokens"]
            before = torch.cat([torch.tensor([EOS]), out[:-1]])[None]
            net = model(tokens[row : row + 1], lengths[row : row + 1], before)
            scores = model.get_normalized_probs(net, log_probs=True)[0].gather(1, out[:, None]).squeeze()
            assert_same(hypothesis["positional_scores"], scores)
            assert_same(hypothesis["score"], scores.sum() / len(out) ** 0.6)
            trigrams = list(zip(out.tolist(), out.tolist()[1:], out.tolist()[2:], strict=False))
            assert len(set(trigrams)) == len(trigrams)
