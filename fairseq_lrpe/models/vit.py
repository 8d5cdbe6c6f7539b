"""Vision transformers, which classify the mean of encoded image patches."""

from dataclasses import dataclass
from functools import partial
from typing import Optional

import torch
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_lrpe.attention.fairseq_adapter import SharedEncoding, build_attention, with_arguments
from fairseq_lrpe.config import LayerConfig, flag, with_defaults
from fairseq_lrpe.config_validation import check_part, check_range
from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.models.encoder import EncoderLayer
from fairseq_lrpe.models.fingerprint import MethodFingerprint
from fairseq_lrpe.models.register import register_family
from fairseq_lrpe.ops.position_index import PositionIndex, diagonal_position_index, grid_position_index
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.suggest import check_flag

IMAGE_POSITIONS = ("sum", "flat", "grid")
TOKEN_POSITIONS = ("learned", "none")
"""Names of the absolute position embeddings of patches."""
MAX_DROP_PATH = 0.99
"""Maximum of --drop-path; residual branches are divided by 1 - drop path."""


DEIT_SMALL = {"encoder_embed_dim": 384, "encoder_ffn_embed_dim": 1536, "encoder_attention_heads": 6}


@dataclass
class ViTConfig(with_defaults(LayerConfig, **DEIT_SMALL, dropout=0.0, attention_dropout=0.0)):
    """Flags of a vision transformer, by default DeiT-small as in Table 3 of the LRPE paper (TMLR)."""

    token_positions: str = flag(
        "learned", f"absolute position embeddings of the patches: {', '.join(TOKEN_POSITIONS)}"
    )
    image_positions: Optional[str] = flag(  # noqa: UP045  (fairseq's parser does not support X | None)
        None,
        "position of the patch in row r and column c: r + c (sum), its index in row order (flat), or both "
        "coordinates (grid) (default: grid for encodings that support it, otherwise sum)",
    )
    tupe_cls: bool = flag(False, "give the first patch separate position scores in TUPE, as if it were <s>")
    patch_size: int = flag(16, "side length of a patch in pixels")
    drop_path: float = flag(0.1, "probability of dropping a residual branch for an image in training")


def position_axes(args) -> int:
    """Returns the number of coordinates of a patch's position."""
    return 2 if args.image_positions == "grid" else 1


class PatchLayer(EncoderLayer):
    """Encoder layer without biases of q, k and v, and with drop path in its residual branches."""

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
    """Vision transformer of the LRPE paper, which classifies the normalized mean of the encoded patches.

    Images have ``image_size`` × ``image_size`` pixels. As in the authors' code (OpenNLPLab/im,
    classification/models/lrpe), the position table has one unused row, which the paper's parameter counts
    include.
    """

    def __init__(self, args, image_size: int, classes: int):
        super().__init__()
        width = args.encoder_embed_dim
        self.side = image_size // args.patch_size
        self.patches = nn.Linear(3 * args.patch_size**2, width)
        self.positions = None
        if args.token_positions == "learned":
            self.positions = nn.Parameter(torch.randn(self.side**2 + 1, width))
        self.image_positions = args.image_positions
        max_positions = {"sum": 2 * self.side - 1, "flat": self.side**2, "grid": self.side}
        cfg = TransformerConfig.from_namespace(args)
        cfg.encoder.normalize_before = True
        self.layers = nn.ModuleList()
        shared = SharedEncoding()
        for layer in range(1, args.encoder_layers + 1):
            attention = partial(
                build_attention,
                args,
                embed_dim=width,
                num_heads=args.encoder_attention_heads,
                causal=False,
                layer=layer,
                layers=args.encoder_layers,
                max_positions=max_positions[args.image_positions],
                axes=position_axes(args),
                dropout=args.attention_dropout,
                shared=shared,
            )
            self.layers.append(PatchLayer(args.drop_path, attention, cfg))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        self.method = MethodFingerprint(args)

    @staticmethod
    def check(args):
        """Sets the default of --image-positions; raises a UserError for invalid flags."""
        check_flag("token positions", args.token_positions, TOKEN_POSITIONS)
        if args.image_positions is None:
            check_flag("encoding", args.encoding, ENCODINGS)
            args.image_positions = "grid" if ENCODINGS[args.encoding].multidimensional else "sum"
        check_flag("image positions", args.image_positions, IMAGE_POSITIONS)
        if args.randomized_positions:
            raise UserError(
                "--randomized-positions is for sequences, and images have rows and columns: omit it"
            )
        check_range("patch_size", args.patch_size, 1)
        check_range("drop_path", args.drop_path, 0, MAX_DROP_PATH)
        axes = position_axes(args)
        check_flag("encoding", args.encoding, ENCODINGS)
        if axes > 1 and not ENCODINGS[args.encoding].multidimensional:
            raise UserError(
                f"{args.encoding} does not support positions with {axes} coordinates: pass "
                "--image-positions sum or flat"
            )
        check_part(args, "encoder", axes=axes)

    @classmethod
    def build_model(cls, args, task):
        size = task.cfg.image_size
        if size % args.patch_size:
            raise UserError(
                f"--image-size {size} is not divisible by --patch-size {args.patch_size}: pass another "
                "--patch-size"
            )
        return cls(args, size, len(task.labels))

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits (B, classes) of images (B, 3, S, S)."""
        patches = images.unflatten(3, (self.side, -1)).unflatten(2, (self.side, -1))  # (B, 3, r, y, c, x)
        x = self.patches(patches.permute(2, 4, 0, 3, 5, 1).flatten(3).flatten(0, 1))  # (N, B, E)
        if self.positions is not None:
            x = x + self.positions[: len(x), None]
        attentions = [layer.self_attn for layer in self.layers]
        with with_arguments(*attentions, position_index=self.position_index(x.device)):
            for layer in self.layers:
                x = layer(x, None)
        return self.head(self.norm(x.mean(0)))

    def position_index(self, device: torch.device) -> PositionIndex | None:
        """Returns the positions of the patches, or None if they are consecutive."""
        if self.image_positions == "flat":
            return None
        index = diagonal_position_index if self.image_positions == "sum" else grid_position_index
        return index(self.side, self.side, device)

    def max_positions(self):
        """Returns None, because images have no maximum length."""


register_family("vit", ViTModel, ViTConfig)
