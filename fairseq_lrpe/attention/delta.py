"""Linear attention with a delta rule and a positional encoding."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.attention.base import AttentionState, SelfAttention
from fairseq_lrpe.attention.delta_gates import DeltaGates
from fairseq_lrpe.attention.key_state import check_state_shape
from fairseq_lrpe.attention.linear import LINEAR_RULES, RMS_EPS, InputDtypeRMSNorm
from fairseq_lrpe.attention.rows import select_rows
from fairseq_lrpe.attention.state import STATE_REMEDY, complete_state
from fairseq_lrpe.encodings import Context, Encoding
from fairseq_lrpe.encodings.delta_rules import check_delta_rule, check_norms, decay_of_rotated_features
from fairseq_lrpe.encodings.transformations import shift_keys
from fairseq_lrpe.ops import delta_rule
from fairseq_lrpe.ops.normalization import unit_vectors
from fairseq_lrpe.ops.position_index import is_consecutive
from fairseq_lrpe.ops.precision import at_least_float32
from fairseq_lrpe.utils.suggest import check_choice

KERNEL_SIZE = 4
"""Number of positions of the convolutions, as in the authors' code."""


class DeltaAttention(SelfAttention):
    """Causal linear self-attention with a delta rule, which replaces what is stored for a key.

    The output of each head is o_t = S_tᵀ q_t / √d, followed by an RMSNorm, with the state

        S_t = (I − β_t k_t k_tᵀ) Diag(α_t) S_{t−1} + β_t k_t v_tᵀ,      β_t = σ(w·x_t).

    The rules are "delta" with α = 1 (DeltaNet, Yang et al. 2024), "gated_delta" with one α per head (Gated
    DeltaNet, Yang et al. 2025), and "kda" with one per feature (Kimi Linear, Zhang et al. 2025):

        log α_t = −e^a softplus(u·x_t + b),

    where e^a of each head starts uniform in (1, 16), and softplus(b) log-uniform in (0.001, 0.1). For "kda",
    the linear layer that computes u·x_t has rank d. q, k and v are linear functions of the input without
    biases, followed by a causal depthwise convolution over 4 positions and SiLU. q and k are then normalized
    to 1 and rotated by the encoding. The published layers' output gate is not included, and their widths of
    keys and values are those of the other attention modules.

    Features that an encoding rotates together share one decay in "kda"; see
    ``encodings.delta_rules.decay_of_rotated_features``. The state for decoding, S and the
    last three inputs, has a constant size. Training takes O(L d²) time per head. For the convolutions,
    padding between tokens is a row of zeros.

    Args:
        embed_dim: embedding dimension E.
        num_heads: number of heads.
        encoding: the positional encoding or its name. It must only rotate queries and keys, as LRPE, RoPE
            and "none" do, without a decay of its own.
        rule: "delta", "gated_delta" or "kda".
        causal: True, or None if ``encoding`` is not a name.
        **options: see :class:`SelfAttention`.

    Raises:
        ValueError: for an unknown rule or an encoding that it does not support, for attention that is not
            causal, and as :class:`SelfAttention` does.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        encoding: str | Encoding,
        *,
        rule: str = "gated_delta",
        causal: bool | None = None,
        **options,
    ):
        super().__init__(embed_dim, num_heads, encoding, causal=causal, **options)
        check_choice("delta rule", rule, LINEAR_RULES[1:])
        check_delta_rule(rule, self.encoding)
        self.rule = rule
        self.left_context = max(KERNEL_SIZE - 1, self.left_context or 0)
        for name in ("q", "k", "v"):
            # The projection of zeros before the start must be zero.
            getattr(self, f"{name}_proj").register_parameter("bias", None)
            convolution = torch.empty(KERNEL_SIZE, embed_dim).uniform_(
                -(KERNEL_SIZE**-0.5), KERNEL_SIZE**-0.5
            )
            self.register_parameter(f"{name}_convolution", nn.Parameter(convolution))
        self.gates = DeltaGates(rule, num_heads, self.head_dim)
        self.norm = InputDtypeRMSNorm(self.head_dim, eps=RMS_EPS)

    def project(self, x: Tensor, parts: list[Tensor], inputs: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Returns q, k, and v with the gates as further columns, (B, H, Lk, d + 1 + ·)."""
        if parts[-1] is not x:
            raise ValueError("a delta rule computes queries, keys and values from the same inputs: omit keys")
        assert inputs is not None and self.left_context is not None
        inputs = inputs[:, self.left_context - KERNEL_SIZE + 1 :]
        queries = x.size(self.time_dim) + KERNEL_SIZE - 1
        q = self._convolve("q", inputs[:, inputs.size(1) - queries :])
        k = self._convolve("k", inputs)
        gates = self.gates(inputs[:, KERNEL_SIZE - 1 :])
        return q, k, torch.cat([self._convolve("v", inputs), gates], dim=-1)

    def _convolve(self, name, inputs):
        """Returns the projected inputs (B, H, L, d) after the convolution and SiLU."""
        y = getattr(self, f"{name}_proj")(inputs)
        length = y.size(1) - KERNEL_SIZE + 1
        rows = getattr(self, f"{name}_convolution")
        y = F.silu(sum(y[:, t : t + length] * row for t, row in enumerate(rows)))
        return y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, context: Context, past: dict | None, return_state: bool
    ) -> tuple[Tensor, dict]:
        if not is_consecutive(context.q_offset):
            raise ValueError("a delta rule accumulates over consecutive tokens: omit position_index")
        past = {"sums": None, "order": None} if past is None else past
        state = past.get("sums", past)
        if not (state is None or isinstance(state, Tensor)):
            raise ValueError(f"the state is not one of a delta rule: {STATE_REMEDY}")
        state = select_rows(state, past["order"])
        if state is not None:
            check_state_shape(tuple(state.shape[:2]), k)
        v, gates = v.split([self.head_dim, v.size(-1) - self.head_dim], dim=-1)
        o, state = self.associate(q, k, v, gates, context, state)
        return self.norm(o), {"sums": state, "order": None}

    def associate(
        self, q: Tensor, k: Tensor, v: Tensor, gates: Tensor, context: Context, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the outputs of the delta rule before the norm, and its state, both in at least float32.

        Args:
            q: queries (B, H, Lq, d), before they are normalized and encoded.
            k: keys (B, H, Lk, d), likewise.
            v: values (B, H, Lk, dv).
            gates: β, and log α if there is a decay, (B, H, Lk, 1 + ·).
            context: the context of the encoding.
            state: S before the first key, or None.
        """
        # Normalized in float32, because the rule relies on norms of 1.
        q = unit_vectors(at_least_float32(q)) * self.head_dim**-0.5
        k = unit_vectors(at_least_float32(k))
        check_norms(self.encoding)
        q, k = self.encoding(q, k, context)
        beta, log_decay = gates.split([1, gates.size(-1) - 1], dim=-1)
        if self.rule == "gated_delta":
            log_decay = log_decay.squeeze(-1)
        elif self.rule == "kda":
            log_decay = decay_of_rotated_features(log_decay, self.encoding.rotated_features, k.size(-1))
        result: Any = delta_rule(
            q,
            k,
            v,
            beta.squeeze(-1),
            log_decay=None if self.rule == "delta" else log_decay,
            key_padding_mask=context.key_padding_mask,
            state=state,
            return_state=True,
        )
        return result

    @torch.no_grad()
    def restart_positions(self, state: AttentionState) -> AttentionState:
        assert state.past is not None  # a module returned this state
        rows = shift_keys(self.encoding, state.past["sums"].mT, state.length).mT
        return complete_state(AttentionState({**state.past, "sums": rows}, 0, state.inputs))
