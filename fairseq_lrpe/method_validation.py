"""Validation of a method that a module outside this package registers."""

import re
import sys
from collections.abc import Mapping

from fairseq_lrpe.encodings import ENCODINGS, encoding_options
from fairseq_lrpe.positions import POSITIONS
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.suggest import choices

SHARED_FLAGS = (
    "linear_norm",
    "linear_rule",
    "feature_map",
    "scale_queries",
    "linear_backend",
    "token_positions",
    "encoding_interval",
    "interval_encoding",
    "encoding_window",
)
"""Flags of a method that are not options of its encoding."""
NAME = re.compile(r"[a-z][a-z0-9_]*")
RESERVED = ("fairseq", "learned", "randomized", "sinusoidal")
"""Names of fairseq's own models and of token positions, which tables and the atlas show beside methods."""


def check_name(name: str, methods: Mapping) -> None:
    """Raises a UserError if a new method cannot have a name.

    Args:
        name: name of the new method.
        methods: the methods that exist.
    """
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise UserError(
            f"{name!r} cannot be the name of a method: use lower-case letters, digits and underscores"
        )
    if name in methods:
        raise UserError(f"the method {name!r} exists already: choose another name")
    if name in (*RESERVED, *POSITIONS):
        raise UserError(f"the name {name!r} is reserved for token positions or fairseq: choose another name")
    # Flags are made when fairseq_lrpe.config is imported, and architectures afterwards.
    if hasattr(sys.modules.get("fairseq_lrpe.config"), "PositionConfig"):
        raise UserError(
            f"the method {name!r} is registered too late for its architectures: import its module before "
            "fairseq_lrpe.models, or name it in LRPE_IMPORT"
        )


def check_flags(name: str, flags: Mapping[str, object]) -> None:
    """Raises a UserError if a method has an unknown flag or encoding, or an option of the wrong type.

    A method can have the name of an encoding only if it has this encoding.
    """
    if name in ENCODINGS and flags.get("encoding") != name:
        raise UserError(f"{name!r} is the name of an encoding that the method lacks: choose another name")
    known = dict.fromkeys(("encoding", *SHARED_FLAGS))
    for flag in ("encoding", "interval_encoding"):
        encoding = flags.get(flag, "none")
        if encoding not in ENCODINGS:
            listing = "register an encoding before its methods; `lrpe methods --flags` lists the encodings"
            raise UserError(
                f"the method {name!r} has an unknown encoding {encoding!r}"
                f"{choices(encoding, ENCODINGS, listing)}"
            )
        for option, default in encoding_options(ENCODINGS[encoding]).items():
            known[f"{encoding}_{option.rstrip('_')}"] = default
    for flag, value in flags.items():
        if flag not in known:
            raise UserError(f"the method {name!r} has an unknown flag {flag!r}{choices(flag, known)}")
        default = known[flag]
        kinds = (int, float) if isinstance(default, float) else type(default)
        is_bool = isinstance(value, bool)
        if default is not None and (not isinstance(value, kinds) or is_bool != isinstance(default, bool)):
            raise UserError(
                f"the method {name!r} has {flag} = {value!r}: use a value of the type of {default!r}"
            )
