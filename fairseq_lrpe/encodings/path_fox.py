"""PaTH with a forget gate (PaTH-FoX)."""

from typing import Any

import torch
from torch import Tensor

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.context import Context
from fairseq_lrpe.encodings.decay_scores import decay_bias, prepare_decay
from fairseq_lrpe.encodings.fox import BIAS_HELP, ForgetGate
from fairseq_lrpe.encodings.path import PaTH


@register_encoding("path_fox", bias=BIAS_HELP)
class PaTHFoX(ForgetGate, PaTH):
    """PaTH with FoX's forget gate: adds Σ_{l=j+1..i} log f_l to the scores of PaTH (Yang et al. 2025)."""

    decomposable = False
    left_context = PaTH.left_context

    def __init__(self, *, bias: float = 0.0, **shared):
        super().__init__(bias=bias, **shared)

    def input_features(self, x: Tensor) -> Tensor:
        """Returns √β_s w_s (B, H, n, d) and log f (B, H, n, 1), concatenated in the last dimension."""
        reflections = PaTH.input_features(self, x)
        return torch.cat([reflections, ForgetGate.input_features(self, x)], dim=-1)

    def prepare(self, q: Tensor, k: Tensor, context: Context) -> Any:
        reflections = context._replace(features=context.input_features()[..., :-1])
        return PaTH.prepare(self, q, k, reflections), prepare_decay(q, k, context)

    def scores(self, q: Tensor, k: Tensor, context: Context) -> Tensor:
        reflected, gates = context.prepared
        scores = PaTH.scores(self, q, k, context._replace(prepared=reflected))
        bias = decay_bias(q, k, context._replace(prepared=gates))
        assert bias is not None  # a forget gate is a decay
        return scores + bias

    def cached_keys(self, k: Tensor, context: Context) -> Tensor:
        return PaTH.cached_keys(self, k, context._replace(prepared=context.prepared[0]))
