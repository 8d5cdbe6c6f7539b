"""LRPE: linearized relative positional encoding, the unitary family."""

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.rotation import RotaryEncoding
from fairseq_lrpe.ops.constants import constant, derived
from fairseq_lrpe.ops.float64 import to_float64
from fairseq_lrpe.ops.orthogonal import cayley
from fairseq_lrpe.ops.permutation import (
    PermutationBuffer,
    inverse_permutation,
    odd_even_permutation,
    permutation_powers,
    permute_features,
)
from fairseq_lrpe.ops.position_index import PositionIndex
from fairseq_lrpe.ops.precision import sum_dtype
from fairseq_lrpe.ops.reflections import householder
from fairseq_lrpe.ops.rotation import (
    THETA_TYPES,
    cached_phases,
    complex_dtype,
    complex_features,
    phases,
    rotary_angles,
    rotate_halves,
    rotate_pairs,
)
from fairseq_lrpe.utils.suggest import check_choice

CORES = ("unitary", "orthogonal", "mixed", "permutation")
ROTATIONS = ("identity", "householder", "odd_even", "fft", "cayley")


@register_encoding(
    "lrpe",
    core=f"LRPE's position matrix Λ(s): {', '.join(CORES)}",
    rotation=f"LRPE's matrix P, by which q and k are multiplied before Λ(s): {', '.join(ROTATIONS)} (fft "
    "requires the unitary core)",
    learn_theta="train LRPE's angles instead of freezing them",
    learn_householder="train LRPE's Householder vector v instead of freezing it",
    theta_type="LRPE's n angles: a is 10000^(-2t/w), b is π(t+1)/(2Mn) and c is π/(2M(t+1)) for t = 0..n-1, "
    "with w rotated features and the maximum length M",
)
class LRPE(PermutationBuffer, RotaryEncoding):
    """Multiplies q and k by a unitary matrix Λ^(s) P that depends on the position s (LRPE TMLR Eq. 75).

    For a query q at position s and a key k at position t, the product is Re(qᴴ Pᴴ Λ^(t-s) P k). The outer Pᴴ
    of Eq. 75 is omitted, because it cancels.

    The option ``core`` selects Λ^(s):

        unitary      diag e^{isα_t}, t < d, as 2d real features: [Re, Im], or with fft Re and Im
                     alternating (Proposition 3.3)
        orthogonal   2×2 rotations by sα_t of the pairs (x_2t, x_2t+1), t < d/2 (Proposition 3.4 without
                     unchanged features)
        mixed        rotations of the first d//2 features (plus one if that is odd), the rest unchanged
                     (ICLR App. C.7; mix_reflect in the pseudocode)
        permutation  x_{π^s(i)} with a random permutation π (Proposition 3.5)

    The option ``rotation``, named as in the paper's code, selects P, not the rotation that depends on s:

        identity     no change
        householder  I − 2 v vᵀ/vᵀv, v ~ N(0, I) (Eq. 73)
        odd_even     odd_even_permutation of the pseudocode
        fft          discrete Fourier transform over the features, norm "ortho"
        cayley       (I − A)(I + A)⁻¹ with a learned skew-symmetric A, initially 0; with the orthogonal core,
                     it is the form of STRING (Schenck et al. 2025) and ComRoPE (Yu et al. 2025) for sequences

    ``theta`` contains the angles per position, ``v`` (d,) the Householder vector, ``permutation`` (d,) the
    gather indices of π, and ``generator`` (d(d−1)/2,) the entries of A above the diagonal. Only a learned
    theta or v, and the generator, are parameters.

    Encoding takes O(L d) time, O(L d log d) with fft, or O(L d² + d³) with cayley. The width 2d of the
    unitary core doubles the time of linear attention.

    Raises:
        ValueError: for unknown or incompatible options, or a head dimension that does not fit the core.
    """

    float32_parameters = ("theta",)

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
            raise ValueError(f"the fft rotation is complex and requires the unitary core, not {core!r}")
        if learn_theta and core == "permutation":
            raise ValueError("the permutation core has no angles to learn: set learn_theta to False")
        if learn_householder and rotation != "householder":
            raise ValueError(
                f"the {rotation} rotation has no Householder vector to learn: set learn_householder to False"
            )
        d = self.head_dim
        if core == "orthogonal" and d % 2:
            raise ValueError(f"the orthogonal core rotates pairs of features: head_dim must be even, not {d}")
        if core == "mixed" and d < 3:
            raise ValueError(
                f"the mixed core rotates half of the features: head_dim must be at least 3, not {d}"
            )
        self.core = core
        self.rotation = rotation
        self.learn_theta = learn_theta

        if core == "permutation":
            self.store_permutation(torch.randperm(d))
        else:
            width = d // 2 + d // 2 % 2 if core == "mixed" else d
            count = d if core == "unitary" else width // 2
            self.rotated_width = width
            self.angle_arguments = (theta_type, count, width, self.max_positions)
            theta = rotary_angles(*self.angle_arguments)
            dtype = sum_dtype(torch.get_default_dtype())
            self.theta = nn.Parameter(torch.empty(count, dtype=dtype).copy_(theta)) if learn_theta else theta

        if rotation == "householder":
            v = torch.randn(d)
            if learn_householder:
                # Not normalized, as in the papers' pseudocode: the longer v, the less an update turns it.
                self.v = nn.Parameter(v)
            else:
                self.register_buffer("v", v / v.norm())
        elif rotation == "cayley":
            self.generator = nn.Parameter(torch.zeros(d * (d - 1) // 2))

    @property
    def rotated_features(self) -> str:  # type: ignore[override]  # read only, because the core decides
        if self.core == "permutation":
            return "all"
        return "halves" if self.core == "unitary" and self.rotation != "fft" else "pairs"

    @property
    def scalable(self) -> bool:
        return self.core != "permutation"

    def shift_keys(self, k: Tensor, shift: int) -> Tensor:
        if self.core == "permutation":
            return permute_features(k, permutation_powers(self.permutation.argsort(-1), shift, 1))
        self.check_shift()
        table = self.position_table(k[:, :, :1], shift).conj()
        if self.core == "unitary" and self.rotation != "fft":
            return rotate_halves(k, table)
        return rotate_pairs(k, table)

    def position_table(self, x: Tensor, offset: int | PositionIndex) -> Any:
        """Returns Λ^(s) for the positions of x, as gather indices of π^s or as phases e^{isα}."""
        length = x.size(-2)
        if self.core == "permutation":
            return self.permutation_table(offset, length)
        if self.learn_theta:
            return phases(self._angles(offset, length), offset, length).to(x.device, complex_dtype(x))
        angle_arguments = (*self.angle_arguments, self.scaling_at(offset, length))
        return cached_phases(angle_arguments, offset, length, complex_dtype(x), x.device)

    def _angles(self, offset, length):
        """Returns the learned angles (n,) in float64, with the ``rope_scaling``."""
        theta = to_float64(self.theta).flatten()
        scaling = self.scaling_at(offset, length)
        return theta if scaling is None else scaling.scale(theta, self.rotated_width)

    def encode(self, x: Tensor, table: Any) -> Tensor:
        """Returns Λ^(s) P x."""
        dtype = x.dtype
        if self.rotation == "householder":
            x = householder(x, self.v)
        elif self.rotation == "odd_even":
            index = constant(odd_even_permutation, self.head_dim, device=x.device)
            x = permute_features(x, index, derived(inverse_permutation, index))
        elif self.rotation == "cayley":
            x = x @ cayley(self.generator, self.head_dim).mT.to(x.dtype)
        elif self.rotation == "fft":
            # torch's transform of empty tensors fails on CPUs.
            x = torch.fft.fft(x.to(table.real.dtype), norm="ortho") if x.numel() else x.to(table.dtype)

        if self.core == "permutation":
            return permute_features(x, *table)
        if self.core == "unitary":
            return complex_features(x, table).to(dtype)
        return rotate_pairs(x, table)
