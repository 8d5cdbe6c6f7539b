"""Registers vision transformers: patches of a picture through our layers, and their mean is classified."""

from dataclasses import dataclass
from functools import partial

import torch
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_lrpe.attention import build_attention
from fairseq_lrpe.config import PositionConfig, check_between, check_part, flag
from fairseq_lrpe.encodings import check_choice
from fairseq_lrpe.models.coders import ACTIVATIONS, EncoderLayer
from fairseq_lrpe.models.register import register_family
from fairseq_lrpe.models.stamp import MethodStamp
from fairseq_lrpe.ops.places import diagonal_places
from fairseq_lrpe.programs import one_sentence

IMAGE_POSITIONS = ("sum", "flat")
TABLES = ("learned", "none")
"""The token positions that patches can have."""
MOST = 0.99
"""Of drop path: a branch is divided by what is left."""


@dataclass
class ViTConfig(PositionConfig):
    """Declares a vision transformer's flags with the defaults of TMLR's Table 3, which are DeiT-small's."""

    token_positions: str = flag("learned", f"absolute positions of the patches: {', '.join(TABLES)}")
    image_positions: str = flag(
        "sum", "where encodings have the patch of row r and column c: at r + c (sum), or one by one (flat)"
    )
    tupe_cls: bool = flag(False, "TUPE's first patch has scores of its own, as if it were <s>")
    patch_size: int = flag(16, "pixels of a patch's side")
    encoder_layers: int = flag(12, "encoder layers")
    encoder_embed_dim: int = flag(384, "encoder embedding dimension")
    encoder_ffn_embed_dim: int = flag(1536, "embedding dimension of the feed-forward layers")
    encoder_attention_heads: int = flag(6, "attention heads")
    activation_fn: ACTIVATIONS = flag("gelu", "activation function of the feed-forward layers")  # noqa: RUF009
    drop_path: float = flag(0.1, "probability to leave out a block's branch for a picture, in training")
    dropout: float = flag(0.0, "dropout probability")
    attention_dropout: float = flag(0.0, "dropout probability of softmax attention's weights")
    activation_dropout: float = flag(0.0, "dropout probability inside the feed-forward layers")


class PatchLayer(EncoderLayer):
    """An encoder layer whose q, k and v have no bias, and whose branches drop path leaves out at random."""

    def __init__(self, drop_path, *args):
        super().__init__(*args)
        self.drop_path = drop_path
        for projection in (self.self_attn.q_proj, self.self_attn.k_proj, self.self_attn.v_proj):
            projection.bias = None

    def residual_connection(self, x, residual):
        if self.training and self.drop_path:
            kept = torch.rand(x.size(1), 1, device=x.device) >= self.drop_path
            x = x * (kept / (1 - self.drop_path)).to(x.dtype)
        return residual + x


class ViTModel(BaseFairseqModel):
    """Classifies the mean of a picture's patches, normalized (OpenNLPLab/im, classification/models/lrpe).

    The position table has a row more than there are patches, as there: it is counted in the paper's sizes.
    """

    def __init__(self, args, image_size: int, classes: int):
        super().__init__()
        width, self.patch_size, self.side = (
            args.encoder_embed_dim,
            args.patch_size,
            image_size // args.patch_size,
        )
        self.patches = nn.Linear(3 * args.patch_size**2, width)
        self.positions = None
        if args.token_positions == "learned":
            self.positions = nn.Parameter(torch.randn(self.side**2 + 1, width))
        self.summed = args.image_positions == "sum"
        cfg = TransformerConfig.from_namespace(args)
        cfg.encoder.normalize_before = True
        self.layers, shared = nn.ModuleList(), []
        for layer in range(1, args.encoder_layers + 1):
            attention = partial(
                build_attention,
                args,
                embed_dim=width,
                num_heads=args.encoder_attention_heads,
                causal=False,
                layer=layer,
                layers=args.encoder_layers,
                max_positions=2 * self.side - 1 if self.summed else self.side**2,
                dropout=args.attention_dropout,
                shared=shared,
            )
            self.layers.append(PatchLayer(args.drop_path, attention, cfg))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        self.method = MethodStamp(args)

    @staticmethod
    def check(args):
        """Refuses, by ValueError, flags that cannot be met."""
        check_choice("token positions", args.token_positions, TABLES)
        check_choice("image positions", args.image_positions, IMAGE_POSITIONS)
        check_between("patch_size", args.patch_size, 1)
        check_between("drop_path", args.drop_path, 0, MOST)
        check_part(args, "encoder")

    @staticmethod
    def check_data(cfg, args):
        """Refuses, by ValueError, patches that do not fit into the pictures."""
        size, patch = args.image_size, cfg.patch_size
        if size % patch:
            raise ValueError(
                f"pictures of {size} pixels each way are not cut into patches of {patch}: "
                "give a --patch-size that divides --image-size"
            )

    @classmethod
    def build_model(cls, args, task):
        with one_sentence("fairseq_lrpe"):
            cls.check_data(args, task.cfg)
        return cls(args, task.cfg.image_size, len(task.labels))

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits (B, classes) of pictures (B, 3, S, S)."""
        patches = images.unflatten(3, (self.side, -1)).unflatten(2, (self.side, -1))  # (B, 3, r, y, c, x)
        x = self.patches(patches.permute(2, 4, 0, 3, 5, 1).flatten(3).flatten(0, 1))  # (N, B, E)
        if self.positions is not None:
            x = x + self.positions[: len(x), None]
        places = diagonal_places(self.side, self.side, x.device) if self.summed else None
        for layer in self.layers:
            layer.self_attn.places = places
            x = layer(x, None)
        return self.head(self.norm(x.mean(0)))

    def max_positions(self):
        """Returns None: a picture is no sequence that could be too long."""

    def upgrade_state_dict_named(self, state_dict, name):
        """Ends the program where ``state_dict`` is of other pictures, patches or labels."""
        ours = self.state_dict()
        for key, what in (
            ("patches.weight", "patches"),
            ("positions", "pictures"),
            ("layers.0.self_attn.encoding.positions.weight", "pictures"),
            ("head.weight", "labels"),
        ):
            if key in ours and key in state_dict and ours[key].shape != state_dict[key].shape:
                remedy = "give the sizes and the data of its training"
                raise SystemExit(f"fairseq_lrpe: the checkpoint is of other {what}: {remedy}")
        super().upgrade_state_dict_named(state_dict, name)


register_family("vit", ViTModel, ViTConfig)
