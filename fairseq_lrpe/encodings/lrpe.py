"""Linearized relative positional encoding: the unitary family."""

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, at_positions, check_choice, register_encoding
from fairseq_lrpe.ops.householder import householder
from fairseq_lrpe.ops.permutation import odd_even_permutation, permutation_powers, permute_features
from fairseq_lrpe.ops.rotation import (
    THETA_TYPES,
    complex_dtype,
    complex_features,
    fixed_phases,
    phases,
    rotate_pairs,
    theta_ladder,
    turn_halves,
)

CORES = ("unitary", "orthogonal", "mixed", "permutation")
ROTATIONS = ("identity", "householder", "odd_even", "fft")


@register_encoding(
    "lrpe",
    core=f"LRPE's position matrix Λ(s): {', '.join(CORES)}",
    rotation=f"LRPE's matrix P before it: {', '.join(ROTATIONS)} (fft with the unitary core only)",
    learn_theta="learn LRPE's angles instead of keeping them",
    learn_householder="learn the Householder vector v instead of keeping the random one",
    theta_type="LRPE's angles: a = 10000^(-2t/w), b = linear, c = harmonic in max positions",
)
class LRPE(Encoding):
    """Multiplies q and k by Λ^(s) P, a unitary matrix of the position s (LRPE TMLR Eq. 75):

        x̃_s = Λ^(s) P x, so that q̃_s·k̃_t = Re(qᴴ Pᴴ Λ^(t-s) P k); the outer Pᴴ cancels.

    Λ^(s), ``core``:
        unitary      diag e^{isα_t}, t < d, in the real form [Re, Im] of width 2d (Proposition 3.3)
        orthogonal   2×2 rotations by sα_t of the pairs (x_2t, x_2t+1), t < d/2 (Proposition 3.4, q = 0)
        mixed        the same for the first e = d//2 features (one more if odd), the rest kept
                     (q = ⌊d/2⌋, ICLR App. C.7; the pseudocode's ``mix_reflect``)
        permutation  x_{π^s(i)} with a random π (Proposition 3.5)
    P, ``rotation``:
        identity
        householder  I − 2 v vᵀ/vᵀv, v ~ N(0, I) (Eq. 73)
        odd_even     the pseudocode's ``odd_even_permutation``
        fft          the discrete Fourier transform over the features, norm "ortho"

    Parameters: ``theta`` (angles per position, a frozen float64 tensor unless learned), ``v`` (d,),
    the buffer ``permutation`` (d,). A learned theta is a parameter like others: under --fp16 it is
    rounded to float16, for q and k alike, so that scores stay relative.

    O(L d), and O(L d log d) with fft; linear attention then costs twice as much with the unitary core.
    """

    def __init__(
        self,
        *,
        core: str = "orthogonal",
        rotation: str = "householder",
        learn_theta: bool = False,
        learn_householder: bool = False,
        theta_type: str = "a",
        **shared,
    ):
        super().__init__(**shared)
        check_choice("lrpe core", core, CORES)
        check_choice("lrpe rotation", rotation, ROTATIONS)
        check_choice("lrpe theta type", theta_type, THETA_TYPES)
        if rotation == "fft" and core != "unitary":
            raise ValueError(f"the fft rotation is complex and needs the unitary core, not {core!r}")
        if learn_theta and core == "permutation":
            raise ValueError("the permutation core has no angles to learn: drop learn_theta")
        if learn_householder and rotation != "householder":
            raise ValueError(
                f"the {rotation} rotation has no Householder vector to learn: drop learn_householder"
            )
        d = self.head_dim
        if core == "orthogonal" and d % 2:
            raise ValueError(
                f"the orthogonal core turns pairs of features: the head dim must be even, not {d}"
            )
        if core == "mixed" and d < 3:
            raise ValueError(
                f"the mixed core turns one half of the features: the head dim must be at least 3, not {d}"
            )
        self.core, self.rotation = core, rotation

        if core == "permutation":
            self.register_buffer("permutation", torch.randperm(d))
        else:
            width = d // 2 + d // 2 % 2 if core == "mixed" else d
            count = d if core == "unitary" else width // 2
            self.rotated = width
            self.ladder = (theta_type, count, width, self.max_positions)
            theta = theta_ladder(*self.ladder)
            self.theta = nn.Parameter(theta.to(torch.get_default_dtype())) if learn_theta else theta

        if rotation == "householder":
            v = torch.randn(d)
            v = v / v.norm()
            if learn_householder:
                self.v = nn.Parameter(v)
            else:
                self.register_buffer("v", v)
        elif rotation == "odd_even":
            self.register_buffer("odd_even", odd_even_permutation(d), persistent=False)

    def forward(self, q: Tensor, k: Tensor, q_offset: int = 0, k_offset: int = 0) -> tuple[Tensor, Tensor]:
        at_q, at_k = at_positions(self._positions, q, k, q_offset, k_offset)
        return self._encode(q, at_q), self._encode(k, at_k)

    def earlier(self, k: Tensor, steps: int) -> Tensor:
        if self.core == "permutation":
            return permute_features(k, permutation_powers(self.permutation.argsort(-1), steps, 1))
        back = self._phases(k, steps, 1).conj()
        if self.core == "unitary" and self.rotation != "fft":
            return turn_halves(k, back)
        turned = rotate_pairs(k[..., : 2 * back.size(-1)], back)
        return torch.cat([turned, k[..., 2 * back.size(-1) :]], dim=-1)

    def _positions(self, x, offset):
        """Λ^(s) for the positions of x: gather indices, or phases e^{isα}."""
        length = x.size(-2)
        if self.core == "permutation":
            return permutation_powers(self.permutation, offset, length)
        return self._phases(x, offset, length)

    def _phases(self, x, offset, length):
        if isinstance(self.theta, nn.Parameter):
            return phases(self.theta, offset, length).to(complex_dtype(x))
        return fixed_phases(self.ladder, offset, length, complex_dtype(x), x.device)

    def _encode(self, x, position):
        """Λ^(s) P x."""
        dtype = x.dtype
        if self.rotation == "householder":
            x = householder(x, self.v)
        elif self.rotation == "odd_even":
            x = permute_features(x, self.odd_even)
        elif self.rotation == "fft":
            x = torch.fft.fft(x.to(position.real.dtype), norm="ortho")

        if self.core == "permutation":
            return permute_features(x, position)
        if self.core == "unitary":
            return complex_features(x, position).to(dtype)
        if self.core == "orthogonal":
            return rotate_pairs(x, position)
        turned = rotate_pairs(x[..., : self.rotated], position)
        return torch.cat([turned, x[..., self.rotated :]], dim=-1)
