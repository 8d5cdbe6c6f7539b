"""Vision transformers: sizes of the paper, patches, positions, drop path."""

from types import SimpleNamespace

import pytest
import torch
from exact import assert_same, random
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from omegaconf import OmegaConf

import fairseq_lrpe.models  # noqa: F401
from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.methods import METHODS

SMALL = {
    "encoder_layers": 2,
    "encoder_embed_dim": 32,
    "encoder_ffn_embed_dim": 48,
    "encoder_attention_heads": 4,
    "patch_size": 4,
}
ARCHS = [
    f"{attention}_vit_{name}"
    for name, method in METHODS.items()
    if ENCODINGS[method.encoding].bidirectional
    for attention in method.attentions()
]


def build(arch, image_size=12, labels=5, **flags):
    config = OmegaConf.structured(MODEL_DATACLASS_REGISTRY[arch]())
    for name, value in flags.items():
        setattr(config, name, value)
    task = SimpleNamespace(cfg=SimpleNamespace(image_size=image_size), labels=list(range(labels)))
    torch.manual_seed(0)
    return ARCH_MODEL_REGISTRY[arch].build_model(OmegaConf.create({"model": config}).model, task)


@pytest.mark.parametrize(
    "method, parameters",
    [
        ("base", 22_036_456),
        ("rope", 22_036_456),
        ("per", 22_036_456),
        ("tmlr_type1", 22_046_440),
        ("tmlr_type2", 22_046_056),
        ("tmlr_type3", 22_045_672),
    ],
)
def test_sizes_are_the_papers(method, parameters):
    model = build(f"linear_vit_{method}", image_size=224, labels=1000)
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("positions", ["sum", "flat"])
@pytest.mark.parametrize("arch", ARCHS)
def test_every_method_has_gradients(arch, positions):
    model = build(arch, **SMALL, image_positions=positions).double()
    out = model(random(3, 3, 12, 12))
    assert out.shape == (3, 5)
    out.sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_a_picture_is_cut_into_patches():
    """Row by row, and of each the values of its pixels, row by row, with their three colours."""
    model = build("linear_vit_base", **SMALL, token_positions="none").double()
    model.layers = torch.nn.ModuleList()
    images = random(2, 3, 12, 12)
    rows = [
        images[:, :, 4 * r : 4 * r + 4, 4 * c : 4 * c + 4].permute(0, 2, 3, 1).flatten(1)
        for r in range(3)
        for c in range(3)
    ]
    vectors = torch.stack([model.patches(row) for row in rows])
    assert_same(model(images), model.head(model.norm(vectors.mean(0))))


def test_only_the_sum_of_row_and_column_counts():
    """With positions r + c a picture and its transpose are the same but for what is inside the patches."""
    model = build("softmax_vit_gcdf", **SMALL, token_positions="none").double().eval()
    images = random(2, 3, 12, 12)
    patches = images.unflatten(3, (3, 4)).unflatten(2, (3, 4))  # (B, 3, r, y, c, x)
    turned = patches.transpose(2, 4).flatten(4, 5).flatten(2, 3)
    assert_same(model(images), model(turned))
    flat = build("softmax_vit_gcdf", **SMALL, token_positions="none", image_positions="flat")
    flat = flat.double().eval()
    assert (flat(images) - flat(turned)).abs().max() > 1e-4


def test_drop_path_leaves_out_branches_of_pictures():
    """In training every picture has a branch or not, and those that have it are divided by the share."""
    layer = build("linear_vit_rope", **SMALL, drop_path=0.25).layers[0].train()
    x, residual = torch.ones(4, 4000, 2), torch.zeros(4, 4000, 2)
    found = layer.residual_connection(x, residual)
    assert torch.equal(found, found[:1, :, :1].expand_as(found))  # the same for all of a picture
    assert set(found.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert abs((found == 0).double().mean() - 0.25) < 4 * (0.25 * 0.75 / 4000) ** 0.5
    assert torch.equal(layer.eval().residual_connection(x, residual), x)


@pytest.mark.parametrize(
    "flags, said",
    [
        ({"image_positions": "diagonal"}, "unknown image positions 'diagonal': choose from sum, flat"),
        (
            {"token_positions": "sinusoidal"},
            "unknown token positions 'sinusoidal': choose from learned, none",
        ),
        ({"drop_path": 1.0}, "--drop-path must be from 0 to 0.99, not 1.0"),
        ({"patch_size": 5}, "pictures of 12 pixels each way are not cut into patches of 5"),
        ({"encoder_attention_heads": 5}, "the embed dim 32 is not divisible by 5 attention heads"),
    ],
)
def test_wrong_flags(flags, said):
    with pytest.raises(SystemExit, match=said):
        build("linear_vit_rope", **{**SMALL, **flags})


def test_a_checkpoint_of_other_positions():
    state = build("linear_vit_rope", **SMALL).state_dict()
    with pytest.raises(SystemExit, match=r"another method .*image_positions sum"):
        build("linear_vit_rope", **SMALL, image_positions="flat").load_state_dict(state)
    with pytest.raises(SystemExit, match="the checkpoint is of other pictures"):
        build("linear_vit_rope", image_size=16, **SMALL).load_state_dict(state)
