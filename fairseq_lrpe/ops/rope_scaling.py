"""Scaling of rotation angles for sequences that are longer than those of the training."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fairseq_lrpe.utils.suggest import choices

SCALINGS = ("linear", "ntk", "dynamic", "yarn", "llama3", "longrope")
ROPE_BASE = 10000.0
"""Base of RoPE's angles, ROPE_BASE^(-2t/d)."""
_NEED_LENGTH = ("dynamic", "yarn", "llama3", "longrope")
_YARN_FAST = 32
_YARN_SLOW = 1
_LLAMA3_HIGH = 4
_LLAMA3_LOW = 1


@dataclass(frozen=True)
class RopeScaling:
    """Scales rotation angles θ for sequences that are s times as long as those of the training.

    With θ_t, t = 0, .., n-1, the angles per position, M the ``original_length`` and r_t = M·|θ_t|/2π the
    number of rotations in a sequence of the training, the scaled angles are

        linear   θ_t / s (position interpolation, Chen et al. 2023)
        ntk      θ_t · s^(-t/(n-1)), which for RoPE is the base 10000·s^(d/(d-2)) (bloc97 2023; YaRN, Peng et
                 al. 2023, Definition 1)
        dynamic  ntk with s·L/M - (s - 1) in place of s if the current length L is above M, otherwise θ_t; the
                 default s = 1 gives L/M (emozilla 2023; Peng et al. 2023, Section 3.3)
        yarn     γ_t·θ_t + (1 - γ_t)·θ_t / s, where γ decreases from 1 to 0, linearly in log θ, between the
                 angles with r = 32 and r = 1. As in the authors' code, both ends of this range are rounded
                 outwards to whole indices of the ladder 10000^(-2t/w), at least 0, of w rotated features.
                 Queries and keys are multiplied by 0.1·ln s + 1 (Peng et al. 2023, Section 3.4)
        llama3   the same with γ_t = (r_t - 1)/(4 - 1), limited to [0, 1], and no factor for queries and keys
                 (Llama 3.1, Grattafiori et al. 2024)
        longrope θ_t / λ_t with the given λ, which a search has found. Queries and keys are multiplied by
                 √(1 + ln s / ln M) (Ding et al. 2024). Unlike in Hugging Face's code, λ also applies to
                 sequences of at most M positions

    For RoPE, these are the definitions of Hugging Face's ``ROPE_INIT_FUNCTIONS``. The definitions apply to
    any angles, also to learned and to negative ones.

    Args:
        type: one of ``SCALINGS``.
        factor: s, at least 1; required unless ``type`` is "dynamic".
        original_length: M, the length of the sequences in training; required for dynamic, yarn, llama3 and
            longrope.
        divisors: λ, one for each angle; required for longrope, and only accepted there.

    Raises:
        ValueError: for an unknown type, or a factor, length or divisor that is missing or too small.
    """

    type: str
    factor: float | None = None
    original_length: int | None = None
    divisors: tuple[float, ...] | None = None

    def __post_init__(self):
        if self.type not in SCALINGS:
            raise ValueError(f"unknown rope scaling {self.type!r}{choices(self.type, SCALINGS)}")
        if self.factor is None and self.type != "dynamic":
            raise ValueError(f"{self.type} scaling needs a factor of at least 1, such as {self.type}:4")
        if self.factor is not None and not 1 <= self.factor < math.inf:
            raise ValueError(f"the factor of rope scaling must be finite and at least 1, not {self.factor}")
        if self.original_length is None and self.type in _NEED_LENGTH:
            raise ValueError(
                f"{self.type} scaling needs the length in training, such as 512 in {self.type}:4:512"
            )
        if self.original_length is not None and self.original_length < 1:
            raise ValueError(f"the length in training must be at least 1, not {self.original_length}")
        if (self.divisors is not None) != (self.type == "longrope"):
            raise ValueError(
                "longrope scaling, and no other one, needs a divisor for each angle, such as "
                "longrope:4:512:1,1.5,4,4"
            )
        if self.divisors and not all(0 < divisor < math.inf for divisor in self.divisors):
            raise ValueError(f"the divisors of longrope scaling must be positive, not {self.divisors}")
        if self.type == "longrope" and self._length < 2:
            raise ValueError("longrope scaling needs a length in training of at least 2")

    @classmethod
    def parse(
        cls, text: str, *, factor: float | None = None, original_length: int | None = None
    ) -> "RopeScaling":
        """Returns the scaling of a text TYPE[:FACTOR[:LENGTH]], such as "yarn:4:512".

        The text of longrope ends with the divisors, such as "longrope:4:512:1,1.5,4,4".

        ``factor`` and ``original_length`` replace those that the text omits, except the factor of dynamic.

        Raises:
            ValueError: for a text that is not of this form, or values that :class:`RopeScaling` rejects.
        """
        name, *numbers = text.split(":")
        divisors = None
        if name == "dynamic":
            factor = None
        try:
            if name == "longrope" and len(numbers) == 3:
                divisors = tuple(map(float, numbers.pop().split(",")))
            if numbers:
                factor = float(numbers.pop(0))
            if numbers:
                original_length = int(numbers.pop(0))
        except ValueError:
            numbers = ["invalid"]
        if numbers:
            raise ValueError(
                f"rope scaling must be TYPE, TYPE:FACTOR or TYPE:FACTOR:LENGTH, such as yarn:4:512, not "
                f"{text!r}"
            )
        return cls(name, factor, original_length, divisors)

    @property
    def _factor(self) -> float:
        assert self.factor is not None  # checked by __post_init__
        return self.factor

    @property
    def _length(self) -> int:
        assert self.original_length is not None  # checked by __post_init__
        return self.original_length

    def __str__(self) -> str:
        """Returns the text that :meth:`parse` accepts."""
        factor = 1 if self.factor is None else self.factor
        text = f"{self.type}:{factor}".removesuffix(".0")
        if self.original_length is not None:
            text += f":{self.original_length}"
        if self.divisors:
            text += ":" + ",".join(map(repr, self.divisors))
        return text

    @property
    def attention_factor(self) -> float:
        """The factor of queries and of keys; scores are multiplied by its square."""
        if self.type == "yarn":
            return 0.1 * math.log(self._factor) + 1
        if self.type == "longrope":
            return math.sqrt(1 + math.log(self._factor) / math.log(self._length))
        return 1.0

    def at_length(self, length: int) -> "RopeScaling | None":
        """Returns the scaling for a call with positions 0 to ``length`` - 1, or None for no scaling.

        A "dynamic" scaling becomes "ntk" with the current factor; all others are returned unchanged.
        """
        if self.type != "dynamic":
            return self
        if length <= self._length:
            return None
        factor = self.factor or 1
        return replace(self, type="ntk", factor=factor * length / self._length - (factor - 1))

    def scale(self, theta: Tensor, width: int, base: float = ROPE_BASE) -> Tensor:
        """Returns the scaled angles; the result is differentiable in ``theta``.

        Args:
            theta: angles per position (..., n).
            width: w, the number of rotated features of the ladder base^(-2t/w), only used by yarn.
            base: the base of this ladder.

        Raises:
            ValueError: if longrope has another number of divisors than angles.
        """
        if self.type == "linear":
            return theta / self._factor
        if self.type == "ntk":
            n = theta.size(-1)
            t = torch.arange(n, dtype=theta.dtype, device=theta.device)
            return theta * self._factor ** (-t / max(1, n - 1))
        if self.type == "longrope":
            divisors = self.divisors or ()
            if len(divisors) != theta.size(-1):
                raise ValueError(
                    f"longrope scaling needs {theta.size(-1)} divisors, one for each angle, not "
                    f"{len(divisors)}"
                )
            return theta / torch.tensor(divisors, dtype=theta.dtype, device=theta.device)
        kept = self._kept_share(theta, width, base)
        return theta * (kept + (1 - kept) / self._factor)

    def _kept_share(self, theta, width, base):
        """Returns γ, the share of each angle that is not divided by s (yarn and llama3)."""
        rotation = 2 * math.pi / self._length  # the angle of one rotation in the training
        size = theta.abs()
        if self.type == "llama3":
            return ((size / rotation - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)).clamp(0, 1)

        per_index = 2 * math.log(base) / width
        first = max(0, math.floor(-math.log(_YARN_FAST * rotation) / per_index))
        last = min(width - 1, math.ceil(-math.log(_YARN_SLOW * rotation) / per_index))
        # The clamp keeps the gradient of an angle of 0 finite.
        index = -size.clamp(min=torch.finfo(size.dtype).tiny).log() / per_index
        return 1 - ((index - first) / max(last - first, 0.001)).clamp(0, 1)
