"""Gates of delta rules: how much of a stored value is replaced, and how all of them decay."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.ops.precision import Float32Parameters, at_least_float32

_MAX_RATE = 16.0
_STEPS = (0.001, 0.1)
"""Ranges of e^a and softplus(b) at the start, as in Mamba 2 and its successors."""


class DeltaGates(Float32Parameters):
    """Computes β_t = σ(w·x_t) of each head, and log α_t = −e^a softplus(u·x_t + b) of heads or features.

    The linear layers have no bias. That of the decay of features has the rank d. Initially, e^a of each head
    is uniform in (1, 16), and softplus(b) is log-uniform in (0.001, 0.1).

    Args:
        rule: "delta" (without α), "gated_delta" (α of each head) or "kda" (of each feature).
        num_heads: number of heads H.
        head_dim: head dimension d.
    """

    float32_parameters = ("log_rate", "step_bias")

    def __init__(self, rule: str, num_heads: int, head_dim: int):
        super().__init__()
        self.num_heads = num_heads
        embed_dim = num_heads * head_dim
        self.beta = nn.Linear(embed_dim, num_heads, bias=False)
        self.decay: nn.Module | None = None
        if rule == "delta":
            return
        width = 1
        self.decay = nn.Linear(embed_dim, num_heads, bias=False)
        if rule == "kda":
            width = head_dim
            inner = nn.Linear(embed_dim, head_dim, bias=False)
            self.decay = nn.Sequential(inner, nn.Linear(head_dim, embed_dim, bias=False))
        rates = torch.empty(num_heads, 1).uniform_(1, _MAX_RATE)
        steps = torch.empty(num_heads, width).uniform_(*map(math.log, _STEPS)).exp()
        self.log_rate = nn.Parameter(rates.log())
        self.step_bias = nn.Parameter(steps + (-(-steps).expm1()).log())  # the inverse of softplus

    def forward(self, x: Tensor) -> Tensor:
        """Returns β, and log α if there is a decay, as columns (B, H, L, 1 + ·), for inputs (B, L, E)."""
        beta = self._heads(self.beta(x)).sigmoid()
        if self.decay is None:
            return beta.transpose(1, 2)
        logits = self._heads(self.decay(x)) + self.step_bias
        log_decay = self.log_rate.exp() * F.logsigmoid(-logits)  # minus e^a softplus(logits)
        return torch.cat([beta, log_decay], dim=-1).transpose(1, 2)

    def _heads(self, y):
        """Returns (B, L, H·n) as (B, L, H, n), in at least float32."""
        return at_least_float32(y).unflatten(-1, (self.num_heads, -1))
