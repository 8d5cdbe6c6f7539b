"""RoBERTa: every bidirectional method, fairseq's weights, its commands and its hub interface."""

import random
from argparse import Namespace

import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.data.data_utils import collate_tokens
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from fairseq.models.roberta import RobertaModel as FairseqRobertaModel
from support.commands import SHORT_TRAINING, assert_error, load_last_checkpoint, sizes, validated
from support.documents import block
from support.tensors import assert_same
from support.tiny import preprocess, run_here, succeeded, train_here, write_byte_pairs
from support.tiny_models import PAD, SIZES, architectures, build_model, task_of

from fairseq_lrpe import load_model
from fairseq_lrpe.cli import classify
from fairseq_lrpe.config import TOKEN_POSITIONS
from fairseq_lrpe.experiments.definition.kinds.glue import pretrained as pretrained_model
from fairseq_lrpe.models import RobertaModel
from fairseq_lrpe.utils.errors import UserError

BIDIRECTIONAL = architectures("roberta", bidirectional=True)
DECODER = {"mask_decoder": True, "token_positions": "none"}
CASES = [(arch, {}) for arch in BIDIRECTIONAL]
CASES += [("linear_roberta_base", {"token_positions": positions}) for positions in TOKEN_POSITIONS]
CASES += [(f"softmax_roberta_{name}", DECODER) for name in ("deberta", "tupe_r")]


def tiny_task():
    return task_of(max_positions=lambda: 64)


def build(arch, **flags):
    """A small model without dropout."""
    return sharpened(build_model(arch, tiny_task(), **flags))


@torch.no_grad()
def sharpened(model):
    """Multiplies weights by ten, except positions: initially tokens hardly interact."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and "position" not in name and "encoding" not in name:
            parameter.mul_(10)
    return model.eval()


def padded_batch():
    """Rows of 30, 20 and 7 tokens, and their lengths."""
    lengths = (30, 20, 7)
    return collate_tokens([torch.randint(4, 24, (n,)) for n in lengths], PAD), lengths


def test_causal_encodings_are_rejected():
    with pytest.raises(UserError, match=r"^encoding .*: use it in a language model or a"):
        build("softmax_roberta_cope")


@pytest.mark.parametrize("arch, flags", CASES, ids=str)
@torch.no_grad()
def test_padding_does_not_change_outputs(arch, flags):
    model = build(arch, **flags)
    model.encoder.sentence_encoder.embed_tokens.weight[PAD] = 1  # instead of 0
    tokens, lengths = padded_batch()
    for features_only in (True, False):
        together = model(tokens, features_only=features_only)[0]
        assert together.isfinite().all()
        for row, length in enumerate(lengths):
            alone = model(tokens[row : row + 1, :length], features_only=features_only)[0]
            torch.testing.assert_close(together[row, :length], alone[0], rtol=0, atol=1e-5)


@torch.no_grad()
def test_softmax_base_equals_fairseqs_roberta():
    shape = {f"encoder_{name}": size for name, size in SIZES.items()}
    theirs = FairseqRobertaModel.build_model(Namespace(**shape, max_positions=64), tiny_task())
    sharpened(theirs)
    ours = build("softmax_roberta_base")
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    fingerprint = "encoder.sentence_encoder.method.version"
    ours.load_state_dict({**theirs.state_dict(), fingerprint: ours.state_dict()[fingerprint]}, strict=True)
    tokens, lengths = padded_batch()
    for features_only in (True, False):
        expected, found = (model(tokens, features_only=features_only)[0] for model in (theirs, ours))
        for row, length in enumerate(lengths):
            torch.testing.assert_close(found[row, :length], expected[row, :length], rtol=0, atol=1e-5)


# DeBERTa's enhanced mask decoder.


def decoder_layer(layer, queries, inputs, padding):
    """Returns an encoder layer's output (L, E) for one sequence and softmax attention."""
    attention, before, heads = layer.self_attn, layer.normalize_before, SIZES["attention_heads"]
    norm, last_norm = layer.self_attn_layer_norm, layer.final_layer_norm
    q, k, v = queries, inputs, inputs
    if before:
        q, k, v = norm(q), norm(k), norm(v)
    q, k, v = attention.q_proj(q), attention.k_proj(k), attention.v_proj(v)
    width, parts = q.size(1) // heads, []
    for h in range(heads):
        at = slice(h * width, (h + 1) * width)
        scores = (q[:, at] @ k[:, at].T / width**0.5).masked_fill(padding, -torch.inf)
        parts.append(scores.softmax(-1) @ v[:, at])
    x = queries + attention.out_proj(torch.cat(parts, dim=1))
    x = x if before else norm(x)
    y = last_norm(x) if before else x
    x = x + layer.fc2(layer.activation_fn(layer.fc1(y)))
    return x if before else last_norm(x)


@pytest.mark.parametrize("normalize_before", [False, True])
def test_mask_decoder_matches_formula(normalize_before):
    """layer(layer(H + P, H), H) with the last layer, its inputs H and the positions P."""
    flags = {**DECODER, "encoder_normalize_before": normalize_before}
    model = build("softmax_roberta_base", **flags).double()
    encoder, (tokens, lengths) = model.encoder.sentence_encoder, padded_batch()
    masked = torch.rand(tokens.shape) < 0.3
    masked &= tokens != PAD
    found = model(tokens, masked_tokens=masked)[0]
    states, expected = model(tokens, return_all_hiddens=True)[1]["inner_states"][-2], []
    for row, length in enumerate(lengths):
        h, padding = states[:, row], tokens[row] == PAD
        x = h.clone()
        for s in range(length):
            x[s] = h[s] + model.encoder.positions.weight[PAD + 1 + s]
        for _ in range(2):
            x = decoder_layer(encoder.layers[-1], x, h, padding)
        x = encoder.layer_norm(x) if normalize_before else x
        expected.append(model.encoder.lm_head(x[masked[row]]))
    expected, results = torch.cat(expected), []
    leaves = [p for name, p in model.named_parameters() if "k_proj.bias" not in name]
    w = torch.randn_like(expected)
    for out in (found, expected):
        results.append((out, *torch.autograd.grad((out * w).sum(), leaves, retain_graph=True)))
    assert_same(*results)


# Models trained with fairseq's commands.

ARCH = "linear_roberta_tmlr_type1"
TINY = [*SHORT_TRAINING, "--lr", 0.001, *sizes("encoder", layers=2, width=32, heads=4, ffn=64)]
PRETRAINING = "--task masked_lm --criterion masked_lm --tokens-per-sample 64 --max-update 6".split()
FINETUNING = (
    "--task sentence_prediction --criterion sentence_prediction --batch-size 10 --max-positions 64 "
    "--init-token 0 --separator-token 2 --shorten-method truncate --num-classes 2 --max-epoch 3"
).split()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with bin, labeled sentences of "good" and "bad" in gpt2_bpe, and valid.txt."""
    folder, draw = tmp_path_factory.mktemp("data"), random.Random(0)
    pairs = folder / "gpt2_bpe"
    pairs.mkdir()
    write_byte_pairs(pairs)
    (folder / "labels.txt").write_text("0 0\n1 0\n")
    encoder = get_encoder(str(pairs / "encoder.json"), str(pairs / "vocab.bpe"))
    for split, rows in (("train", 300), ("valid", 40)):
        goods = [draw.randrange(5) for _ in range(rows)]
        words = [draw.sample(["good"] * good + ["bad"] * (4 - good), 4) for good in goods]
        sentences = [f"the {' '.join(row)}" for row in words]
        encoded = [" ".join(map(str, encoder.encode(sentence))) for sentence in sentences]
        labels = [str(int(good > 2)) for good in goods]
        for name, lines in (("txt", sentences), ("input0", encoded), ("label", labels)):
            (folder / f"{split}.{name}").write_text("\n".join(lines) + "\n")
    for column, dictionary in (("input0", pairs / "dict.txt"), ("label", folder / "labels.txt")):
        files = [x for split in ("train", "valid") for x in (f"--{split}pref", folder / f"{split}.{column}")]
        files += ["--srcdict", dictionary, "--destdir", folder / "bin" / column]
        preprocess("--only-source", *files)
    return folder


def train(data, arch, save_dir, *flags):
    succeeded(train_here(data, *TINY, "--arch", arch, "--save-dir", save_dir, *flags))
    return save_dir


@pytest.fixture(scope="module")
def pretrained(data):
    return train(data / "bin/input0", ARCH, data / "pretrained", *PRETRAINING)


@pytest.fixture(scope="module")
def classifier(data, pretrained):
    start = ["--finetune-from-model", pretrained / "checkpoint_last.pt"]
    return train(data / "bin", ARCH, data / "finetuned", *FINETUNING, *start)


@torch.no_grad()
def test_finetuned_classifier_matches_validation(data, classifier):
    """So do the predictions of the hub interface, of the command, and of load_model."""
    checkpoint, path = classifier / "checkpoint_last.pt", data / "predictions.tsv"
    logged = validated(
        data / "bin", checkpoint, *"--task sentence_prediction --criterion sentence_prediction".split()
    )
    sentences = (data / "valid.txt").read_text().splitlines()
    labels = (data / "valid.label").read_text().split()
    roberta = RobertaModel.from_pretrained(classifier, "checkpoint_last.pt")
    encoded = [roberta.encode(sentence) for sentence in sentences]
    p = torch.cat([roberta.predict("sentence_classification_head", tokens) for tokens in encoded])
    torch.testing.assert_close(p.exp().sum(-1), torch.ones(40))
    found = [str(int(i)) for i in p.argmax(-1)]
    right = sum(x == y for x, y in zip(found, labels, strict=True))
    assert 100 * right / 40 == pytest.approx(logged["accuracy"], abs=0.06) and right > 32
    succeeded(run_here(classify.main, checkpoint, data / "bin", f"valid={path}", "--cpu"))
    assert [line.split("\t")[1] for line in path.read_text().splitlines()[1:]] == found
    predicted = load_model(checkpoint, cpu=True).classify(sentences)
    assert [x.label for x in predicted] == found
    assert [x.probability for x in predicted] == pytest.approx(p.exp().amax(-1).tolist(), abs=1e-5)


@pytest.mark.parametrize("text", ["the good <mask> bad", "<mask> good"])
def test_filled_masks_are_those_of_the_hub_interface(text, pretrained):
    hub = RobertaModel.from_pretrained(pretrained, "checkpoint_last.pt")
    found = load_model(pretrained / "checkpoint_last.pt", cpu=True).fill_mask(text, top_k=7)
    expected = hub.fill_mask(text, topk=7)
    words = [word.strip() for _, _, word in found if word not in ("<s>", "\n")]  # which fairseq omits
    assert words == [word.strip() for _, _, word in expected]
    assert len(found) == 7 and all(word in filled for filled, _, word in found)
    assert found[0][1] == pytest.approx(expected[0][1])


def test_texts_without_one_mask(pretrained):
    model = load_model(pretrained / "checkpoint_last.pt", cpu=True)
    for text, message in (
        ("the", "the text has 0 <mask>: expected exactly one"),
        ("<mask> <mask>", "the text has 2 <mask>: expected exactly one"),
        ("<mask> the" + " the" * 99, "tokens, more than the 64 that the model accepts"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fill_mask(text)


def test_documented_python(pretrained, classifier):
    shown, folder = block("python", "fill_mask"), "results/roberta/wikibook/linear_rope/seed-1/checkpoints"
    assert folder in shown
    for place, left_out in ((pretrained, "predict("), (classifier, "fill_mask(")):  # only one has the head
        (place / "checkpoint_best.pt").write_bytes((place / "checkpoint_last.pt").read_bytes())
        lines = [line for line in shown.splitlines() if left_out not in line]
        exec("\n".join(lines).replace(folder, str(place)), {})


def test_hub_interface_with_other_data(data, pretrained, tmp_path):
    state = load_last_checkpoint(pretrained)
    state["cfg"]["task"]["data"] = str(tmp_path / "gone")
    torch.save(state, tmp_path / "moved.pt")
    with pytest.raises(ValueError, match=r"gone.* does not exist: pass data=FOLDER"):
        RobertaModel.from_pretrained(tmp_path, "moved.pt")
    roberta = RobertaModel.from_pretrained(tmp_path, "moved.pt", data=data / "bin/input0")
    assert roberta.encode("the").tolist() == [0, 4 + 258 - 1, 2]


def test_fairseqs_roberta_loads_safely(data, tmp_path):
    """Its checkpoint contains an argparse.Namespace."""
    train(data / "bin/input0", "roberta", tmp_path, *PRETRAINING, "--max-update", 1)
    assert isinstance(load_last_checkpoint(tmp_path)["cfg"]["model"], Namespace)
    [model], _, _ = load_model_ensemble_and_task([str(tmp_path / "checkpoint_last.pt")])
    assert isinstance(model, FairseqRobertaModel) and not isinstance(model, RobertaModel)


def test_mask_decoder_is_trained_and_fine_tuned(data, tmp_path):
    arch, flags = "softmax_roberta_deberta", ["--mask-decoder", "--token-positions", "none"]
    train(data / "bin/input0", arch, tmp_path / "text", *PRETRAINING, "--max-update", 3, *flags)
    roberta = RobertaModel.from_pretrained(tmp_path / "text", "checkpoint_last.pt")
    assert len(roberta.fill_mask("good bad<mask> good", topk=3)) == 3
    assert pretrained_model(tmp_path / "text/checkpoint_last.pt")["flags"]["mask_decoder"]
    start = ["--finetune-from-model", tmp_path / "text/checkpoint_last.pt", "--max-epoch", 1]
    words = ["--arch", arch, "--save-dir", tmp_path / "other", *FINETUNING, *start, *flags[1:]]
    assert_error(train_here(data / "bin", *TINY, *words), "the checkpoint's method (attention softmax")
    train(data / "bin", arch, tmp_path / "tuned", *FINETUNING, *start, *flags)
    before, after = (load_last_checkpoint(tmp_path / name)["model"] for name in ("text", "tuned"))
    name = "encoder.positions.weight"
    assert after[name].equal(before[name])  # only the masked language model uses it
