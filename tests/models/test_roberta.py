"""RoBERTa: every method in both directions, fairseq's own weights, its commands, and its interface."""

import random
import re
from argparse import Namespace
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from fairseq import options
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.models.roberta import RobertaModel as FairseqRobertaModel
from fairseq_cli import preprocess
from omegaconf import OmegaConf
from tiny import PLUGIN, run_command, train_here, write_byte_pairs, write_text

from fairseq_lrpe.attention.linear import LinearAttention
from fairseq_lrpe.attention.softmax import SoftmaxAttention
from fairseq_lrpe.config import TOKEN_POSITIONS
from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.models import RobertaModel
from fairseq_lrpe.models.door import check_arch
from fairseq_lrpe.positions import POSITIONS, build_position

METHOD_ARCHITECTURES = [
    f"{attention}_roberta_{name}" for name, method in METHODS.items() for attention in method.attentions()
]
BIDIRECTIONAL = [
    arch
    for arch in METHOD_ARCHITECTURES
    if ENCODINGS[METHODS[arch.split("_roberta_")[1]].encoding].bidirectional
]
CASES = [(arch, {}) for arch in BIDIRECTIONAL] + [
    (f"{attention}_roberta_base", {"token_positions": positions})
    for attention in ("linear", "softmax")
    for positions in TOKEN_POSITIONS
]
every = pytest.mark.parametrize(
    "arch, flags", CASES, ids=lambda x: x if isinstance(x, str) else str(*x.values())
)
SHAPE = {
    "encoder_layers": 2,
    "encoder_embed_dim": 32,
    "encoder_ffn_embed_dim": 48,
    "encoder_attention_heads": 4,
}


def tiny_task():
    dictionary = Dictionary()
    for i in range(20):
        dictionary.add_symbol(f"w{i}")
    return SimpleNamespace(source_dictionary=dictionary, max_positions=lambda: 64)


def build(arch, **flags):
    """A small model without dropout, and its padding."""
    config = OmegaConf.structured(MODEL_DATACLASS_REGISTRY[arch]())
    for name, value in {**SHAPE, **flags}.items():
        setattr(config, name, value)
    task = tiny_task()
    return sharpened(ARCH_MODEL_REGISTRY[arch].build_model(config, task)), task.source_dictionary.pad()


@torch.no_grad()
def sharpened(model):
    """BERT's weights start so small that tokens hardly meet: ten times them, not the positions."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and "position" not in name and "encoding" not in name:
            parameter.mul_(10)
    return model.eval()


def padded_batch(pad):
    """Rows of 30, 20 and 7 tokens, and their lengths."""
    tokens, lengths = torch.randint(4, 24, (3, 30)), (30, 20, 7)
    for row, length in zip(tokens, lengths, strict=True):
        row[length:] = pad
    return tokens, lengths


def test_one_architecture_per_method_and_attention():
    registered = [
        arch for arch in ARCH_MODEL_REGISTRY if arch.startswith(("linear_roberta", "softmax_roberta"))
    ]
    assert sorted(registered) == sorted([*METHOD_ARCHITECTURES, "linear_roberta", "softmax_roberta"])
    for name, method in METHODS.items():
        for attention in method.attentions():
            config = MODEL_DATACLASS_REGISTRY[f"{attention}_roberta_{name}"]()
            assert config.attention == attention
            assert {flag: getattr(config, flag) for flag in method.flags} == method.flags
            assert config.token_positions == method.flags.get("token_positions", "learned")


@pytest.mark.parametrize("arch", sorted({*METHOD_ARCHITECTURES} - {*BIDIRECTIONAL}))
def test_causal_encodings_are_refused(arch):
    with pytest.raises(SystemExit, match=r"^fairseq_lrpe: encoding .*: use it in a language model or a"):
        build(arch)


@every
def test_every_layer_has_the_attention_of_its_name(arch, flags):
    model, _ = build(arch, **flags)
    name = arch.rsplit("roberta_", 1)[1]
    attention = LinearAttention if arch.startswith("linear") else SoftmaxAttention
    for number, layer in enumerate(model.encoder.sentence_encoder.layers, 1):
        encoding = layer.self_attn.encoding
        assert type(layer.self_attn) is attention and type(encoding) is ENCODINGS[METHODS[name].encoding]
        assert not encoding.causal and encoding.layer == number and encoding.max_positions == 64


@every
@torch.no_grad()
def test_a_sentence_alone_is_as_in_a_padded_batch(arch, flags):
    model, pad = build(arch, **flags)
    model.encoder.sentence_encoder.embed_tokens.weight[pad] = 1  # whatever padding is
    tokens, lengths = padded_batch(pad)
    for features_only in (True, False):
        together = model(tokens, features_only=features_only)[0]
        assert together.isfinite().all()
        for row, length in enumerate(lengths):
            alone = model(tokens[row : row + 1, :length], features_only=features_only)[0]
            torch.testing.assert_close(together[row, :length], alone[0], rtol=0, atol=1e-5)


@every
@torch.no_grad()
def test_a_later_token_reaches_every_earlier_position(arch, flags):
    model, _ = build(arch, **flags)
    tokens = torch.randint(4, 24, (2, 30))
    changed = tokens.clone()
    changed[:, 25] = (tokens[:, 25] - 3) % 20 + 4
    difference = (model(tokens)[0] - model(changed)[0]).abs().amax(-1)
    assert difference.min() > 1e-3


@pytest.mark.parametrize("arch", BIDIRECTIONAL)
def test_every_parameter_learns(arch):
    model, pad = build(arch)
    model(padded_batch(pad)[0])[0].square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.any() or name.endswith("k_proj.bias"), name


@pytest.mark.parametrize("positions", POSITIONS)
def test_token_positions_start_in_their_own_way(positions):
    """fairseq's RoBERTa initialises every layer as BERT's, but the layers of these are no layers."""
    torch.manual_seed(1)
    shape = {"embed_dim": 32, "vocab_size": 24, "max_positions": 64}
    alone = build_position(positions, **shape)
    model, _ = build("softmax_roberta_base", token_positions=positions)
    placed = model.encoder.sentence_encoder.embed_positions.position.state_dict()
    for name, weight in alone.state_dict().items():
        torch.testing.assert_close(placed[name].std(), weight.std(), rtol=0.5, atol=1e-6)


@torch.no_grad()
def test_softmax_base_is_fairseqs_roberta():
    task = tiny_task()
    theirs = FairseqRobertaModel.build_model(Namespace(**SHAPE, max_positions=64), task)
    sharpened(theirs)
    ours, pad = build("softmax_roberta_base")
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    stamp = "encoder.sentence_encoder.method.version"
    ours.load_state_dict({**theirs.state_dict(), stamp: ours.state_dict()[stamp]}, strict=True)
    tokens, lengths = padded_batch(pad)
    for features_only in (True, False):
        expected, found = (model(tokens, features_only=features_only)[0] for model in (theirs, ours))
        for row, length in enumerate(lengths):
            torch.testing.assert_close(found[row, :length], expected[row, :length], rtol=0, atol=1e-5)


# Trained models, by fairseq's commands.

ARCH = "linear_roberta_tmlr_type1"
TINY = [
    *("--user-dir", PLUGIN, "--encoder-layers", 2, "--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 64),
    *(
        "--encoder-attention-heads",
        4,
        "--optimizer",
        "adam",
        "--num-workers",
        0,
        "--data-buffer-size",
        0,
        "--cpu",
    ),
    *("--required-batch-size-multiple", 1, "--no-epoch-checkpoints"),
]
PRETRAINING = [
    *("--task", "masked_lm", "--criterion", "masked_lm", "--tokens-per-sample", 64, "--batch-size", 8),
    *("--lr", 0.005),
]
FINETUNING = [
    *("--task", "sentence_prediction", "--criterion", "sentence_prediction", "--batch-size", 10),
    *("--max-positions", 64, "--init-token", 0, "--separator-token", 2, "--shorten-method", "truncate"),
    *("--lr", 0.005, "--max-epoch", 3),
]


def train(data, arch, save_dir, *flags):
    return run_command("fairseq-train", *words(data, arch, save_dir, *flags))


def words(data, arch, save_dir, *flags):
    return [data, *TINY, "--arch", arch, "--save-dir", save_dir, *flags]


def binarise(folder, dictionary, **texts):
    """What fairseq-preprocess makes of {split: file}."""
    prefixes = [x for split, path in texts.items() for x in (f"--{split}pref", path)]
    arguments = ["--only-source", *prefixes, "--srcdict", dictionary, "--destdir", folder]
    preprocess.main(options.get_preprocessing_parser().parse_args(list(map(str, arguments))))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """text/bin in tiny byte pairs, gpt2_bpe; sentiment/bin and scores/bin, whose inputs have labels."""
    folder = tmp_path_factory.mktemp("data")
    pairs = folder / "gpt2_bpe"
    for name in ("text", "sentiment", "scores", "gpt2_bpe"):
        (folder / name).mkdir()
    write_byte_pairs(pairs)
    encoder = get_encoder(str(pairs / "encoder.json"), str(pairs / "vocab.bpe"))

    def encode(path, sentences):
        path.write_text("".join(" ".join(map(str, encoder.encode(x))) + "\n" for x in sentences))
        return path

    write_text(folder / "text")
    texts = {
        split: encode(folder / "text" / split, (folder / "text" / f"{split}.txt").read_text().splitlines())
        for split in ("train", "valid")
    }
    binarise(folder / "text" / "bin", pairs / "dict.txt", **texts)

    draw = random.Random(0)
    inputs, labels = {}, {}
    for split, rows in (("train", 300), ("valid", 40)):
        goods = [draw.randrange(5) for _ in range(rows)]
        sentences = [sentence_of(good, draw) for good in goods]
        (folder / "sentiment" / f"{split}.txt").write_text("\n".join(sentences) + "\n")
        inputs[split] = encode(folder / "sentiment" / f"{split}.input0", sentences)
        labels[split] = folder / "sentiment" / f"{split}.label"
        labels[split].write_text("".join(f"{int(good > 2)}\n" for good in goods))
        scores = folder / "scores" / "bin" / "label"
        scores.mkdir(parents=True, exist_ok=True)
        (scores / f"{split}.label").write_text("".join(f"{good / 4}\n" for good in goods))
    (folder / "sentiment" / "labels.txt").write_text("0 0\n1 0\n")
    for task in ("sentiment", "scores"):
        binarise(folder / task / "bin" / "input0", pairs / "dict.txt", **inputs)
    binarise(folder / "sentiment" / "bin" / "label", folder / "sentiment" / "labels.txt", **labels)
    return folder


def sentence_of(good, draw):
    """Four words, ``good`` of which are good."""
    words = ["good"] * good + ["bad"] * (4 - good)
    draw.shuffle(words)
    return "the " + " ".join(words)


@pytest.fixture(scope="module")
def pretrained(data):
    """A folder with the checkpoint of six updates."""
    folder = data / "pretrained"
    done = train(data / "text/bin", ARCH, folder, *PRETRAINING, "--max-update", 6)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def classifier(data, pretrained):
    """A folder with the checkpoint of the classification, and its log."""
    return finetuned(data, pretrained, "sentiment", "--num-classes", 2, "--report-mcc", "--report-acc-and-f1")


@pytest.fixture(scope="module")
def scorer(data, pretrained):
    flags = ["--num-classes", 1, "--regression-target", "--report-pearson-and-spearman"]
    return finetuned(data, pretrained, "scores", *flags)


def finetuned(data, pretrained, task, *flags):
    folder, start = data / task / "finetuned", pretrained / "checkpoint_last.pt"
    done = train(data / task / "bin", ARCH, folder, *FINETUNING, "--finetune-from-model", start, *flags)
    assert done.returncode == 0, done.stderr
    assert f"loading pretrained model from {start}" in done.stdout
    (folder / "log").write_text(done.stdout)
    return folder


def validated(log, name):
    """The last value of a measure in the validations of a log."""
    return float(re.findall(rf"'valid' subset \|.* {name} (-?[\d.]+)", log)[-1])


def test_pretraining_resumes_and_is_validated(data, pretrained, tmp_path):
    (tmp_path / "checkpoint_last.pt").write_bytes((pretrained / "checkpoint_last.pt").read_bytes())
    resumed = train(data / "text/bin", ARCH, tmp_path, *PRETRAINING, "--max-update", 9)
    assert resumed.returncode == 0, resumed.stderr
    assert re.search(r"Loaded checkpoint .*checkpoint_last.pt \(epoch 1 @ 6 updates\)", resumed.stdout)
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert state["optimizer_history"][-1]["num_updates"] == 9

    flags = ["--user-dir", PLUGIN, "--task", "masked_lm", "--path", tmp_path / "checkpoint_last.pt", "--cpu"]
    flags += ["--batch-size", 8, "--required-batch-size-multiple", 1, "--tokens-per-sample", 64]
    again = run_command("fairseq-validate", data / "text/bin", *flags, "--valid-subset", "valid")
    assert again.returncode == 0, again.stderr
    assert validated(again.stdout, "loss") == pytest.approx(validated(resumed.stdout, "loss"), abs=2e-3)


def test_a_checkpoint_is_safe_and_carries_its_method(pretrained, classifier):
    for folder in (pretrained, classifier):
        state = torch.load(folder / "checkpoint_last.pt", weights_only=True)
        model = state["cfg"]["model"]
        assert model["encoding"] == "lrpe" and model["lrpe_core"] == "unitary"
        [loaded], _, _ = load_model_ensemble_and_task([str(folder / "checkpoint_last.pt")])
        assert loaded.state_dict().keys() == state["model"].keys()
    assert state["model"]["classification_heads.sentence_classification_head.out_proj.weight"].size(0) == 2


def read(folder, task, split="valid"):
    """The sentences of a split and their labels."""
    labels = {"sentiment": "sentiment/{}.label", "scores": "scores/bin/label/{}.label"}[task].format(split)
    sentences = (folder / "sentiment" / f"{split}.txt").read_text().splitlines()
    return sentences, torch.tensor([float(x) for x in (folder / labels).read_text().split()])


def predictions(folder, sentences, **flags):
    roberta = RobertaModel.from_pretrained(folder, "checkpoint_last.pt")
    with torch.no_grad():
        return torch.cat(
            [roberta.predict("sentence_classification_head", roberta.encode(x), **flags) for x in sentences]
        )


def test_a_finetuned_classifier_predicts_what_was_validated(data, classifier):
    sentences, labels = read(data, "sentiment")
    found = predictions(classifier, sentences)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(40))
    log = (classifier / "log").read_text()
    right, both = found.argmax(-1) == labels, (found.argmax(-1) == 1) & (labels == 1)
    assert 100 * right.float().mean().item() == pytest.approx(validated(log, "accuracy"), abs=0.06)
    f1 = 2 * both.sum() / ((found.argmax(-1) == 1).sum() + (labels == 1).sum())
    assert 100 * f1.item() == pytest.approx(validated(log, "f1"), abs=0.06)
    assert right.float().mean() > 0.8 and validated(log, "mcc") > 50


def test_a_finetuned_regression_predicts_what_was_validated(data, scorer):
    sentences, scores = read(data, "scores")
    found = predictions(scorer, sentences, return_logits=True)[:, 0]
    pearson = 100 * torch.corrcoef(torch.stack([found, scores]))[0, 1].item()
    log = (scorer / "log").read_text()
    assert pearson == pytest.approx(validated(log, "pearson"), abs=0.06)
    assert pearson > 50 and validated(log, "spearman") > 50


def test_the_interface_encodes_fills_masks_and_extracts_features(data, pretrained):
    roberta = RobertaModel.from_pretrained(pretrained, "checkpoint_last.pt")
    assert not roberta.training
    tokens = roberta.encode("the Ångström", "w1 the")
    assert roberta.decode(tokens) == ["the Ångström", "w1 the"]
    assert tokens[0] == roberta.task.source_dictionary.bos() and (tokens == 2).sum() == 3
    with torch.no_grad():
        features = roberta.extract_features(tokens)
        assert features.shape == (1, len(tokens), 32)
        states = roberta.extract_features(tokens, return_all_hiddens=True)
        assert len(states) == 3 and states[-1].equal(features)
        filled = roberta.fill_mask("w1 w3<mask> w9", topk=3)
        masked = torch.cat([roberta.encode("w1 w3")[:-1], torch.tensor([264]), roberta.encode(" w9")[1:]])
        logits = roberta.model(masked[None])[0][0, masked == 264][0]
    assert [x[1] for x in filled] == pytest.approx(logits.softmax(-1).topk(3).values.tolist())
    assert all(text == f"w1 w3{token} w9" for text, _, token in filled)


def test_the_interface_without_the_data_it_was_trained_on(data, pretrained, tmp_path):
    state = torch.load(pretrained / "checkpoint_last.pt", weights_only=True)
    state["cfg"]["task"]["data"] = str(tmp_path / "gone")
    torch.save(state, tmp_path / "moved.pt")
    with pytest.raises(ValueError, match=r"gone.* is not here: give data=FOLDER"):
        RobertaModel.from_pretrained(tmp_path, "moved.pt")
    roberta = RobertaModel.from_pretrained(tmp_path, "moved.pt", data=data / "text/bin")
    assert roberta.encode("the").tolist() == [0, 4 + 258 - 1, 2]


def test_fairseqs_own_roberta_is_read_safely(data, tmp_path):
    """Its checkpoint holds an argparse.Namespace."""
    done = train(data / "text/bin", "roberta", tmp_path, *PRETRAINING, "--max-update", 1)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "checkpoint_last.pt"
    assert isinstance(torch.load(path, weights_only=True)["cfg"]["model"], Namespace)
    [model], _, _ = load_model_ensemble_and_task([str(path)])
    assert isinstance(model, FairseqRobertaModel) and not isinstance(model, RobertaModel)


# Wrong requests.


def refused(data, arch, *flags):
    """The sentence with which fairseq-train's command line ends."""
    parser = options.get_training_parser()
    arguments = [data, *TINY[2:], "--arch", arch, *flags]
    with pytest.raises(SystemExit) as end, patch("sys.argv", ["fairseq-train"]):
        options.parse_args_and_arch(parser, list(map(str, arguments)))
    assert end.value.code.startswith("fairseq_lrpe: ") and "\n" not in end.value.code
    return end.value.code


def test_data_that_is_missing_or_not_binarised(data, tmp_path):
    assert "nowhere' does not exist" in refused(tmp_path / "nowhere", ARCH, *PRETRAINING)
    assert "nowhere' does not exist" in refused(tmp_path / "nowhere", ARCH, *FINETUNING)
    raw = refused(data / "text", ARCH, *PRETRAINING)
    assert "is not binarised, dict.txt, train.bin, train.idx" in raw and "fairseq-preprocess" in raw
    raw = refused(data / "sentiment", ARCH, *FINETUNING)
    assert "is not binarised, input0/dict.txt, input0/train.bin" in raw and "prepare.sh glue" in raw


def test_an_additive_encoding_in_linear_attention(data):
    message = refused(data / "text/bin", "linear_roberta", *PRETRAINING, "--encoding", "t5")
    assert "'t5'" in message and "use softmax attention" in message


def test_a_width_that_its_heads_do_not_divide(data):
    message = refused(data / "text/bin", ARCH, *PRETRAINING, "--encoder-attention-heads", 5)
    assert "32 is not divisible by 5" in message


def test_an_unknown_method():
    sentence = r"linear_roberta has no method 'nope2': choose from base, nope, rope"
    with pytest.raises(ValueError, match=sentence):
        check_arch("linear_roberta_nope2")


def assert_ends(done, message, save_dir):
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and last.startswith("fairseq_lrpe: ") and message in last
    assert "Traceback" not in done.stderr and not list(save_dir.glob("*.pt"))


def test_going_on_from_another_method(data, pretrained, tmp_path):
    flags = [*FINETUNING, "--num-classes", 2, "--finetune-from-model", pretrained / "checkpoint_last.pt"]
    done = train_here(*words(data / "sentiment/bin", "linear_roberta_tmlr_type2", tmp_path / "save", *flags))
    assert_ends(done, "another method", tmp_path / "save")


def test_going_on_from_another_vocabulary(data, pretrained, tmp_path):
    dictionary = tmp_path / "dict.txt"
    dictionary.write_text((data / "gpt2_bpe/dict.txt").read_text() + "madeupword0000 0\n")
    for column, used in (("input0", dictionary), ("label", data / "sentiment/labels.txt")):
        texts = {split: data / "sentiment" / f"{split}.{column}" for split in ("train", "valid")}
        binarise(tmp_path / "bin" / column, used, **texts)
    flags = [*FINETUNING, "--num-classes", 2, "--finetune-from-model", pretrained / "checkpoint_last.pt"]
    done = train_here(*words(tmp_path / "bin", ARCH, tmp_path / "save", *flags))
    assert_ends(
        done, "has 265 types in its vocabulary and the model 266: prepare the data with", tmp_path / "save"
    )


def test_going_on_with_fewer_positions(data, pretrained, tmp_path):
    flags = [*FINETUNING, "--num-classes", 2, "--finetune-from-model", pretrained / "checkpoint_last.pt"]
    done = train_here(*words(data / "sentiment/bin", ARCH, tmp_path / "save", *flags, "--max-positions", 20))
    assert_ends(done, "learned positions and the model 22: give the --max-positions of", tmp_path / "save")
