"""The classes of docs/own_models.md that give models of Hugging Face an encoding, compared with their own."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from support.documents import block
from support.tensors import assert_same, randn
from torch import nn
from transformers import (
    GPT2Config,
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
from fairseq_lrpe.encodings import Context
from fairseq_lrpe.ops.position_index import PositionIndex

LRPE = {"name": "lrpe", "learn_theta": True}
SIZES = {
    "vocab_size": 99,
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES)),
    "mistral": (MistralForCausalLM, MistralConfig(**SIZES, sliding_window=None)),
    "mistral, window": (MistralForCausalLM, MistralConfig(**SIZES, sliding_window=5)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=24)),
}


@pytest.fixture(scope="module")
def names():
    found = {}
    exec(block("python", "AttentionInterface.register"), found)
    return found


@pytest.fixture(scope="module")
def encoded(names):
    """Returns a function that builds a model with an encoding, whose weights are large."""

    def build(model, encoding=LRPE, weights=None):
        if model == "gpt2":
            own, config = names["EncodedGPT2"], GPT2Config(vocab_size=99, n_layer=2, n_embd=64, n_head=4)
        else:
            base, config = MODELS[model]
            own = type("Own", (names["Encoded"], base), {})
        config = copy.deepcopy(config)
        config.encoding = encoding
        torch.manual_seed(0)
        built = own(config)
        if weights is None:
            with torch.no_grad():
                for name, parameter in built.named_parameters():
                    if "encoding" not in name and parameter.dim() > 1:
                        parameter.normal_(std=0.3)
        else:
            missing, unexpected = built.load_state_dict(weights, strict=False)
            assert not unexpected and all("encoding" in name for name in missing)
        return built.eval()

    return build


def original(model):
    """Returns a model of Transformers with large weights."""
    base, config = MODELS[model]
    torch.manual_seed(1)
    built = base(copy.deepcopy(config)).eval()
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.15)
    return built


def without_rotation(model):
    """Switches off the rotations of a model by frequencies of zero."""
    model.model.rotary_emb.inv_freq.zero_()
    return model


def padded(side, length=12):
    """Returns tokens (3, length) and their mask; the second row has five tokens of padding."""
    tokens = torch.randint(1, 99, (3, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens)
    padding = slice(0, 5) if side == "left" else slice(length - 5, length)
    tokens[1, padding] = 0
    mask[1, padding] = 0
    return tokens, mask


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("encoding", ["rope", "none"])
@pytest.mark.parametrize("model", MODELS)
def test_rope_is_the_original_and_none_is_the_original_without_rotations(model, encoding, side, encoded):
    theirs, (tokens, mask) = original(model), padded(side)
    if encoding == "none":
        theirs = without_rotation(theirs)
    ours = encoded(model, {"name": encoding}, theirs.state_dict())
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=mask).logits
        found = ours(tokens, attention_mask=mask).logits
        torch.testing.assert_close(found[mask == 1], expected[mask == 1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, rtol=1e-5, atol=1e-5)
    assert expected[mask == 1].std() > 0.1


@pytest.mark.parametrize("model", ["gpt2", "llama", "mistral, window"])
@pytest.mark.parametrize("cache, search", [
    ({}, {}), ({}, {"num_beams": 3}), ({"cache_implementation": "static"}, {}),
], ids=["dynamic", "beams", "static"])  # fmt: skip
def test_generation_equals_that_without_a_cache(model, cache, search, encoded):
    ours, (prompts, mask) = encoded(model), padded("left")

    def generate(prompts, mask, **options):
        options |= {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        return ours.generate(prompts, attention_mask=mask, **options, **search)[:, prompts.size(1) :]

    expected = generate(prompts, mask, use_cache=False)
    assert generate(prompts, mask, **cache).equal(expected)
    assert generate(prompts[1:2, 5:], mask[1:2, 5:], **cache).equal(expected[1:2])
    assert len(expected.unique()) > 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["rope", "lrpe", "fope", "spe", "cosformer"])
@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_saved_models_are_equal_to_those_loaded(model, name, dtype, names, encoded, tmp_path):
    options = {"core": "unitary", "rotation": "householder", "learn_theta": True} if name == "lrpe" else {}
    ours = encoded(model, {"name": name, **options})
    with torch.no_grad():
        for key, parameter in ours.named_parameters():
            if "encoding" in key:
                parameter.add_(0.01 * torch.randn_like(parameter))
    ours.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        read = type(ours).from_pretrained(tmp_path, dtype=dtype).eval()
    assert read.config._attn_implementation == "encoded" and read.config.encoding == ours.config.encoding
    own, theirs = ours.to(dtype).state_dict(), read.state_dict()
    assert own.keys() == theirs.keys()
    assert all(value.dtype == theirs[key].dtype and value.equal(theirs[key]) for key, value in own.items())
    tokens, mask = padded("right")
    with torch.no_grad():
        torch.manual_seed(0)
        expected = ours(tokens, attention_mask=mask).logits
        torch.manual_seed(0)
        assert read(tokens, attention_mask=mask).logits.equal(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_encodings_that_a_checkpoint_lacks_are_initialized(dtype, names, tmp_path):
    original("llama").save_pretrained(tmp_path)
    config = LlamaConfig.from_pretrained(tmp_path)
    config.encoding = LRPE | {"core": "unitary", "rotation": "householder"}
    model = names["EncodedLlama"].from_pretrained(tmp_path, config=config, dtype=dtype)
    fresh = names["EncodedLlama"](config).model.layers[1].self_attn.encoding
    encoding = model.model.layers[1].self_attn.encoding
    theta = encoding.theta
    assert encoding.v.dtype == dtype and abs(encoding.v.norm() - 1) < 0.01
    assert theta.dtype == torch.float32 and theta.equal(fresh.theta)
    logits = model(torch.arange(20)[None]).logits
    assert logits.isfinite().all()
    logits.sum().backward()
    assert theta.grad.abs().max() > 0


def test_models_and_encodings_that_are_refused(names, encoded):
    refused = type("Refused", (names["Encoded"], GPTNeoXForCausalLM), {})
    with pytest.raises(ValueError, match=r"^gpt_neox is not one of gpt2, llama, mistral, qwen2, qwen3$"):
        refused(GPTNeoXConfig(**{key: value for key, value in SIZES.items() if key[:7] != "num_key"}))
    for name in ("alibi", "t5", "retnet"):
        with pytest.raises(ValueError, match=f"^{name} changes the scores: use an encoding of q and k"):
            encoded("llama", {"name": name})
    for name in ("rope_values", "fox"):
        with pytest.raises(ValueError, match=name):
            encoded("llama", {"name": name})(torch.arange(20)[None])


def test_example_of_saving(names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = dict(names)
    exec(block("python", "from transformers import GPT2Config, LlamaConfig"), own)
    assert own["gpt2"](torch.arange(20)[None]).logits.shape == (1, 20, 50257)
    assert own["llama"].model.layers[1].self_attn.encoding.theta.requires_grad


def test_gpt2_equals_one_with_our_attention(encoded):
    model = encoded("gpt2").double()
    theirs = copy.deepcopy(model)

    class Ours(nn.Module):
        def __init__(self, attention):
            super().__init__()
            self.module = SoftmaxAttention(64, 4, attention.encoding).double()
            weights, biases = attention.c_attn.weight.split(64, 1), attention.c_attn.bias.split(64)
            parts = self.module.q_proj, self.module.k_proj, self.module.v_proj, self.module.out_proj
            weights, biases = (*weights, attention.c_proj.weight), (*biases, attention.c_proj.bias)
            for part, weight, bias in zip(parts, weights, biases, strict=True):
                part.weight, part.bias = nn.Parameter(weight.T), nn.Parameter(bias)

        def forward(self, x, *_, **__):
            return self.module(x), None

    for layer in theirs.transformer.h:
        layer.attn = Ours(layer.attn)
    tokens = torch.randint(99, (2, 20))
    with torch.no_grad():
        whole = model(tokens).logits
        assert_same(whole, theirs(tokens).logits)
        cache, steps = None, []
        for token in tokens.split(1, dim=1):
            out = model(token, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            steps.append(out.logits)
    assert_same(torch.cat(steps, dim=1), whole)
    model(tokens).logits.sum().backward()
    assert all(layer.attn.encoding.theta.grad.abs().max() > 0 for layer in model.transformer.h)


def test_attention_masks_of_gpt2(names, encoded):
    model, tokens = encoded("gpt2").double(), torch.randint(99, (2, 8))
    visible = torch.ones(8, 8, dtype=torch.bool).tril()
    window = (visible & ~visible.tril(-3)).expand(2, 1, 8, 8)
    masks = window, torch.where(window, 0.0, -1e9).double()
    boolean, added = (model(tokens, attention_mask=mask).logits for mask in masks)
    assert_same(boolean, added)
    assert not torch.allclose(boolean, model(tokens).logits)
    index = PositionIndex(torch.arange(8), torch.arange(8), 7)
    attention, x = model.transformer.h[0].attn, randn(2, 4, 8, 16)
    o, _ = names["encoded_attention"](attention, x, x, x, window)
    q, k = attention.encoding(x, x, Context(index, index))
    expected = F.scaled_dot_product_attention(q, k, x, attn_mask=window, scale=attention.encoding.scale)
    assert_same(o, expected.transpose(1, 2))
