"""Models of Transformers with encodings, compared with their own positions and with our attention."""

import copy
import pickle
import re
import warnings
from pathlib import Path

import pytest
import torch
from support.documents import block
from support.tensors import assert_same
from support.tiny import BIN, REPOSITORY, run_command
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from fairseq_lrpe.attention import SoftmaxAttention
from fairseq_lrpe.encodings import ENCODINGS, build_encoding
from fairseq_lrpe.hf import from_pretrained, replace_positions

SIZES = {
    "vocab_size": 99,
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GROUPS = SIZES | {"num_key_value_heads": 2}
GPT2 = {"vocab_size": 99, "n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 64}
MODELS = {
    "gpt2": (GPT2LMHeadModel, GPT2Config(**GPT2)),
    "gpt_neox": (GPTNeoXForCausalLM, GPTNeoXConfig(**SIZES, rotary_pct=1.0)),
    "gpt_neox, quarter": (GPTNeoXForCausalLM, GPTNeoXConfig(**SIZES, rotary_pct=0.25)),
    "llama": (LlamaForCausalLM, LlamaConfig(**GROUPS)),
    "mistral": (MistralForCausalLM, MistralConfig(**GROUPS, sliding_window=None)),
    "mistral, window": (MistralForCausalLM, MistralConfig(**GROUPS, sliding_window=5)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**GROUPS)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**GROUPS, head_dim=24)),
}
SUPPORTED = (
    "none alibi axial_rope conv_spe cosformer deberta fire fope gaussian gcdf huang kerple lfhc liere "
    "log_scale lrpe lrpe_decay p_rope pope retnet rope rope_mixed sandwich shaw spe t5 xl"
).split()
OPTIONS = {"lrpe": {"core": "unitary", "rotation": "householder", "learn_theta": True}}


def original(name):
    """Returns a model of Transformers with large weights."""
    cls, config = MODELS[name]
    torch.manual_seed(1)
    model = cls(copy.deepcopy(config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.15)
    return model


def encoded(name, encoding="lrpe", **options):
    """Returns a model with an encoding, whose weights are perturbed."""
    torch.manual_seed(0)
    model = replace_positions(original(name), encoding, **(OPTIONS.get(encoding, {}) | options))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "encoding" in key:
                parameter.add_(0.01 * torch.randn_like(parameter))
    return model


def without_positions(model):
    """Switches off the rotations of a model by frequencies of zero, or the embeddings of GPT-2."""
    if model.config.model_type == "gpt2":
        nn.init.zeros_(model.transformer.wpe.weight)
    else:
        model.base_model.rotary_emb.inv_freq.zero_()
    return model


def padded(side, length=12):
    """Returns tokens (3, length) and their mask; the second row has five tokens of padding."""
    tokens = torch.randint(1, 99, (3, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens)
    padding = slice(0, 5) if side == "left" else slice(length - 5, length)
    tokens[1, padding] = 0
    mask[1, padding] = 0
    return tokens, mask


WITHOUT_ROPE = ("gpt2", "gpt_neox, quarter")
"""Models whose positions are not RoPE of all features."""
EQUAL = [(name, "none") for name in MODELS]
EQUAL += [(name, "rope") for name in MODELS if name not in WITHOUT_ROPE]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name, encoding", EQUAL)
def test_rope_is_the_original_and_none_is_the_original_without_positions(name, encoding, side):
    theirs, (tokens, mask) = original(name), padded(side)
    if encoding == "none":
        theirs = without_positions(theirs)
    ours = replace_positions(original(name), encoding)
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=mask).logits
        found = ours(tokens, attention_mask=mask).logits
        torch.testing.assert_close(found[mask == 1], expected[mask == 1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, rtol=1e-5, atol=1e-5)
    assert expected[mask == 1].std() > 0.1


CACHES = {
    "dynamic": ({}, {}),
    "beams": ({}, {"num_beams": 3}),
    "static": ({"cache_implementation": "static"}, {}),
}
GENERATIONS = [(name, "lrpe", cache) for name in MODELS for cache in CACHES]
GENERATIONS += [("llama", encoding, "static") for encoding in SUPPORTED]
GENERATIONS += [
    ("gpt2", "fire", "beams"),
    ("mistral, window", "t5", "static"),
    ("qwen2", "retnet", "dynamic"),
]


@pytest.mark.parametrize("name, encoding, cache", GENERATIONS)
def test_generation_equals_that_without_a_cache(name, encoding, cache):
    ours, (prompts, mask) = encoded(name, encoding), padded("left")
    cache, search = CACHES[cache]

    def generate(prompts, mask, **options):
        options |= {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        return ours.generate(prompts, attention_mask=mask, **options, **search)[:, prompts.size(1) :]

    expected = generate(prompts, mask, use_cache=False)
    assert generate(prompts, mask, **cache).equal(expected)
    assert generate(prompts[1:2, 5:], mask[1:2, 5:], **cache).equal(expected[1:2])
    assert len(expected.unique()) > 3


class Ours(nn.Module):
    """The attention of GPT-2 as a ``SoftmaxAttention`` with the same encoding."""

    def __init__(self, attention):
        super().__init__()
        self.module = SoftmaxAttention(64, 4, attention.encoding).double()
        weights = *attention.c_attn.weight.split(64, 1), attention.c_proj.weight
        biases = *attention.c_attn.bias.split(64), attention.c_proj.bias
        parts = self.module.q_proj, self.module.k_proj, self.module.v_proj, self.module.out_proj
        for part, weight, bias in zip(parts, weights, biases, strict=True):
            part.weight, part.bias = nn.Parameter(weight.T), nn.Parameter(bias)

    def forward(self, x, *_, **__):
        return self.module(x), None


@pytest.mark.parametrize("encoding", SUPPORTED)
def test_gpt2_equals_one_with_our_attention(encoding):
    model = encoded("gpt2", encoding).double()
    theirs = copy.deepcopy(model)
    for layer in theirs.transformer.h:
        layer.attn = Ours(layer.attn)
    tokens, mask = padded("left")
    row = tokens[1:2, 5:]
    with torch.no_grad():
        whole = model(tokens).logits
        assert_same(whole, theirs(tokens).logits)
        assert_same(model(tokens, attention_mask=mask).logits[1:2, 5:], theirs(row).logits)
        cache, steps = None, []
        for token in tokens.split(1, dim=1):
            out = model(token, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            steps.append(out.logits)
    assert_same(torch.cat(steps, dim=1), whole)
    model(tokens).logits.sum().backward()
    weights = [x for layer in model.transformer.h for x in layer.attn.encoding.parameters()]
    assert all(weight.grad is not None for weight in weights if weight.requires_grad)


def test_all_other_encodings_are_refused():
    for name in set(ENCODINGS) - set(SUPPORTED):
        model = original("llama")
        with pytest.raises(ValueError, match=rf"^[^\n]*{name}[^\n]*: use an encoding of [^\n]*$"):
            replace_positions(model, name)
        assert type(model) is LlamaForCausalLM and not hasattr(model.config, "encoding")
        assert not hasattr(model.model.layers[0].self_attn, "encoding")


SAVED = [("llama", encoding, torch.float32) for encoding in SUPPORTED]
SAVED += [(name, "lrpe", torch.float32) for name in ("gpt2", "gpt_neox", "qwen3")]
SAVED += [("llama", encoding, torch.bfloat16) for encoding in ("lrpe", "spe", "fope", "t5", "kerple")]
SAVED += [("gpt2", "lrpe", torch.bfloat16)]


@pytest.mark.parametrize("name, encoding, dtype", SAVED)
def test_saved_models_are_equal_to_those_loaded(name, encoding, dtype, tmp_path):
    ours = encoded(name, encoding)
    ours.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        read = from_pretrained(tmp_path, dtype=dtype)
    assert type(read) is type(ours) and read.config.encoding == ours.config.encoding
    own, theirs = ours.to(dtype).state_dict(), read.state_dict()
    assert own.keys() == theirs.keys()
    assert all(value.dtype == theirs[key].dtype and value.equal(theirs[key]) for key, value in own.items())
    tokens, mask = padded("right")
    with torch.no_grad():
        expected = ours(tokens, attention_mask=mask).logits
        # The memory of weights that are read is aligned differently, which can select another kernel.
        assert_same(
            read(tokens, attention_mask=mask).logits, expected, 1e-5 if dtype == torch.float32 else 0.02
        )
        assert_same(pickle.loads(pickle.dumps(ours))(tokens, attention_mask=mask).logits, expected, 0)


OWN_CLASS = """
import sys, torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM
for cls in (AutoModelForCausalLM, LlamaForCausalLM):
    try:
        cls.from_pretrained(sys.argv[1])
    except ValueError as error:
        print(error)
"""


@pytest.mark.slow
def test_the_own_class_refuses_a_model_with_an_encoding(tmp_path):
    encoded("llama").save_pretrained(tmp_path)
    done = run_command(BIN / "python", "-c", OWN_CLASS, tmp_path)
    assert done.stdout.count('`attn_implementation="fairseq_lrpe"` is not supported') == 2, done.stderr
    # In this process, Transformers knows the implementation.
    for cls in (AutoModelForCausalLM, LlamaForCausalLM):
        with pytest.raises(ValueError, match=r"load it with fairseq_lrpe\.hf\.from_pretrained$"):
            cls.from_pretrained(tmp_path)(torch.arange(9)[None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_encodings_of_models_in_half_precision(dtype):
    model = replace_positions(original("llama").to(dtype), "lrpe", **OPTIONS["lrpe"])
    encoding = model.model.layers[1].self_attn.encoding
    assert encoding.v.dtype == dtype and encoding.theta.dtype == torch.float32
    logits = model(torch.arange(20)[None]).logits
    assert logits.dtype == dtype and logits.isfinite().all()
    logits.sum().backward()
    assert encoding.theta.grad.abs().max() > 0


def packed(model):
    return model(torch.ones(1, 4).long(), position_ids=torch.tensor([[0, 1, 0, 1]]), use_cache=False)


@pytest.mark.parametrize("call, message", [
    (lambda: replace_positions(BertModel(BertConfig(num_hidden_layers=1)), "lrpe"), "bert is not one of"),
    (lambda: replace_positions(encoded("llama"), "alibi"), "were already replaced by 'lrpe': load the orig"),
    (lambda: replace_positions(original("llama"), "lrpee"), r"'lrpee' \(did you mean 'lrpe'\?\)"),
    (lambda: replace_positions(original("llama"), "rope", core="unitary"), "has no option 'core'"),
    (lambda: replace_positions(original("llama"), "rope", axes=2), "the model determines axes: omit it"),
    (lambda: replace_positions(original("llama"), "rope", base=torch.ones(1)), "options must be numbers"),
    (lambda: replace_positions(original("llama"), "lrpe", attention="linear"), "not of 'linear': omit"),
    (lambda: replace_positions(original("mistral, window"), "fire"), "fire depends on all preceding tokens"),
    (lambda: encoded("llama").set_attn_implementation("sdpa"), "the model has an encoding, which"),
    (lambda: encoded("llama")(torch.ones(1, 3).long(), position_ids=torch.tensor([[0, 2, 3]])), "with gaps"),
    (
        lambda: packed(encoded("llama", "fire")),
        "fire depends on the number of preceding tokens",
    ),
    (lambda: encoded("gpt2")(torch.ones(1, 3).long(), head_mask=torch.zeros(2, 4)), "head_mask: omit it"),
])  # fmt: skip
def test_wrong_calls(call, message):
    with pytest.raises(ValueError, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["scale_attn_by_inverse_layer_idx", "add_cross_attention"])
def test_options_of_gpt2_that_are_refused(name):
    model = GPT2LMHeadModel(GPT2Config(**GPT2, **{name: True}))
    with pytest.raises(ValueError, match=f"^{name}=True is not supported: use {name}=False$"):
        replace_positions(model, "lrpe")
    with pytest.raises(TypeError, match="must be a model of Transformers, not Linear"):
        replace_positions(nn.Linear(2, 2), "lrpe")


def test_folders_that_are_refused(tmp_path):
    original("llama").save_pretrained(tmp_path / "own")
    with pytest.raises(ValueError, match="has no model that replace_positions has changed, but LlamaForC"):
        from_pretrained(tmp_path / "own")
    model = encoded("llama", learn_theta=True)
    weights = {key: value for key, value in model.state_dict().items() if not key.endswith("theta")}
    model.save_pretrained(tmp_path / "less", state_dict=weights)
    with pytest.raises(
        ValueError, match=r"lacks model\.layers\.0\.self_attn\.encoding\.theta and 1 other weights:"
    ):
        from_pretrained(tmp_path / "less")


@pytest.mark.parametrize("name, message", [
    ("nothing", "the folder {path} does not exist: "),
    ("empty", "{path} is not a folder with a config.json: "),
    ("file.json", "{path} is not a folder with a config.json: "),
])  # fmt: skip
def test_paths_without_a_model_are_refused(name, message, tmp_path, monkeypatch):
    """As absolute and as relative paths, and without asking the hub."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / name, str(tmp_path / name), Path(name), name, f"./{name}"):
        expected = f"{message.format(path=path)}pass a folder that save_pretrained has written, or the name"
        with pytest.raises(FileNotFoundError) as raised:
            from_pretrained(path)
        assert str(raised.value).removeprefix("./").startswith(expected.removeprefix("./"))
        assert "\n" not in str(raised.value)


def test_models_of_the_hub_and_of_subfolders(tmp_path):
    """The model is in the cache of the hub."""
    ours = encoded("llama")
    stored = tmp_path / "models--someone--llama"
    ours.save_pretrained(stored / "snapshots/0123/final")
    (stored / "refs").mkdir()
    (stored / "refs/main").write_text("0123")
    for name in ("someone/llama", str(stored / "snapshots/0123")):
        read = from_pretrained(name, subfolder="final", cache_dir=tmp_path, local_files_only=True)
        assert read.state_dict().keys() == ours.state_dict().keys()
    with pytest.raises(FileNotFoundError, match="0123/none is not a folder with a config"):
        from_pretrained(stored / "snapshots/0123", subfolder="none")
    with pytest.raises(OSError, match="in the cached files"):
        from_pretrained("someone/other", cache_dir=tmp_path, local_files_only=True)


def test_attention_masks_of_gpt2():
    model, tokens = encoded("gpt2").double(), torch.randint(99, (2, 8))
    biased = encoded("gpt2", "alibi").double()
    visible = torch.ones(8, 8, dtype=torch.bool).tril()
    window = (visible & ~visible.tril(-3)).expand(2, 1, 8, 8)
    for ours in (model, biased):
        masks = window, torch.where(window, 0.0, -1e9).double()
        boolean, added = (ours(tokens, attention_mask=mask).logits for mask in masks)
        assert_same(boolean, added)
        assert not torch.allclose(boolean, ours(tokens).logits)


def test_rope_with_the_base_of_the_model():
    cls, config = MODELS["llama"]
    config = copy.deepcopy(config)
    config.rope_theta = 5e5
    theirs, tokens = cls(config).eval(), torch.arange(40)[None]
    ours = replace_positions(copy.deepcopy(theirs), "rope", base=config.rope_theta)
    torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, rtol=1e-5, atol=1e-5)


def test_nope_is_another_name_of_none():
    assert replace_positions(original("llama"), "nope").config.encoding["name"] == "none"


def test_table_of_the_documentation():
    rows = [line for line in (REPOSITORY / "docs/hugging_face.md").read_text().splitlines() if " | `" in line]
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(SUPPORTED)


def test_longer_models_have_longer_positions():
    model = replace_positions(original("llama"), "cosformer")
    expected = build_encoding("cosformer", num_heads=4, head_dim=16, causal=True, max_positions=64)
    assert model.model.layers[0].self_attn.encoding.max_positions == expected.max_positions
    with pytest.raises(ValueError, match="64"):
        model(torch.ones(1, 65).long())
    longer = replace_positions(original("llama"), "cosformer", max_positions=99)
    assert longer(torch.ones(1, 65).long()).logits.isfinite().all()


def test_example_of_the_documentation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(block("python", "import from_pretrained, replace_positions"), names)
    assert names["with_cache"].equal(names["without_cache"])
    assert len(names["losses"]) > 2 and names["losses"][-1] < names["losses"][0]
