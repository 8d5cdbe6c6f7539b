"""Models whose layers have different encodings (--encoding-interval)."""

import pytest
import torch
from support.commands import assert_rejected, load_last_checkpoint
from support.tensors import assert_same
from support.tiny import succeeded, train_flags, train_here
from support.tiny_models import build_small

from fairseq_lrpe.attention import SoftmaxAttention
from fairseq_lrpe.attention.fairseq_adapter import FairseqSelfAttention
from fairseq_lrpe.encodings import build_encoding
from fairseq_lrpe.models.layers import self_attentions


def build(arch, layers=4, **flags):
    torch.manual_seed(0)
    return build_small(arch, decoder_layers=layers, **flags).double().eval()


def encodings(model):
    return [x.encoding.name for x in model.modules() if isinstance(x, FairseqSelfAttention)]


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize(
    "interval, other, expected",
    [
        (2, "none", ["rope", "none", "rope", "none"]),
        (3, "none", ["rope", "rope", "none", "rope"]),
        (4, "log_scale", ["rope", "rope", "rope", "log_scale"]),
    ],
)
def test_encodings_of_layers(attention, interval, other, expected):
    flags = {"encoding_interval": interval, "interval_encoding": other, "log_scale_length": 7}
    model = build(f"{attention}_lm_rope", **flags)
    assert encodings(model) == expected
    lengths = [x.encoding.length for x in self_attentions(model) if x.encoding.name == "log_scale"]
    assert set(lengths) <= {7}


def test_layers_that_share_an_encoding():
    """The other layers still share theirs."""
    model = build("softmax_lm_tupe_a", encoding_interval=2)
    found = [x.encoding for x in self_attentions(model)]
    assert [x.name for x in found] == ["tupe", "none", "tupe", "none"]
    assert found[0] is found[2]


def test_only_the_part_with_an_encoding_changes():
    model = build_small(
        "softmax_transformer_rope", encoding_interval=2, encoding_in="encoder", encoder_layers=2
    )
    assert [x.encoding.name for x in self_attentions(model.encoder)] == ["rope", "none"]
    assert {x.encoding.name for x in self_attentions(model.decoder)} == {"none"}


def test_window_of_the_layers_with_an_encoding():
    model = build("softmax_lm_rope", encoding_interval=2, encoding_window=3)
    assert [x.window for x in self_attentions(model)] == [3, 0, 3, 0]


@pytest.mark.parametrize("encoding", ["rope", "none", "alibi"])
def test_a_window_hides_distant_keys(encoding):
    """Outputs are those of the last three keys, computed as a sequence of their own."""
    module = SoftmaxAttention(16, 2, encoding, causal=True).double().eval()
    x = torch.randn(2, 9, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    module.window = 3
    windowed = module(x)
    module.window = 0
    for i in range(9):
        start = max(0, i - 2)
        assert_same(windowed[:, i], module(x[:, start : i + 1])[:, -1])


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_decoding_equals_the_whole_sequence(attention):
    model = build(
        f"{attention}_lm_rope", encoding_interval=2, interval_encoding="log_scale", log_scale_length=3
    )
    tokens = torch.randint(4, 24, (2, 11), generator=torch.Generator().manual_seed(1))
    whole, _ = model(tokens)
    state = {}
    steps = [model(tokens[:, : n + 1], incremental_state=state)[0] for n in range(11)]
    assert_same(torch.cat(steps, dim=1), whole)


def test_log_scale():
    encoding = build_encoding(
        "log_scale", num_heads=2, head_dim=4, causal=True, length=3, factor=0.5
    ).double()
    q = torch.ones(1, 2, 7, 4, dtype=torch.float64)
    scaled, k = encoding(q, q)
    steps = [1, 1, 2, 2, 2, 3, 3]  # ⌊(s + 1)/3⌋ + 1
    expected = 1 + 0.5 * torch.tensor(steps, dtype=torch.float64).log()
    assert_same(scaled[0, 0, :, 0], expected)
    assert k is q


@pytest.mark.parametrize(("arch", "flags", "message"), [
    ("linear_lm_rope", "--encoding-interval 1", "--encoding-interval must be at least 2, not 1"),
    ("linear_lm_rope", "--encoding-interval 9",
     "--encoding-interval 9 changes no layer, because the decoder has 2: pass a number from 2 to 2"),
    ("linear_lm_nope", "--encoding-interval 2", "because all layers have the encoding none"),
    ("linear_lm_rope", "--encoding-interval 2 --interval-encoding t5", "needs the score matrix"),
    ("linear_lm_rope", "--encoding-interval 2 --interval-encoding nothing", "unknown interval encoding"),
    ("linear_lm_rope", "--encoding-interval 2 --encoding-window 8", "requires causal softmax attention"),
    ("softmax_lm_rope", "--encoding-window 8", "--encoding-window requires --encoding-interval"),
    ("softmax_lm_rope", "--encoding-interval 2 --randomized-positions 64",
     "does not support --encoding-interval"),
    ("linear_lm_rope", "--drop-encoding", "requires a model without an encoding, not rope: pass --encoding"),
    ("softmax_lm_rope", "--log-scale-length 8", "is an option of the encoding 'log_scale'"),
    ("softmax_lm_rope", "--encoding-interval 2 --interval-encoding log_scale --log-scale-length 0",
     "log_scale needs a length of at least 1"),
])  # fmt: skip
def test_invalid_flags(arch, flags, message, data_bin, tmp_path):
    words = train_flags(data_bin, arch, tmp_path / "save", "--max-update", 1, *flags.split())
    assert_rejected(train_here(*words), message, tmp_path / "save")


def test_training_continues_without_the_encoding(train, tmp_path):
    """The weights are those of the checkpoint; other flags of the method must be equal."""
    succeeded(train("linear_lm_tmlr_type1", tmp_path / "a", "--max-update", 2))
    checkpoint = tmp_path / "a/checkpoint_last.pt"
    flags = ["--finetune-from-model", checkpoint, "--max-update", 1, "--lr", 0, "--linear-norm", "layernorm"]
    refused = train("linear_lm", tmp_path / "b", *flags)
    assert refused.returncode and "the checkpoint's method" in refused.stderr
    refused = train("linear_lm", tmp_path / "c", *flags[:-2], "--drop-encoding")
    assert refused.returncode and "the checkpoint's method" in refused.stderr
    succeeded(train("linear_lm", tmp_path / "d", *flags, "--drop-encoding"))
    before = load_last_checkpoint(tmp_path / "a")["model"]
    after = load_last_checkpoint(tmp_path / "d")["model"]
    assert not any(".encoding." in key for key in after)
    for key, value in after.items():
        assert key == "decoder.method.version" or value.equal(before[key])


def test_training_and_another_interval(train, tmp_path):
    """A checkpoint is not loaded into a model whose layers have other encodings."""
    flags = ["--encoding-interval", 2, "--interval-encoding", "log_scale"]
    succeeded(train("softmax_lm_rope", tmp_path, "--max-update", 2, *flags))
    assert load_last_checkpoint(tmp_path)["cfg"]["model"]["encoding_interval"] == 2
    failed = train("softmax_lm_rope", tmp_path, "--max-update", 4)
    assert failed.returncode and "the checkpoint's method" in failed.stderr
    succeeded(train("softmax_lm_rope", tmp_path, "--max-update", 4, *flags))
