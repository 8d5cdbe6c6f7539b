"""Models with random positions (--randomized-positions): positions, training, evaluation and refusals."""

import math
from types import SimpleNamespace

import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from support.commands import assert_error, evaluated_loss, load_last_checkpoint, loss_of_samples
from support.tensors import assert_same
from support.tiny import succeeded
from support.tiny_models import EOS, PAD, build_small

from fairseq_lrpe.attention.fairseq_adapter import FairseqSelfAttention
from fairseq_lrpe.experiments.definition.language_model import ModelFlags
from fairseq_lrpe.experiments.inference.evaluate_synthetic import complete
from fairseq_lrpe.experiments.inference.load import load_model
from fairseq_lrpe.models.sampling import chooser, sample
from fairseq_lrpe.ops.position_index import random_position_index
from fairseq_lrpe.utils.errors import UserError

N, L = 50, 12
FAMILIES = {"lm": "decoder", "roberta": "encoder", "classifier": "encoder", "transformer": "encoder"}


def build(arch, **flags):
    torch.manual_seed(0)
    return build_small(arch, **{"randomized_positions": N, **flags}).double().eval()


def part_of(model, family):
    part = getattr(model, FAMILIES[family])
    return getattr(part, "sentence_encoder", part)


def inputs(family, tokens):
    return (tokens, None, tokens) if family == "transformer" else (tokens,)


def tokens_of(*shape):
    return torch.randint(4, 24, shape)


@pytest.fixture
def used(monkeypatch):
    """The (causal, positions) of each call of self-attention."""
    calls, forward = [], FairseqSelfAttention.forward

    def recorded(self, *args, **kwargs):
        index = kwargs.get("position_index")
        calls.append((self.causal, None if index is None else index.query_positions.tolist()))
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(FairseqSelfAttention, "forward", recorded)
    return calls


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_layers_share_a_draw(used, attention, family):
    model, tokens = build(f"{attention}_{family}_rope", token_positions="none"), tokens_of(2, L)
    causal, draws = family == "lm", []
    for training in (True, True, False, False):
        used.clear()
        model.train(training)(*inputs(family, tokens))
        own = [p for is_causal, p in used if is_causal == causal]
        assert len(own) == 2 and own[0] == own[1] is not None
        assert all(p is None for is_causal, p in used if is_causal != causal)  # the decoder of translation
        draws.append(own[0])
    assert draws[0] != draws[1] and draws[2] == draws[3]
    assert draws[2] == random_position_index(L, N, fixed=True).query_positions.tolist()
    assert not any(x._forward_pre_hooks for x in model.modules())


@pytest.mark.parametrize(
    "arch", "softmax_lm_rope linear_lm_alibi softmax_lm_xpos softmax_roberta_t5 linear_roberta_rope".split()
)
def test_model_equals_that_of_a_padded_text(arch):
    """Without token positions, which do not count padding."""
    family = arch.split("_")[1]
    model = build(arch, token_positions="none", dropout=0.0)
    sizes = {"max_target_positions": N, "tokens_per_sample": N} if family == "lm" else {"max_positions": N}
    plain = build(arch, token_positions="none", randomized_positions=0, **sizes)
    versions = {name: x for name, x in plain.state_dict().items() if "version" in name}
    plain.load_state_dict(model.state_dict() | versions)
    tokens = tokens_of(2, L)
    tokens[1, -3:] = PAD
    p = random_position_index(L, N, fixed=True).query_positions
    padded = torch.full((2, N), PAD).index_copy(1, p, tokens)
    real = tokens != PAD
    assert_same(model(tokens)[0][real], plain(padded)[0][:, p][real])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["roberta", "classifier", "transformer"])
def test_padding_of_sources_changes_nothing(family, side):
    """Tokens of a row have the first positions of a draw."""
    norm = {"encoder_norm": "layer"} if family == "classifier" else {}
    encoder = part_of(build(f"softmax_{family}_rope", token_positions="sinusoidal", **norm), family)
    tokens = tokens_of(2, L)
    padded = tokens.clone()
    padded[1] = PAD
    padded[1, slice(3, L) if side == "left" else slice(0, L - 3)] = tokens[1, : L - 3]
    with encoder.positions_of(tokens):
        found = encoder.embed_positions(padded)[1][padded[1] != PAD]
        assert found.equal(encoder.embed_positions(tokens)[1, : L - 3])
    out = encoder(padded)["encoder_out"][0][:, 1][padded[1] != PAD]
    right = padded.clone()
    right[1] = PAD
    right[1, : L - 3] = tokens[1, : L - 3]
    assert_same(out, encoder(right)["encoder_out"][0][: L - 3, 1])


@pytest.mark.parametrize("family", ["lm", "roberta"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_token_positions_of_fairseq(family, positions):
    sizes = {"max_target_positions": N} if family == "lm" else {"max_positions": N}
    part = part_of(build(f"softmax_{family}_base", token_positions=positions, **sizes), family)
    tokens = tokens_of(2, L)
    tokens[1, -2:] = PAD
    with part.positions_of(tokens):
        found = part.embed_positions(tokens)
    p = random_position_index(L, N, fixed=True).query_positions.tolist()
    width = part.embed_tokens.embedding_dim
    for row, column in (tokens != PAD).nonzero().tolist():
        if positions == "learned":
            expected = part.embed_positions.weight[PAD + 1 + p[column]]
        else:
            number, half = p[column] + PAD + 1, width // 2
            angles = [number * math.exp(-m * math.log(10000) / (half - 1)) for m in range(half)]
            expected = torch.tensor([f(a) for f in (math.sin, math.cos) for a in angles], dtype=torch.double)
        assert_same(found[row, column].double(), expected.double(), 1e-4)
    assert not found[1, -2:].any()


@pytest.mark.parametrize(
    "positions",
    "multiplicative concatenation hierarchical recurrent floater_every_layer cape complex_order".split(),
)
def test_own_token_positions(positions):
    decoder = build("softmax_lm_nope", token_positions=positions).decoder
    seen, forward = [], decoder.embed_positions.position.forward
    decoder.embed_positions.position.forward = lambda x, p, tokens: seen.append(p) or forward(x, p, tokens)
    tokens = tokens_of(2, L)
    tokens[1, -2:] = PAD
    assert decoder(tokens)[0][tokens != PAD].isfinite().all()
    expected = random_position_index(L, N, fixed=True).query_positions
    assert seen[0][0].equal(expected) and seen[0][1, :-2].equal(expected[:-2])


def test_short_texts_have_some_positions_of_longer_ones():
    """Every text can be as long as the number of positions, and longer ones are refused."""
    model = build("linear_lm_rope", token_positions="sinusoidal")
    assert model(tokens_of(1, N))[0].isfinite().all() and model(tokens_of(2, 0))[0].size(1) == 0
    with pytest.raises(UserError, match="51 tokens cannot have different positions below 50"):
        model(tokens_of(1, N + 1))


def test_sampling_computes_the_whole_text():
    decoder = build("linear_lm_rope").decoder
    prompt, choose = torch.tensor([5, 6, 7]), chooser(0, 0, 1.0, None, torch.device("cpu"))
    text = prompt.tolist()
    for _ in range(8):
        logits = decoder(torch.tensor([text]))[0][0, -1]
        logits[PAD] = -math.inf
        text.append(int(logits.argmax()))
    assert list(sample(decoder, prompt, 8, choose, PAD)) == text[3:]
    question = SimpleNamespace(decoder=decoder, parameters=decoder.parameters)
    assert complete(question, [prompt], 8, EOS)[0][:3] == text[3:6]
    with pytest.raises(UserError, match="cannot decode token by token"):
        decoder(torch.tensor([[EOS, 5]]), incremental_state={})


def test_training_and_evaluation(train, data_bin, tmp_path, caplog):
    flags = "--randomized-positions 64 --token-positions sinusoidal --no-epoch-checkpoints".split()
    for updates, name in ((4, "whole"), (2, "parts"), (4, "parts")):
        succeeded(train("softmax_lm_alibi", tmp_path / name, *flags, "--max-update", updates))
    whole, parts = (load_last_checkpoint(tmp_path / name)["model"] for name in ("whole", "parts"))
    assert all(x.equal(parts[name]) for name, x in whole.items())

    path, words = tmp_path / "parts/checkpoint_last.pt", ["--tokens-per-sample", 16, "--batch-size"]
    first, second, single = (evaluated_loss(caplog, data_bin, path, *words, n) for n in (4, 4, 1))
    assert first == second
    [model], cfg, task = load_model_ensemble_and_task([str(path)], {"tokens_per_sample": 16})
    assert model.decoder.randomized_positions == ModelFlags(cfg.model).max_length()[0] == 64
    assert single == pytest.approx(loss_of_samples(model, task), abs=2e-4)

    other = train("softmax_lm_alibi", tmp_path / "whole", "--max-update", 6)
    assert_error(other, "the checkpoint's method (")
    assert ", randomized_positions 64, " in other.stderr
    with pytest.raises(UserError, match="rope_scaling does not support models trained with"):
        load_model(path, cpu=True, rope_scaling="ntk:2")


POSITIONS = "--randomized-positions 64"


@pytest.mark.parametrize("arch, flags, message", [
    ("softmax_lm_fox", POSITIONS, "does not support the encoding fox, which accumulates values"),
    ("softmax_lm_cope", POSITIONS, "does not support the encoding cope"),
    ("softmax_lm_nope", f"{POSITIONS} --token-positions rnn", "--randomized-positions would change nothing"),
    ("softmax_lm_rope", f"{POSITIONS} --rope-scaling yarn:2:32", "does not support --rope-scaling"),
    ("softmax_lm_rope", "--randomized-positions -1", "must be at least 1, not -1"),
    ("softmax_lm_rope", "--randomized-positions 31", "is below the maximum length of 32 tokens"),
    ("softmax_lm_rope", f"{POSITIONS} --token-positions learned", "exceeds the table of 32 learned"),
    ("softmax_lm_rope", f"{POSITIONS} --token-positions none --task memory_lm --memory-length 16 --streams 4",
     "random positions differ between segments"),
])  # fmt: skip
def test_refusals(train, tmp_path, arch, flags, message):
    assert_error(train(arch, tmp_path, *flags.split(), "--max-update", 1), message)


@pytest.mark.parametrize("arch, flags, message", [
    ("softmax_roberta_tupe_r", {}, "pass --no-tupe-cls"),
    ("softmax_roberta_deberta", {"mask_decoder": True, "token_positions": "none"}, "support --mask-decoder"),
    ("softmax_vit_rope", {}, "is for sequences"),
    ("softmax_question_generator_rope", {}, "question generators"),
])  # fmt: skip
def test_refusals_of_families(arch, flags, message, capsys):
    with pytest.raises(UserError) as error:
        build(arch, **flags)
    assert message in str(error.value)
