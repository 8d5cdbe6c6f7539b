"""Classifiers: padding, parameter counts, pooling and batch normalization."""

import subprocess
import sys
from math import sqrt
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import collate_tokens
from support.tensors import assert_same, randn
from support.tiny import REPOSITORY
from support.tiny_models import EOS, PAD, architectures, build_model, dictionary_of, task_of

from fairseq_lrpe.models.classifier import TokenBatchNorm

SMALL = {"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 32, "encoder_attention_heads": 2}
GREY = {"mean": 122.6, "std": 61.0}


def build(arch, types=24, labels=3, pooling="mean", pairs=None, pixels=None, **flags):
    """A float64 model in evaluation mode, with a dictionary of ``types`` types."""
    task = task_of(
        dictionary_of(types),
        about={"pixels": pixels} if pixels else {},
        labels=list(range(labels)),
        joined=pairs == "joined",
        apart=pairs == "apart",
        max_positions=lambda: 64,
        cfg=SimpleNamespace(pooling=pooling),
    )
    torch.manual_seed(0)
    return build_model(arch, task, **{**SMALL, **flags}).double().eval()


def test_init_std():
    """Matrices of the encoder and its encoding are drawn from N(0, 0.02²); biases and padding are 0."""
    encoder = build("softmax_classifier_xl", types=200, encoder_input_dim=30, init_std=0.02).encoder
    for name, parameter in encoder.named_parameters():
        if parameter.dim() == 2 and "norm" not in name:
            drawn = parameter[parameter.any(-1)]
            assert abs(drawn.std() - 0.02) < 4 * 0.02 / (2 * drawn.numel()) ** 0.5, name
        elif name.endswith("bias"):
            assert not parameter.any(), name
    assert not encoder.embed_tokens.embedding.weight[PAD].any()


def batch(lengths, seed=0):
    """Random tokens of these lengths, padded on the right."""
    draw = torch.Generator().manual_seed(seed)
    return collate_tokens([torch.randint(4, 24, (n,), generator=draw) for n in lengths], PAD)


def randomize(norm):
    """Replaces the initial statistics and parameters of a norm."""
    for i, tensor in enumerate((norm.running_mean, norm.running_var, norm.weight.data, norm.bias.data)):
        tensor.copy_(0.5 + torch.rand(tensor.shape, generator=torch.Generator().manual_seed(i)))


ARCHES = architectures("classifier", bidirectional=True)


@pytest.mark.parametrize(
    "arch, norm", [*((arch, "batch") for arch in ARCHES), ("softmax_classifier_xl", "layer")]
)
@torch.no_grad()
def test_padding_does_not_change_predictions(arch, norm):
    for pooling in ("mean", "first"):
        model = build(arch, pooling=pooling, encoder_norm=norm)
        for module in model.modules():
            if isinstance(module, TokenBatchNorm):
                randomize(module)
        tokens = batch([5, 9, 2])
        expected = torch.cat([model(row[row != PAD][None]) for row in tokens])
        assert_same(model(tokens), expected)
        more = torch.cat([tokens, torch.full((3, 4), PAD)], dim=1)
        assert_same(model(more), expected)


@pytest.mark.parametrize("arch", ["linear_classifier_tmlr_type1", "softmax_classifier_xl"])
def test_padding_does_not_change_training(arch):
    """Outputs, gradients and BatchNorm's statistics are unchanged."""
    found = []
    for padding in (0, 5):
        model = build(arch).train()
        tokens = torch.cat([batch([5, 9, 2]), torch.full((3, padding), PAD)], dim=1)
        out = model(tokens)
        (out * randn(3, 3)).sum().backward()
        statistics = [module.running_var for module in model.modules() if isinstance(module, TokenBatchNorm)]
        assert len(statistics) == 5 and all((x != 1).any() for x in statistics)
        found.append((out.detach(), [p.grad for p in model.parameters() if p.grad is not None], statistics))
    assert_same(found[1], found[0])


def test_batch_norm_formula():
    """(x − mean) / sqrt(var + eps) over real tokens; running statistics as torch's, var with N − 1."""
    norm, x = TokenBatchNorm(4).double(), randn(7, 3, 4).requires_grad_()
    norm.weight.data, norm.bias.data = randn(4, seed=1), randn(4, seed=2)
    norm.padding = torch.arange(7) >= torch.tensor([7, 4, 1])[:, None]
    out = norm(x)
    real = torch.stack([x[i, b] for i in range(7) for b in range(3) if not norm.padding[b, i]])
    mean, var = real.mean(0), real.var(0, unbiased=False)
    expected = (x - mean) / (var + 1e-5).sqrt() * norm.weight + norm.bias
    expected = expected.masked_fill(norm.padding.T[..., None], 0)
    assert_same(out, expected)
    inputs, outer = (x, norm.weight, norm.bias), randn(7, 3, 4, seed=3)
    assert_same(*(torch.autograd.grad(y, inputs, outer, retain_graph=True) for y in (out, expected)))
    mean, var = mean.detach(), var.detach()
    assert_same(norm.running_mean, 0.1 * mean)
    assert_same(norm.running_var, 0.9 + 0.1 * real.detach().var(0))
    norm.eval()
    expected = (x - norm.running_mean) / (norm.running_var + 1e-5).sqrt() * norm.weight + norm.bias
    assert_same(norm(x), expected.masked_fill(norm.padding.T[..., None], 0))


def test_batch_norm_statistics_are_float32():
    norm, exact = TokenBatchNorm(4).half(), TokenBatchNorm(4)
    x = 1000 + 10 * torch.randn(64, 2, 4, generator=torch.Generator().manual_seed(0)).half()
    for _ in range(50):
        out, expected = norm(x), exact(x.float())
    assert norm.running_mean.dtype == torch.float and out.dtype == torch.half
    assert_same(norm.running_mean, exact.running_mean, 1e-6)
    assert_same(out.float(), expected, 1e-2)


TRAIN_A_BATCH_NORM = """
import sys
import torch
from fairseq_lrpe.models.classifier import TokenBatchNorm

folder, rank = sys.argv[1], int(sys.argv[2])
torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
state, inputs, dummy = torch.load(f"{folder}/inputs.pt")
norm = TokenBatchNorm(4).double()
norm.load_state_dict(state)
x, norm.padding, outer = inputs[rank]
norm.is_dummy = rank == dummy
out = norm(x.requires_grad_())
((out * outer).sum() * (not norm.is_dummy)).backward()
gradients = x.grad, norm.weight.grad, norm.bias.grad
torch.save((out.detach(), gradients, norm.state_dict()), f"{folder}/outputs{rank}.pt")
"""


@pytest.mark.parametrize("dummy", [None, 1])
def test_two_processes_have_the_batch_norm_of_the_whole_batch(dummy, tmp_path):
    """Outputs, gradients and running statistics are equal; a dummy batch changes none of them."""
    norm, lengths = TokenBatchNorm(4).double(), torch.tensor([7, 4, 1, 5, 2])
    randomize(norm)
    x, outer = 3 + randn(7, 5, 4), randn(7, 5, 4, seed=1)
    padding = torch.arange(7) >= lengths[:, None]
    parts = [slice(0, 2), slice(2, 5)]
    inputs = [(x[:, part], padding[part], outer[:, part]) for part in parts]
    torch.save((norm.state_dict(), inputs, dummy), tmp_path / "inputs.pt")
    command = [sys.executable, "-c", TRAIN_A_BATCH_NORM, str(tmp_path)]
    processes = [subprocess.Popen([*command, str(rank)], cwd=REPOSITORY) for rank in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    found = [torch.load(tmp_path / f"outputs{rank}.pt") for rank in range(2)]

    whole = slice(0, 2) if dummy else slice(0, 5)
    x, norm.padding = x[:, whole].requires_grad_(), padding[whole]
    out = norm(x)
    (out * outer[:, whole]).sum().backward()
    outputs, gradients, states = zip(*found, strict=True)
    assert_same(torch.cat(outputs, dim=1)[:, whole], out.detach())
    assert_same(torch.cat([of_x for of_x, *_ in gradients], dim=1)[:, whole], x.grad)
    for i, parameter in enumerate((norm.weight, norm.bias), start=1):
        assert_same(gradients[0][i] + gradients[1][i], parameter.grad)
    for state in states:
        assert_same(state["running_mean"], norm.running_mean)
        assert_same(state["running_var"], norm.running_var)
    if dummy:
        assert not gradients[1][0].any()


@torch.no_grad()
def test_pooling_formulas():
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
def test_separate_pair_formula():
    """Linear(GELU(Linear([a, b, a − b, a ∗ b]))) of the pooled vectors of both texts."""
    model = build("softmax_classifier_rope", pairs="apart")
    one, two = batch([5, 9, 2]), batch([3, 3, 7], seed=1)
    a, b = model.pooled(one), model.pooled(two)
    hidden = torch.cat([a, b, a - b, a * b], 1) @ model.head[0].weight.T + model.head[0].bias
    hidden = hidden * (1 + torch.erf(hidden / sqrt(2))) / 2
    expected = hidden @ model.head[2].weight.T + model.head[2].bias
    assert_same(model(one, second_tokens=two), expected)
    assert (model(two, second_tokens=one) - expected).abs().max() > 1e-3


LRA = {  # (width, layers, heads, vocabulary, labels, arguments, parameters of Base, of Type1)
    "text": (128, 4, 8, 135, 2, {}, 547_714, 548_802),
    "listops": (128, 4, 8, 18, 10, {}, 533_770, None),
    "retrieval": (64, 4, 8, 98, 2, {"pairs": "apart"}, 156_866, None),
    "pathfinder": (32, 4, 8, 260, 2, {"pixels": {"mean": 127.5, "std": 127.5}}, 34_370, None),
    "image": (100, 12, 10, 260, 10, {"pixels": GREY}, 974_610, None),
}


@pytest.mark.parametrize("task", LRA)
def test_parameters_of_long_range_arena(task):
    """A layer of Type1 additionally has d/heads angles and a LayerNorm."""
    width, layers, heads, types, labels, how, base, type1 = LRA[task]
    sizes = {"encoder_layers": layers, "encoder_embed_dim": width, "encoder_ffn_embed_dim": 2 * width}
    sizes |= {"encoder_attention_heads": heads}
    counts = [
        sum(p.numel() for p in build(f"linear_classifier_{name}", types, labels, **how, **sizes).parameters())
        for name in ("base", "tmlr_type1")
    ]
    assert counts == [base, type1 or base + layers * (width // heads + 2 * width)]


def test_word_vectors_are_copied(tmp_path):
    model = build("linear_classifier_rope")
    dictionary = Dictionary()
    for word in ("w0", "a b", *(f"w{i}" for i in range(2, 20))):
        dictionary.add_symbol(word)
    embedding = model.encoder.embed_tokens.embedding
    before = embedding.weight.clone()
    vectors = {word: [i + 0.5 * j for j in range(16)] for i, word in enumerate(("w0", "w1", "a b"))}
    lines = [" ".join([word, *map(str, vector)]) for word, vector in vectors.items()]
    (tmp_path / "v.txt").write_text("\n".join(lines) + "\n")
    model.load_word_vectors(dictionary, tmp_path / "v.txt")
    for word in ("w0", "a b"):
        assert embedding.weight[dictionary.index(word)].tolist() == vectors[word]
    others = [i for i in range(24) if i not in (dictionary.index("w0"), dictionary.index("a b"))]
    assert torch.equal(embedding.weight[others], before[others])


@torch.no_grad()
def test_joined_pairs_have_segment_embeddings():
    inputs = build("softmax_classifier_rope", pairs="joined").encoder.embed_tokens
    tokens = torch.tensor([[0, 5, 6, EOS, 7, EOS, PAD], [0, EOS, 5, 5, 5, 5, EOS]])
    halves = torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 1, 1]])
    expected = inputs.embedding(tokens)[:, :6] + inputs.segments.weight[halves]
    assert_same(inputs(tokens)[:, :6], expected)


@torch.no_grad()
def test_pixels_are_normalized():
    inputs = build("linear_classifier_rope", types=260, pixels=GREY).encoder.embed_tokens
    values = torch.tensor([[0, 122, 255]])
    numbers = (values.double()[..., None] - 122.6) / 61
    assert_same(inputs(values + 4), numbers * inputs.project.weight[:, 0] + inputs.project.bias)
