"""Vision transformers: published sizes, patches, positions and drop path."""

from types import SimpleNamespace

import pytest
import torch
from support.tensors import assert_same, randn
from support.tiny_models import architectures, build_model, task_of

from fairseq_lrpe.utils.errors import UserError

ARCHS = [*architectures("vit", bidirectional=True), "linear_vit_rope_mixed", "softmax_vit_liere"]
PAPER = {"embed_dim": 384, "ffn_embed_dim": 1536, "layers": 12, "attention_heads": 6}


def build(arch, image_size=12, labels=5, **flags):
    torch.manual_seed(0)
    task = task_of(cfg=SimpleNamespace(image_size=image_size), labels=list(range(labels)))
    return build_model(arch, task, **{"patch_size": 4, **flags})


@pytest.mark.parametrize("method, parameters", [
    ("base", 22_036_456),
    ("tmlr_type1", 22_046_440),
    ("tmlr_type2", 22_046_056),
    ("tmlr_type3", 22_045_672),
])  # fmt: skip
def test_published_parameter_counts(method, parameters):
    sizes = {f"encoder_{name}": size for name, size in PAPER.items()}
    model = build(f"linear_vit_{method}", image_size=224, labels=1000, patch_size=16, **sizes)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_images_consist_of_whole_patches():
    with pytest.raises(UserError, match="--image-size 13 is not divisible by --patch-size 4"):
        build("linear_vit_base", image_size=13)


@pytest.mark.parametrize("arch", ARCHS)
def test_every_method_has_gradients(arch):
    model = build(arch).double()
    out = model(randn(3, 3, 12, 12))
    assert out.shape == (3, 5)
    out.sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_patches():
    """Patches row by row, each with its pixels row by row in three colors."""
    model = build("linear_vit_base", token_positions="none").double()
    model.layers = torch.nn.ModuleList()
    images = randn(2, 3, 12, 12)
    rows = [
        images[:, :, 4 * r : 4 * r + 4, 4 * c : 4 * c + 4].permute(0, 2, 3, 1).flatten(1)
        for r in range(3)
        for c in range(3)
    ]
    vectors = torch.stack([model.patches(row) for row in rows])
    assert_same(model(images), model.head(model.norm(vectors.mean(0))))


@pytest.mark.parametrize("attention, method", [("linear", "rope_mixed"), ("softmax", "liere")])
def test_grid_positions(attention, method):
    """Encodings of two coordinates distinguish rows from columns, and so does the index of a patch.

    With positions r + c, an image and its transpose (patchwise) give the same output.
    """
    arch = f"{attention}_vit_{method}"
    model = build(arch, token_positions="none").double().eval()
    images = randn(2, 3, 12, 12)
    patches = images.unflatten(3, (3, 4)).unflatten(2, (3, 4))  # (B, 3, r, y, c, x)
    transposed = patches.transpose(2, 4).flatten(4, 5).flatten(2, 3)
    flat = build(arch, token_positions="none", image_positions="flat").double().eval()
    for each in (model, flat):
        assert (each(images) - each(transposed)).abs().max() > 1e-5
    summed = build(arch, token_positions="none", image_positions="sum").double().eval()
    assert_same(summed(images), summed(transposed))
    for layer in model.layers:
        assert layer.self_attn.encoding.axes == 2 and layer.self_attn.encoding.max_positions == 3
    with pytest.raises(UserError, match=r"checkpoint.s method \(.*image_positions sum.*differs"):
        model.load_state_dict(summed.state_dict())
    assert build(f"{attention}_vit_rope").image_positions == "sum"
    with pytest.raises(UserError, match="rope does not support positions with 2 coordinates"):
        build("linear_vit_rope", image_positions="grid")


def test_drop_path():
    """In training, a branch is dropped for whole images, and rescaled otherwise."""
    layer = build("linear_vit_rope", drop_path=0.25).layers[0].train()
    x, residual = torch.ones(4, 4000, 2), torch.zeros(4, 4000, 2)
    found = layer.residual_connection(x, residual)
    assert torch.equal(found, found[:1, :, :1].expand_as(found))  # the same for all of an image
    assert set(found.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert abs((found == 0).double().mean() - 0.25) < 4 * (0.25 * 0.75 / 4000) ** 0.5
    assert torch.equal(layer.eval().residual_connection(x, residual), x)
