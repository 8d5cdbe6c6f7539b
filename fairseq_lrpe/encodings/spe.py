"""Stochastic positional encoding (SPE): the base class and SineSPE."""

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.mixins import ShiftMixin
from fairseq_lrpe.encodings.table import position_tables
from fairseq_lrpe.ops.constants import constant, normal_noise
from fairseq_lrpe.ops.float64 import to_float64
from fairseq_lrpe.ops.precision import sum_dtype
from fairseq_lrpe.ops.rotation import complex_dtype, phases


class GatedSPE(ShiftMixin, Encoding):
    """Base class of gated stochastic positional encodings (Liutkus et al. 2021, Sec. 3.2).

    Features are multiplied by noise, of which a part is constant over positions. The other part depends on
    the position, with a covariance that the subclass defines. The gate g = sigmoid(gate) is the proportion of
    the constant part in the expected scores.

    Standard normal noise has one row of R = d realizations per feature, and is shared by q, k and the batch.
    The noise is drawn in each forward pass in training, and fixed otherwise, so that all decoding steps use
    the same noise.
    """

    draws_noise = True

    def add_gate(self, draws: int) -> None:
        """Adds the parameter ``gate`` (H, d); a forward pass needs ``draws`` matrices of noise per head."""
        self.gate = nn.Parameter(torch.randn(self.num_heads, self.head_dim))
        self.noise_shape = draws, self.num_heads, self.head_dim, self.head_dim

    @property
    def noise(self) -> Tensor:
        """The fixed noise (draws, H, d, R) of all calls outside of training."""
        options: Any = {"device": self.gate.device, "dtype": self.gate.dtype}
        return constant(normal_noise, self.layer, *self.noise_shape, **options)

    def draw(self) -> Tensor:
        """Returns the noise of a forward pass, (draws, H, d, R)."""
        return self.random_noise(*self.noise_shape) if self.training else self.noise

    def random_noise(self, *shape: int) -> Tensor:
        """Returns standard normal noise of a shape, drawn from torch's random state."""
        # Noise is drawn in float32 for half precision, too: another dtype gives other numbers for a seed.
        dtype = sum_dtype(self.gate.dtype)
        return torch.randn(shape, dtype=dtype, device=self.gate.device)

    def amplitudes(self) -> tuple[Tensor, Tensor]:
        """Returns the factors (H, d, 1) of the positional and of the constant noise."""
        gate = torch.sigmoid(self.gate)[..., None]
        # Both are divided by (d R)^1/4, so that products of q and k are divided by (d R)^1/2.
        scale = self.head_dim**-0.5
        return scale * (1 - gate).sqrt(), scale * gate.sqrt()

    def shift_keys(self, k: Tensor, shift: int) -> Tensor:
        raise ValueError(
            f"{self.name} cannot shift the positions of encoded keys, which are mixed with noise"
        )


@register_encoding("spe")
class SPE(GatedSPE):
    """Multiplies q and k by sines and noise; expected scores depend on i − j only (Liutkus et al. 2021).

    The encoding is gated SineSPE with one sine and R = d realizations (Liutkus et al. 2021, Sec. 3.2, and its
    public code). With f = sigmoid(freqs)/2, o = offsets and g = sigmoid(gate), queries are encoded as

        q̂_i = (q_i ⊙ cos φ_i) Z₁ + (q_i ⊙ sin φ_i) Z₂ + q_i Z₃,   φ_i = 2πfi + o,

    and keys in the same way without o, so that

        E[q̂_i·k̂_j] = Σ_n q_in k_jn ((1−g_n) softplus(gain_n)² cos(2πf_n(i−j) + o_n) / 2 + g_n).

    Each Z is normal noise (d, R) per head, whose rows are scaled to give this expectation.

    Parameters are ``freqs``, ``offsets`` and ``gains`` (H, d, 1), and ``gate`` (H, d). Encoding takes
    O(L d R) time for the product with a matrix (3d, R).
    """

    float32_parameters = ("freqs", "offsets")

    def __init__(self, **shared):
        super().__init__(**shared)
        shape = (self.num_heads, self.head_dim)
        self.freqs = nn.Parameter(torch.randn(*shape, 1) - 4)  # low initial frequencies, for long distances
        self.offsets = nn.Parameter(torch.randn(*shape, 1))
        gains = torch.randn(*shape, 1)
        self.gains = nn.Parameter(2 * gains / gains.norm(dim=-1, keepdim=True).sqrt())
        self.add_gate(draws=3)

    def forward(self, q: Tensor, k: Tensor, context: Context = START) -> tuple[Tensor, Tensor]:
        gain = nn.functional.softplus(self.gains) / 2**0.5
        positional, constant = self.amplitudes()
        z1, z2, z3 = self.draw()
        z1 = positional * gain * z1
        z2 = positional * gain * z2
        z3 = constant * z3
        # The offsets o are applied to the noise instead of the angles, so that q and k share their sines.
        cos = self.offsets.cos()
        sin = self.offsets.sin()
        q_noise = torch.cat([cos * z1 + sin * z2, cos * z2 - sin * z1, z3], dim=1)
        k_noise = torch.cat([z1, z2, z3], dim=1)
        q_table, k_table = position_tables(self._sines, q, k, context)
        q = self._features(q, q_table)
        k = self._features(k, k_table)
        return q @ q_noise.to(q.dtype), k @ k_noise.to(k.dtype)

    def _sines(self, x, offset):
        """Returns cos and sin of 2πfs, (H, L, d) each, for the positions s of x."""
        omega = (torch.sigmoid(to_float64(self.freqs)) * torch.pi).flatten()
        table = phases(omega, offset, x.size(-2)).to(x.device, complex_dtype(x))
        table = table.unflatten(1, (self.num_heads, -1)).transpose(0, 1)
        return table.real.to(x.dtype), table.imag.to(x.dtype)

    @staticmethod
    def _features(x, table):
        cos, sin = table
        return torch.cat([x * cos, x * sin, x], dim=-1)
