"""Linear, delta and softmax attention with the interface of ``torch.nn.MultiheadAttention``."""

from typing import Any

import torch
from torch import Tensor

from fairseq_lrpe.attention.base import SelfAttention
from fairseq_lrpe.attention.delta import DeltaAttention
from fairseq_lrpe.attention.linear import LinearAttention
from fairseq_lrpe.attention.softmax import SoftmaxAttention
from fairseq_lrpe.ops.autograd import is_transformed
from fairseq_lrpe.ops.constants import is_tracing
from fairseq_lrpe.ops.documents import Documents
from fairseq_lrpe.ops.position_index import PositionIndex


class MultiheadSelfAttention(SelfAttention):
    """Base class of modules that replace ``torch.nn.MultiheadAttention`` as self-attention of a layer.

    Inputs are batch first. Unlike in torch's module, weights are not computed (``need_weights``), and a mask
    is not necessary in causal attention, because ``causal`` of the constructor determines it.

    In ``nn.TransformerEncoderLayer`` or ``nn.TransformerDecoderLayer``, assign the module to ``self_attn``
    before ``nn.TransformerEncoder`` copies the layer. Inference then does not use torch's fused kernel, which
    would compute attention without the encoding.
    """

    batch_first = True

    # The layers read these attributes. The first one disables the fused kernel, and the others are unused.
    _qkv_same_embed_dim = False
    in_proj_weight = in_proj_bias = torch.empty(0)

    def forward(  # type: ignore[override]  # torch's layers determine the arguments
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        position_index: PositionIndex | None = None,
        document_ids: Tensor | Documents | None = None,
    ) -> tuple[Tensor, None]:
        """Computes self-attention with the arguments of ``torch.nn.MultiheadAttention.forward``.

        Args:
            query: inputs (B, L, E).
            key: the same tensor as ``query``.
            value: the same tensor as ``query``.
            key_padding_mask: (B, L), True or -inf at padding.
            need_weights: must be False.
            attn_mask: the causal mask (L, L), True or -inf at keys after their query, or None; only in causal
                attention.
            average_attn_weights: ignored, because weights are not computed.
            is_causal: whether ``attn_mask`` is known to be the causal mask, which is then not checked.
            position_index: see :meth:`SelfAttention.forward`. torch's layers do not pass it.
            document_ids: likewise.

        Returns:
            The output (B, L, E), and None in place of the attention weights.

        Raises:
            ValueError: for arguments that are not supported.
        """
        if not (_is_same(key, query) and _is_same(value, query)):
            raise ValueError("only self-attention is supported: pass the same tensor as query, key and value")
        if need_weights:
            raise ValueError("attention weights are not computed: pass need_weights=False")
        if query.is_nested:
            raise ValueError(
                "nested tensors are not supported: pass enable_nested_tensor=False to nn.TransformerEncoder"
            )
        if (is_causal or attn_mask is not None) and not self.causal:
            raise ValueError(
                "this module is not causal: omit attn_mask and is_causal, or create it with causal=True"
            )
        if attn_mask is not None and not is_causal:
            causal = torch.ones(query.size(1), query.size(1), dtype=torch.bool, device=query.device).triu(1)
            if not torch.equal(_bool_mask(attn_mask, "attn_mask"), causal):
                raise ValueError(
                    "attn_mask must be the causal mask (length, length): omit it, and pass key_padding_mask "
                    "for padding"
                )
        if key_padding_mask is not None:
            key_padding_mask = _bool_mask(key_padding_mask, "key_padding_mask")
        options: Any = {"position_index": position_index, "document_ids": document_ids}
        out: Any = super().forward(query, key_padding_mask=key_padding_mask, **options)
        return out, None


class MultiheadLinearAttention(MultiheadSelfAttention, LinearAttention):
    """:class:`LinearAttention` with the interface of ``torch.nn.MultiheadAttention``."""


class MultiheadDeltaAttention(MultiheadSelfAttention, DeltaAttention):
    """:class:`DeltaAttention` with the interface of ``torch.nn.MultiheadAttention``."""


class MultiheadSoftmaxAttention(MultiheadSelfAttention, SoftmaxAttention):
    """:class:`SoftmaxAttention` with the interface of ``torch.nn.MultiheadAttention``."""


def _is_same(a, b):
    """Returns whether two arguments are one tensor, for which a reentrant checkpoint passes two leaves."""
    if a is b:
        return True
    if is_tracing() or is_transformed() or a.grad_fn is not None or b.grad_fn is not None:
        return False
    layout = (a.shape, a.stride(), a.dtype, a.device, a.requires_grad)
    return (
        layout == (b.shape, b.stride(), b.dtype, b.device, b.requires_grad) and a.data_ptr() == b.data_ptr()
    )


def _bool_mask(mask, name):
    """Returns a mask that is True at masked positions; torch's layers convert masks to 0 and -inf."""
    if mask.dtype == torch.bool:
        return mask
    masked = mask.isneginf()
    if mask.masked_fill(masked, 0).any():
        raise ValueError(f"{name} must be bool, True at masked positions, or contain only 0 and -inf")
    return masked
