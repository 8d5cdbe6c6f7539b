"""Classifiers: padding changes nothing, parameters are as counted, poolings and norms are their formulas."""

from math import sqrt
from types import SimpleNamespace

import pytest
import torch
from exact import assert_same, random
from fairseq.data import Dictionary
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from omegaconf import OmegaConf

import fairseq_lrpe.models  # noqa: F401
from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.models.classifier import TokenBatchNorm

PAD, EOS = 1, 2
SMALL = {
    "encoder_layers": 2,
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 32,
    "encoder_attention_heads": 2,
}
GREY = {"mean": 122.6, "std": 61.0}


def build(arch, types=24, labels=3, pooling="mean", pairs=None, pixels=None, longest=64, **flags):
    """A model in float64, and in evaluation, of a dictionary with so many types in all."""
    dictionary = Dictionary()
    for i in range(types - 4):
        dictionary.add_symbol(f"w{i}")
    about = {"pixels": pixels} if pixels else {}
    task = SimpleNamespace(
        source_dictionary=dictionary,
        about=about,
        labels=list(range(labels)),
        joined=pairs == "joined",
        apart=pairs == "apart",
        max_positions=lambda: longest,
        cfg=SimpleNamespace(pooling=pooling),
    )
    torch.manual_seed(0)
    args = OmegaConf.structured(MODEL_DATACLASS_REGISTRY[arch](**{**SMALL, **flags}))
    args.encoder_input_dim = flags.get("encoder_input_dim", args.encoder_embed_dim)
    return MODEL_REGISTRY[arch].build_model(args, task).double().eval()


def batch(lengths, types=24, seed=0):
    """Random tokens of these lengths, padded at the right."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, types, (len(lengths), max(lengths)), generator=draw)
    return tokens.masked_fill(torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None], PAD)


def moved(norm):
    """A norm with statistics and parameters that are none of their starts."""
    for i, tensor in enumerate((norm.running_mean, norm.running_var, norm.weight.data, norm.bias.data)):
        tensor.copy_(0.5 + torch.rand(tensor.shape, generator=torch.Generator().manual_seed(i)))


ARCHES = [
    f"{attention}_classifier_{name}"
    for name in (
        "base",
        "rope",
        "spe",
        "per",
        "tmlr_type1",
        "tmlr_type3",
        "t5",
        "xl",
        "shaw",
        "lfhc",
        "roper",
    )
    for attention in METHODS[name].attentions()
]


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("arch", ARCHES)
@torch.no_grad()
def test_padding_changes_no_prediction(arch, norm):
    for pooling in ("mean", "max", "first"):
        model = build(arch, pooling=pooling, encoder_norm=norm)
        for module in model.modules():
            if isinstance(module, TokenBatchNorm):
                moved(module)
        tokens = batch([5, 9, 2])
        expected = torch.cat([model(row[row != PAD][None]) for row in tokens])
        assert_same(model(tokens), expected)
        more = torch.cat([tokens, torch.full((3, 4), PAD)], dim=1)
        assert_same(model(more), expected)


@pytest.mark.parametrize("arch", ["linear_classifier_tmlr_type1", "softmax_classifier_xl"])
def test_padding_changes_no_training_step(arch):
    """Neither outputs nor gradients nor BatchNorm's statistics."""
    found = []
    for padding in (0, 5):
        model = build(arch).train()
        tokens = torch.cat([batch([5, 9, 2]), torch.full((3, padding), PAD)], dim=1)
        out = model(tokens)
        (out * random(3, 3)).sum().backward()
        statistics = [module.running_var for module in model.modules() if isinstance(module, TokenBatchNorm)]
        assert len(statistics) == 5 and all((x != 1).any() for x in statistics)
        found.append((out.detach(), [p.grad for p in model.parameters() if p.grad is not None], statistics))
    assert_same(found[1], found[0])


def test_batch_norm_is_its_formula():
    """(x − mean) / sqrt(var + eps) over real tokens; running statistics as torch's, var with N − 1."""
    norm, x = TokenBatchNorm(4).double(), random(7, 3, 4).requires_grad_()
    norm.weight.data, norm.bias.data = random(4, seed=1), random(4, seed=2)
    norm.padding = torch.arange(7) >= torch.tensor([7, 4, 1])[:, None]
    out = norm(x)
    real = torch.stack([x[i, b] for i in range(7) for b in range(3) if not norm.padding[b, i]])
    mean, var = real.mean(0), real.var(0, unbiased=False)
    expected = (x - mean) / (var + 1e-5).sqrt() * norm.weight + norm.bias
    expected = expected.masked_fill(norm.padding.T[..., None], 0)
    assert_same(out, expected)
    inputs, outer = (x, norm.weight, norm.bias), random(7, 3, 4, seed=3)
    gradients = [torch.autograd.grad(y, inputs, outer, retain_graph=True) for y in (out, expected)]
    for found, wanted in zip(*gradients, strict=True):
        assert_same(found, wanted)
    mean, var = mean.detach(), var.detach()
    assert_same(norm.running_mean, 0.1 * mean)
    assert_same(norm.running_var, 0.9 + 0.1 * real.detach().var(0))
    norm.eval()
    expected = (x - norm.running_mean) / (norm.running_var + 1e-5).sqrt() * norm.weight + norm.bias
    assert_same(norm(x), expected.masked_fill(norm.padding.T[..., None], 0))


def test_batch_norm_of_one_token_takes_the_running_statistics():
    norm, x = TokenBatchNorm(4).double(), random(1, 1, 4)
    moved(norm)
    before = norm.running_mean.clone()
    assert_same(norm(x), norm.eval()(x))
    assert torch.equal(norm.running_mean, before)


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
def test_batch_norm_keeps_its_statistics_in_float32(dtype):
    norm, exact = TokenBatchNorm(4).to(dtype), TokenBatchNorm(4)
    x = 1000 + 10 * torch.randn(64, 2, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    for _ in range(50):
        out, expected = norm(x), exact(x.float())
    assert norm.running_mean.dtype == torch.float and out.dtype == dtype
    assert_same(norm.running_mean, exact.running_mean, 1e-6)
    assert_same(out.float(), expected, 1e-2)


@torch.no_grad()
def test_poolings_are_their_formulas():
    tokens, lengths = batch([5, 9, 2]), [5, 9, 2]
    for pooling, function in (
        ("mean", lambda x: x.mean(0)),
        ("max", lambda x: x.amax(0)),
        ("first", lambda x: x[0]),
    ):
        model = build("linear_classifier_rope", pooling=pooling)
        x = model.encoder(tokens)["encoder_out"][0]
        vectors = torch.stack([function(x[:n, b]) for b, n in enumerate(lengths)])
        assert_same(model(tokens), vectors @ model.head.weight.T + model.head.bias)


@torch.no_grad()
def test_a_pair_that_is_apart():
    """Linear(GELU(Linear([a, b, a − b, a ∗ b]))) of the vectors that each text has alone."""
    model = build("softmax_classifier_rope", pairs="apart")
    one, two = batch([5, 9, 2]), batch([3, 3, 7], seed=1)
    a, b = model.vector(one), model.vector(two)
    hidden = torch.cat([a, b, a - b, a * b], 1) @ model.head[0].weight.T + model.head[0].bias
    hidden = hidden * (1 + torch.erf(hidden / sqrt(2))) / 2
    expected = hidden @ model.head[2].weight.T + model.head[2].bias
    assert_same(model(one, second_tokens=two), expected)
    assert (model(two, second_tokens=one) - expected).abs().max() > 1e-3


@torch.no_grad()
def test_halves_of_a_pair_have_embeddings():
    inputs = build("softmax_classifier_rope", pairs="joined").encoder.embed_tokens
    tokens = torch.tensor([[0, 5, 6, EOS, 7, EOS, PAD], [0, EOS, 5, 5, 5, 5, EOS]])
    halves = torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 1, 1]])
    expected = inputs.embedding(tokens)[:, :6] + inputs.segments.weight[halves]
    assert_same(inputs(tokens)[:, :6], expected)


@torch.no_grad()
def test_pixels_are_standardized_numbers():
    inputs = build("linear_classifier_rope", types=260, pixels=GREY).encoder.embed_tokens
    values = torch.tensor([[0, 122, 255]])
    numbers = (values.double()[..., None] - 122.6) / 61
    assert_same(inputs(values + 4), numbers * inputs.project.weight[:, 0] + inputs.project.bias)


@torch.no_grad()
def test_words_are_projected():
    inputs = build("linear_classifier_rope", encoder_input_dim=7).encoder.embed_tokens
    tokens = batch([4, 3])
    expected = inputs.embedding.weight[tokens] @ inputs.project.weight.T + inputs.project.bias
    assert inputs.embedding.weight.shape == (24, 7) and expected.shape == (2, 4, 16)
    assert_same(inputs(tokens), expected)


LRA = {  # the sizes and parameters of specs: (width, layers, heads, vocabulary, labels, how, Base, Type1)
    "text": (128, 4, 8, 135, 2, {}, 547_714, 548_802),
    "listops": (128, 4, 8, 18, 10, {}, 533_770, None),
    "retrieval": (64, 4, 8, 98, 2, {"pairs": "apart"}, 156_866, None),
    "pathfinder": (32, 4, 8, 260, 2, {"pixels": {"mean": 127.5, "std": 127.5}}, 34_370, None),
    "image": (100, 12, 10, 260, 10, {"pixels": GREY}, 974_610, None),
}


@pytest.mark.parametrize("task", LRA)
def test_parameters_of_long_range_arena(task):
    """With the usual vocabularies; a layer of Type1 has d/heads angles and a LayerNorm more."""
    width, layers, heads, types, labels, how, base, type1 = LRA[task]
    sizes = {"encoder_layers": layers, "encoder_embed_dim": width, "encoder_ffn_embed_dim": 2 * width}
    sizes |= {"encoder_attention_heads": heads}
    counts = [
        sum(p.numel() for p in build(f"linear_classifier_{name}", types, labels, **how, **sizes).parameters())
        for name in ("base", "tmlr_type1")
    ]
    assert counts == [base, type1 or base + layers * (width // heads + 2 * width)]


def glove(path, words=("w0", "w1", "a b"), width=16, line=None):
    numbers = {word: [round(i + 0.5 * j, 3) for j in range(width)] for i, word in enumerate(words)}
    lines = [" ".join([word, *map(str, vector)]) for word, vector in numbers.items()]
    path.write_text("\n".join([*lines, *([line] if line else [])]) + "\n")
    return numbers


def test_vectors_are_copied(tmp_path):
    model = build("linear_classifier_rope")
    dictionary = Dictionary()
    for word in ("w0", "a b", *(f"w{i}" for i in range(2, 20))):
        dictionary.add_symbol(word)
    embedding = model.encoder.embed_tokens.embedding
    before = embedding.weight.clone()
    numbers = glove(tmp_path / "v.txt")
    model.start_from_vectors(dictionary, tmp_path / "v.txt")
    for word in ("w0", "a b"):
        assert embedding.weight[dictionary.index(word)].tolist() == numbers[word]
    others = [i for i in range(24) if i not in (dictionary.index("w0"), dictionary.index("a b"))]
    assert torch.equal(embedding.weight[others], before[others])


@pytest.mark.parametrize(
    "how, said",
    [
        ({"width": 15}, "has vectors of 15 numbers and the embeddings have 16: give --encoder-input-dim 15"),
        ({"line": "w5 1 2"}, "line 4 has 2 fields after its word instead of 16"),
        ({"line": "w5" + " x" * 16}, "line 4 has 'x', which is no number"),
        ({"line": "w5" + " nan" * 16}, "line 4 has 'nan', which is no number"),
        ({"line": "w5" + " 1" * 17}, "line 4 has 17 fields after its word instead of 16"),
        ({"words": ("no", "such")}, "has none of the 20 words"),
        ({"words": ()}, "line 1 is no word with its vector"),
    ],
)
def test_wrong_vectors(how, said, tmp_path):
    model = build("linear_classifier_rope")
    glove(tmp_path / "v.txt", **how)
    dictionary = Dictionary()
    for i in range(20):
        dictionary.add_symbol(f"w{i}")
    with pytest.raises(ValueError, match=said):
        model.start_from_vectors(dictionary, tmp_path / "v.txt")


def test_numbers_have_no_vectors(tmp_path):
    glove(tmp_path / "v.txt")
    model = build("linear_classifier_rope", types=260, pixels=GREY)
    with pytest.raises(ValueError, match="have no vectors: leave it out"):
        model.start_from_vectors(Dictionary(), tmp_path / "v.txt")
