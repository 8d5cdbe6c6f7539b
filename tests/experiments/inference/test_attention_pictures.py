"""Pictures of attention weights, and the weights that they show."""

import pytest
import torch
from PIL import Image
from support.tiny import run_here, succeeded

import fairseq_lrpe
from fairseq_lrpe.attention import SoftmaxAttention, attention_weights
from fairseq_lrpe.cli import main as lrpe
from fairseq_lrpe.encodings import Context
from fairseq_lrpe.experiments.inference.attention import weights_of_layers
from fairseq_lrpe.experiments.inference.attention_pictures import picture, token_labels

TEXT = "w1 w3 $x$\nw9 w28"


def attention(run, out, text=TEXT):
    return run_here(lrpe, "attention", run, "--text", text, "--out", out, "--cpu")


def test_pictures(checkpoint, tmp_path):
    for out in (tmp_path / "new/all.png", tmp_path / "new/all.svg", tmp_path / "folder"):
        assert succeeded(attention(checkpoint, out)).stdout == f"written: {out}\n"
    assert sorted(x.name for x in (tmp_path / "folder").iterdir()) == ["layer-1.png", "layer-2.png"]
    sizes = [Image.open(x).size for x in (tmp_path / "folder/layer-1.png", tmp_path / "new/all.png")]
    assert sizes[0][0] == sizes[1][0] and sizes[1][1] > 1.8 * sizes[0][1]
    assert (tmp_path / "new/all.svg").read_text().startswith("<?xml")
    assert not list(tmp_path.rglob("*.part"))


def test_panels_show_the_weights(checkpoint):
    model = fairseq_lrpe.load_model(checkpoint, cpu=True)
    tokens = model.encode(TEXT)
    weights = weights_of_layers(model.model, tokens[None])
    assert len(weights) == 2 and weights[0].shape == (1, 4, 7, 7)
    assert not any("attend" in vars(module) for module in model.model.modules())
    torch.testing.assert_close(weights[0].sum(-1), torch.ones(1, 4, 7))
    labels = token_labels(model, tokens)
    assert labels == ["</s>", "w1", "w3", "<unk>", "</s>", "w9", "w28"]
    figure = picture({1: weights[0][0], 2: weights[1][0]}, labels)
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in panels[3:5]] == ["layer 1, head 4", "layer 2, head 1"]
    shown = torch.stack([torch.as_tensor(axes.images[0].get_array().data) for axes in panels])
    assert shown.equal(torch.cat([x[0] for x in weights]))
    assert [x.get_text() for x in panels[0].get_xticklabels()] == labels


def test_negative_weights_and_long_texts_are_drawn():
    weights = torch.randn(5, 60, 60)
    figure = picture({1: weights}, ["x"] * 60)
    panels = [axes for axes in figure.axes if axes.images]
    low, high = panels[0].images[0].get_clim()
    assert len(panels) == 5 and low == -high and high == pytest.approx(weights.abs().max().item())
    assert panels[0].get_xticklabels()[0].get_text() != "x"


@pytest.mark.parametrize("name", ["rope", "t5", "fox", "alibi"])
def test_weights_of_modules(name):
    """Their sums of values are the outputs of attention."""
    module = SoftmaxAttention(16, 2, name, causal=True).eval()
    module.window = 3 if name == "t5" else 0
    x = torch.randn(2, 9, 16)
    with torch.no_grad():
        q, k, v = module.project(x, [x], None)
        context = Context(features=module.encoding.input_features(x)) if name == "fox" else Context()
        weights = attention_weights(module, q, k, context)
        torch.testing.assert_close(module.out_proj(module.merge_heads(weights @ v)), module(x))


def test_weights_that_are_refused():
    x = torch.randn(1, 4, 16)
    module = SoftmaxAttention(16, 2, "rope", causal=False)
    with pytest.raises(ValueError, match=r"^attention_weights are those of causal attention: pass a module"):
        attention_weights(module, *module.project(x, [x], None)[:2])
    module = SoftmaxAttention(16, 2, "rope", causal=True)
    context = Context(key_padding_mask=torch.tensor([[True, False, False, False]]))
    with pytest.raises(ValueError, match=r"do not support padding before the tokens: omit it$"):
        attention_weights(module, *module.project(x, [x], None)[:2], context)


def test_wrong_calls(checkpoint, train, tmp_path):
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "empty").mkdir()
    succeeded(train("transformer_lm", tmp_path / "own", "--max-update", 1, "--disable-validation"))
    calls = {
        (tmp_path / "nothing", "x.png", TEXT): "nothing does not exist",
        (
            tmp_path / "own/checkpoint_last.pt",
            "x.png",
            TEXT,
        ): "is fairseq's own model: pass a model of this plu",
        (checkpoint, "folder.png", TEXT): "folder.png is a folder: choose a file",
        (
            checkpoint,
            "empty",
            TEXT,
        ): "empty exists: choose a new folder, or a file that ends in .png, .pdf, .svg",
        (checkpoint, "x.jpg", TEXT): "x.jpg must be a folder, or a file that ends in .png, .pdf, .svg",
        (checkpoint, "x.png", "w1 " * 600): "the text has 601 tokens, more than 512: shorten it",
    }
    before = sorted(tmp_path.rglob("*"))
    for (run, out, text), message in calls.items():
        done = attention(run, tmp_path / out, text)
        [line] = done.stderr.strip().splitlines()
        assert done.returncode == 1 and message in line and line.startswith("attention: ")
        assert sorted(tmp_path.rglob("*")) == before
    assert "is not a writable folder" in attention(checkpoint, "/dev/null/x/y.png").stderr
