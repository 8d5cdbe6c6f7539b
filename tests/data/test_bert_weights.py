"""Initialization from BERT: our encoder equals transformers' BertModel, and invalid input is an error."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from support.tensors import perturbed
from support.tiny_models import build_model, dictionary_of, task_of
from transformers import BertConfig, BertModel

from fairseq_lrpe.data import bert_weights, word_pieces

TYPES = ["[PAD]", "[unused1]", "a", "[UNK]", "b", "[CLS]", "[SEP]", "[MASK]", "##c", *map(str, range(40))]
SIZES = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 36}
FLAGS = {
    "encoder_embed_dim": 24,
    "encoder_layers": 3,
    "encoder_attention_heads": 4,
    "encoder_ffn_embed_dim": 36,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "decoder_ffn_embed_dim": 3072,
    "max_source_positions": 16,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a random BERT, as transformers saves one, and its vocabulary."""
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    model = BertModel(BertConfig(vocab_size=len(TYPES), max_position_embeddings=16, **SIZES))
    perturbed(model).save_pretrained(folder)
    (folder / "vocab.txt").write_text("".join(f"{name}\n" for name in TYPES))
    return folder


def build(folder, **flags):
    """Returns a question generator with BERT's dictionary, its flags and the dictionary."""
    dictionary = dictionary_of(4)
    for name in TYPES:
        if name not in word_pieces.SPECIALS:
            dictionary.add_symbol(name)
    cfg = SimpleNamespace(**{"activation_fn": "gelu", **FLAGS, **flags, "encoder": str(folder)})
    model = build_model("softmax_question_generator_gcdf", task_of(dictionary), **vars(cfg))
    return model.eval(), cfg, dictionary


def sources():
    """Returns two padded sources <s> answer </s> context </s>: BERT's ids, ours, and the segments."""
    rows = ["[CLS] a b [SEP] 3 ##c 4 [UNK] 5 6 7 8 [SEP]", "[CLS] 11 [SEP] 12 13 14 [SEP]"]
    rows = [row.split() for row in rows]
    rows = [row + ["[PAD]"] * (len(rows[0]) - len(row)) for row in rows]
    ids = torch.tensor([[TYPES.index(x) for x in row] for row in rows])
    symbols = [*word_pieces.SPECIALS, *(x for x in TYPES if x not in word_pieces.SPECIALS)]
    ours = torch.tensor([[symbols.index(x) for x in row] for row in rows])
    segments = torch.zeros_like(ids)
    for row, tokens in enumerate(rows):
        segments[row, tokens.index("[SEP]") + 1 :] = 1
    return ids, ours, segments


@pytest.mark.parametrize(
    "dtype, activation, tolerance",
    # fairseq computes gelu in float32 always
    [(torch.double, "relu", 1e-10), (torch.double, "gelu", 1e-7), (torch.float, "gelu", 1e-5)],
)
def test_the_encoder_equals_bert(dtype, activation, tolerance, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "bert")
    config = json.loads((folder / "config.json").read_text()) | {"hidden_act": activation}
    (tmp_path / "bert/config.json").write_text(json.dumps(config))
    model, cfg, dictionary = build(tmp_path / "bert", activation_fn=activation)
    bert_weights.initialize(model.encoder, cfg, folder / "vocab.txt")
    theirs = BertModel.from_pretrained(tmp_path / "bert", attn_implementation="eager").to(dtype).eval()
    ids, ours, segments = sources()
    real = ours.ne(dictionary.pad())
    expected = theirs(ids, attention_mask=real.long(), token_type_ids=segments).last_hidden_state
    found = model.to(dtype).encoder(ours, real.sum(1))["encoder_out"][0].transpose(0, 1)
    assert (found[real] - expected[real]).abs().max() <= tolerance


def test_weights_in_half_precision_are_copied_exactly(folder, tmp_path, monkeypatch):
    """With arguments of from_pretrained that all versions of transformers before 5 accept."""
    shutil.copytree(folder, tmp_path / "bert")
    half = BertModel.from_pretrained(folder).half()
    half.save_pretrained(tmp_path / "bert")
    works, given = BertModel.from_pretrained, set()
    monkeypatch.setattr(BertModel, "from_pretrained", lambda name, **x: given.update(x) or works(name, **x))
    model, cfg, _ = build(tmp_path / "bert")
    bert_weights.initialize(model.encoder, cfg, folder / "vocab.txt")
    assert given == {"add_pooling_layer", "output_loading_info"}
    found, expected = model.encoder.layers[2].fc1.weight, half.encoder.layer[2].intermediate.dense.weight
    assert found.dtype == torch.float and torch.equal(found, expected.float())


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"activation_fn": "relu"}, "has other sizes than the flags: pass --activation-fn gelu"),
        ({"max_source_positions": 17}, "than the flags: pass --max-source-positions 16"),
    ],
)
def test_other_sizes_are_errors(flags, message, folder):
    model, cfg, _ = build(folder, **flags)
    with pytest.raises(ValueError, match=message):
        bert_weights.initialize(model.encoder, cfg, folder / "vocab.txt")


def test_another_vocabulary_is_an_error(folder, tmp_path):
    model, cfg, _ = build(folder)
    (tmp_path / "vocab.txt").write_text("".join(f"{name}\n" for name in TYPES[:-1]))
    with pytest.raises(ValueError, match=r"does not have the vocabulary .*vocab.txt: prepare"):
        bert_weights.initialize(model.encoder, cfg, tmp_path / "vocab.txt")


def test_missing_weights_are_errors(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "bert")
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 4}
    (tmp_path / "bert/config.json").write_text(json.dumps(config))
    model, cfg, _ = build(tmp_path / "bert", encoder_layers=4)
    with pytest.raises(ValueError, match=r"lacks 16 of BERT's weights, such as encoder\.layer\.3\.attention"):
        bert_weights.initialize(model.encoder, cfg, folder / "vocab.txt")
