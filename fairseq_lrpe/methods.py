"""Table of published methods, for each of which every model family registers architectures.

``lrpe methods`` prints the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.suggest import choices

ATTENTIONS = ("linear", "softmax")
DELTA_FLAGS = {"feature_map": "silu", "scale_queries": True, "linear_norm": "rmsnorm"}
"""Flags of linear attention with a rule other than "additive", which has no other values."""


@dataclass(frozen=True)
class Method:
    """A published method.

    Attributes:
        flags: {flag: value}, which replaces default values of a model's flags.
        source: paper, and the tables and rows in which the method is published.
    """

    flags: dict
    source: str

    @property
    def encoding(self) -> str:
        return self.flags.get("encoding", "none")

    @property
    def encoding_class(self) -> type:
        from fairseq_lrpe.encodings import ENCODINGS  # imports torch, which takes seconds

        return ENCODINGS[self.encoding]

    @property
    def bidirectional(self) -> bool:
        """Whether the method also works in attention that is not causal."""
        return self.encoding_class.bidirectional and "linear_rule" not in self.flags

    def attentions(self) -> list[str]:
        if "linear_rule" in self.flags:
            return ["linear"]
        return list(ATTENTIONS) if self.encoding_class.decomposable else ["softmax"]


_LAYERNORM = {"linear_norm": "layernorm"}  # in place of the denominator of linear attention


def _lrpe(core, rotation, source, **learned):
    flags = {"encoding": "lrpe", "lrpe_core": core, "lrpe_rotation": rotation, **_LAYERNORM}
    return Method({**flags, **{f"lrpe_{option}": True for option in learned}}, source)


# The published layers of gated linear attention.
_WITHOUT_FEATURE_MAP = {"feature_map": "identity", "linear_norm": "rmsnorm", "scale_queries": True}

_TMLR = "LRPE, TMLR 2023"
_ICLR = "LRPE, ICLR 2023 submission"
_ALL = "Tables 2-4, 8 and 9"
_LFHC = "LFHC and GCDF, Qu et al. 2021"
_THETA = {"learn_theta": True}
_VECTOR = {"learn_householder": True}
_OPEN = 5.0  # initial bias of forget gates, as x-transformers (lucidrains) proposes: they start at 0.993

METHODS = {
    "base": Method({}, f"{_TMLR}, Tables 1-4 and 6 'Base'; {_ICLR}, {_ALL} 'Base'"),
    "nope": Method({"token_positions": "none"}, f"{_TMLR}, Table 2 'NoPE'"),
    "rope": Method(
        {"encoding": "rope"},
        f"RoFormer, Su et al. 2021; {_TMLR}, Tables 1-4 and 6 'RoPE'; {_ICLR}, {_ALL} 'RoPE'",
    ),
    "spe": Method(
        {"encoding": "spe"}, f"Liutkus et al. 2021; {_TMLR}, Tables 1, 2 and 6 'SPE'; {_ICLR}, {_ALL} 'SPE'"
    ),
    "conv_spe": Method({"encoding": "conv_spe"}, "ConvSPE, Liutkus et al. 2021"),
    "per": Method(
        {"encoding": "per"},
        f"PermuteFormer, Chen 2021; {_TMLR}, Tables 1-4 and 6 'PER'; {_ICLR}, {_ALL} 'PER'",
    ),
    "t5": Method({"encoding": "t5"}, f"Raffel et al. 2020; {_ICLR}, {_ALL} 'T5'; {_LFHC}, Tables 1-3 'T5'"),
    "xl": Method({"encoding": "xl"}, f"Dai et al. 2019; {_ICLR}, Table 2 'XL'; {_LFHC}, Tables 1-3 'XL'"),
    "shaw": Method({"encoding": "shaw"}, f"Shaw et al. 2018; {_LFHC}, Tables 1-3 and 5-7 'Shaw'"),
    "shaw_values": Method({"encoding": "shaw", "shaw_values": True}, "Shaw et al. 2018, Eqs. 3-4"),
    "nezha": Method({"encoding": "nezha"}, "NEZHA, Wei et al. 2019"),
    "lfhc": Method({"encoding": "lfhc"}, f"{_LFHC}, Tables 1-3 and 5-7 'LFHC'"),
    "lfhc_floor": Method({"encoding": "lfhc", "lfhc_rounding": "floor"}, f"{_LFHC}, Eq. 9 as printed"),
    "gcdf": Method({"encoding": "gcdf"}, f"{_LFHC}, Tables 1-3 'GCDF'"),
    "deberta": Method({"encoding": "deberta"}, f"He et al. 2021; {_TMLR}, Eq. 31"),
    "kerple": Method({"encoding": "kerple"}, "Chi et al. 2022, the logarithmic variant"),
    "kerple_power": Method(
        {"encoding": "kerple", "kerple_power": True}, "Chi et al. 2022, the power variant"
    ),
    "sandwich": Method({"encoding": "sandwich"}, "Chi et al. 2023"),
    "dape": Method({"encoding": "dape"}, "DAPE with KERPLE's bias, Zheng et al. 2024"),
    "dape_alibi": Method(
        {"encoding": "dape", "dape_bias": "alibi"}, "DAPE with ALiBi's bias, Zheng et al. 2024"
    ),
    "content_bias": Method({"encoding": "content_bias"}, "the bias of Inkling (Thinking Machines)"),
    "gaussian": Method({"encoding": "gaussian"}, "Gaussian Transformer, Guo et al. 2019"),
    **{
        f"huang_{n}": Method({"encoding": "huang", "huang_method": n}, f"Huang et al. 2020, method {n}")
        for n in (1, 2, 3, 4)
    },
    "fire": Method({"encoding": "fire"}, "Li et al. 2024"),
    "tupe_a": Method({"encoding": "tupe", "token_positions": "none"}, "TUPE-A, Ke et al. 2021"),
    "tupe_r": Method(
        {"encoding": "tupe", "tupe_relative_bias": True, "token_positions": "none"},
        "TUPE-R, Ke et al. 2021",
    ),
    "roper": Method({"encoding": "roper"}, "Harik and Jayasiri 2022"),
    "rope_values": Method({"encoding": "rope_values"}, "RoPE on q, k and v, Su 2021, after Eq. 17"),
    "p_rope": Method({"encoding": "p_rope"}, "p-RoPE with p = 0.75, Barbero et al. 2025"),
    "fope": Method({"encoding": "fope", **_LAYERNORM}, "FoPE, Hua et al. 2025"),
    "rope_mixed": Method({"encoding": "rope_mixed", **_LAYERNORM}, "RoPE-Mixed, Heo et al. 2024"),
    "liere": Method({"encoding": "liere", **_LAYERNORM}, "LieRE, Ostmeier et al. 2025"),
    "liere_8": Method(
        {"encoding": "liere", "liere_block_size": 8, **_LAYERNORM},
        "LieRE with blocks of 8 features, Ostmeier et al. 2025",
    ),
    "axial_rope": Method({"encoding": "axial_rope"}, "axial RoPE, Heo et al. 2024"),
    "pope": Method(
        {"encoding": "pope", "feature_map": "identity", **_LAYERNORM}, "PoPE, Gopalakrishnan et al. 2025"
    ),
    "string": Method(
        {
            "encoding": "lrpe",
            "lrpe_core": "orthogonal",
            "lrpe_rotation": "cayley",
            "lrpe_learn_theta": True,
            **_LAYERNORM,
        },
        "Cayley-STRING, Schenck et al. 2025; ComRoPE, Yu et al. 2025, in sequences",
    ),
    "alibi": Method({"encoding": "alibi"}, "Press et al. 2022"),
    "xpos": Method({"encoding": "xpos"}, "xPos, Sun et al. 2022, Algorithm 1"),
    "xpos_512": Method({"encoding": "xpos", "xpos_scale_base": 512}, "xPos, as in its public code"),
    "retnet": Method({"encoding": "retnet", **_LAYERNORM}, "Sun et al. 2023, Eqs. 5 and 8"),
    "lrpe_decay": Method({"encoding": "lrpe_decay", **_LAYERNORM}, "TransNormerLLM, Qin et al. 2023"),
    "cope": Method({"encoding": "cope"}, "CoPE, Golovneva et al. 2024"),
    "stick_breaking": Method({"encoding": "stick_breaking"}, "Tan et al. 2025"),
    "stick_breaking_norm": Method(
        {"encoding": "stick_breaking_norm"},
        "Tan et al. 2025, with the normalized heads of the trained models",
    ),
    "path": Method({"encoding": "path"}, "PaTH, Yang et al. 2025"),
    "path_fox": Method({"encoding": "path_fox"}, "PaTH-FoX, Yang et al. 2025"),
    "fox": Method({"encoding": "fox"}, "Forgetting Transformer, Lin et al. 2025"),
    "fox_rope": Method({"encoding": "fox_rope"}, "Forgetting Transformer with RoPE, Lin et al. 2025"),
    "cable": Method({"encoding": "fox", "fox_no_bias": True}, "CABLE, Veisi et al. 2025"),
    "fox_open": Method({"encoding": "fox", "fox_bias": _OPEN}, "Forgetting Transformer, with open gates"),
    "fox_rope_open": Method(
        {"encoding": "fox_rope", "fox_rope_bias": _OPEN}, "Forgetting Transformer with RoPE and open gates"
    ),
    "path_fox_open": Method({"encoding": "path_fox", "path_fox_bias": _OPEN}, "PaTH-FoX, with open gates"),
    "cable_open": Method(
        {"encoding": "fox", "fox_no_bias": True, "fox_bias": _OPEN}, "CABLE, with open gates"
    ),
    "gla": Method({"encoding": "gla", **_LAYERNORM}, "GLA, Yang et al. 2024"),
    "gla_published": Method(
        {"encoding": "gla", "gla_init_std": 0.02, **_WITHOUT_FEATURE_MAP},
        "GLA as in flash-linear-attention, without its output gate",
    ),
    "wall": Method({"encoding": "wall", **_WITHOUT_FEATURE_MAP}, "wall attention, Averbuch and Pai 2026"),
    "selective_rope": Method(
        {"encoding": "selective_rope", **_LAYERNORM}, "Selective RoPE, Movahedi et al. 2025"
    ),
    "selective_rope_published": Method(
        {
            "encoding": "selective_rope",
            "selective_rope_rank": 32,
            "selective_rope_init_std": 0.02,
            "selective_rope_normalize_heads": True,
            **_WITHOUT_FEATURE_MAP,
        },
        "Selective RoPE with the settings of its public code, Movahedi et al. 2025",
    ),
    "selective_rope_gla": Method(
        {"encoding": "selective_rope_gla", **_WITHOUT_FEATURE_MAP},
        "Selective RoPE with GLA's gates, Movahedi et al. 2025",
    ),
    "grape": Method({"encoding": "grape", **_LAYERNORM}, "contextual GRAPE, Zhang et al. 2025b"),
    "mamba3_rope": Method(
        {"encoding": "mamba3_rope", **_LAYERNORM}, "the rotation of Mamba-3, Lahoti et al. 2026"
    ),
    "selective_rope_fox": Method(
        {"encoding": "selective_rope_fox", **_LAYERNORM},
        "Selective RoPE with a forget gate, Movahedi et al. 2025",
    ),
    "selective_rope_fox_open": Method(
        {"encoding": "selective_rope_fox", "selective_rope_fox_bias": _OPEN, **_LAYERNORM},
        "Selective RoPE with a forget gate, with open gates",
    ),
    "delta": Method({"linear_rule": "delta", **DELTA_FLAGS}, "DeltaNet, Yang et al. 2024"),
    "gated_delta": Method(
        {"linear_rule": "gated_delta", **DELTA_FLAGS},
        "Gated DeltaNet, Yang et al. 2025, which Qwen3-Next uses",
    ),
    "kda": Method(
        {"linear_rule": "kda", **DELTA_FLAGS}, "Kimi Delta Attention of Kimi Linear, Zhang et al. 2025"
    ),
    "cosformer": Method({"encoding": "cosformer", "feature_map": "relu"}, "Qin et al. 2022"),
    "tmlr_type1": _lrpe("unitary", "householder", f"{_TMLR}, Tables 1-4 and 6 'Type1'", **_THETA),
    "tmlr_type2": _lrpe("orthogonal", "householder", f"{_TMLR}, Tables 1-4 and 6 'Type2'", **_THETA),
    "tmlr_type3": _lrpe("permutation", "householder", f"{_TMLR}, Tables 1-4 and 6 'Type3'"),
    "iclr_type1": _lrpe("mixed", "householder", f"{_ICLR}, Tables 1-4 and 8 'Type1'"),
    "iclr_type2": _lrpe(
        "orthogonal", "householder", f"{_ICLR}, Tables 1, 2, 4, 5, 8 and 9 'Type2'", **_THETA
    ),
    "iclr_type3": _lrpe(
        "orthogonal", "householder", f"{_ICLR}, Tables 1, 2, 4 and 8 'Type3'", **_THETA, **_VECTOR
    ),
    "iclr_type4": _lrpe("permutation", "householder", f"{_ICLR}, Tables 1, 2, 4 and 8 'Type4'"),
    "iclr_type5": _lrpe("mixed", "odd_even", f"{_ICLR}, Tables 1-4 and 8 'Type5'"),
    "iclr_type6": _lrpe("orthogonal", "odd_even", f"{_ICLR}, Tables 1, 2, 4, 5 and 8 'Type6'", **_THETA),
    "iclr_type7": _lrpe("permutation", "odd_even", f"{_ICLR}, Tables 1, 2, 4 and 8 'Type7'"),
    "iclr_type8": _lrpe("unitary", "fft", f"{_ICLR}, Tables 1, 2, 4 and 8 'Type8'"),
}

# TMLR Table 5 combines every P with every Λ. Its 'Permutation' is the fixed odd-even permutation of the
# papers.
for _p, _rotation in (("householder", "householder"), ("identity", "identity"), ("permutation", "odd_even")):
    for _core in ("unitary", "orthogonal", "permutation"):
        _source = f"{_TMLR}, Table 5 '{_p.capitalize()}' × '{_core.capitalize()}'"
        if (_p, _core) == ("identity", "orthogonal"):
            _source += f"; {_ICLR}, Table 5 'Identity'"
        _learned = {} if _core == "permutation" else _THETA
        METHODS[f"ablation_{_p}_{_core}"] = _lrpe(_core, _rotation, _source, **_learned)


LISTING = "`lrpe methods` lists the methods and their attentions"
UNKNOWN = f"{LISTING}; your own needs --import FILE.py (LRPE_IMPORT=FILE.py with fairseq's commands)"
"""End of messages about an unknown method."""

FAIRSEQ_ARCHITECTURES = {"lm": "transformer_lm", "roberta": "roberta", "transformer": "transformer"}
"""{family: fairseq's architecture} of the method ``fairseq``, which equals ``base`` in softmax attention."""


def register_method(name: str, flags: Mapping[str, object], source: str) -> None:
    """Registers a method of a module outside this package, for which architectures are then created.

    Args:
        name: name of the method, such as "mine" for the architecture ``linear_lm_mine``.
        flags: {flag with underscores: value}, such as {"encoding": "mine", "mine_rate": 0.1}.
        source: where the method is from, which `lrpe methods` and the atlas show.

    Raises:
        UserError: if the name exists, a flag or the encoding is unknown, or models have been imported.
    """
    from fairseq_lrpe.method_validation import check_flags, check_name  # imports torch, which takes seconds

    method = Method(dict(flags), source)
    if METHODS.get(name) == method:  # a cell of a notebook is executed again
        return
    check_name(name, METHODS)
    check_flags(name, flags)
    METHODS[name] = method


def architecture(attention: str, family: str, method: str) -> str:
    """Returns the value of --arch; raises a UserError if the family does not support the method."""
    if method == "fairseq" and family not in FAIRSEQ_ARCHITECTURES:
        raise UserError(
            f"the method 'fairseq' does not exist for the family {family!r}: choose another method; {LISTING}"
        )
    if method in METHODS and family != "lm" and not METHODS[method].bidirectional:
        raise UserError(f"the method {method!r} works only in causal attention: use it in a language model")
    return FAIRSEQ_ARCHITECTURES[family] if method == "fairseq" else f"{attention}_{family}_{method}"


def check_method(method: str, attention: str, remedy: str = "use {} attention") -> None:
    """Raises a UserError if a method is unknown or does not exist in an attention.

    The ``remedy`` can contain {} for an attention in which the method exists.
    """
    if attention not in ATTENTIONS:
        raise UserError(f"unknown attention {attention!r}{choices(attention, ATTENTIONS)}")
    known = [*METHODS, "fairseq"]
    if method not in known:
        raise UserError(f"unknown method {method!r}{choices(method, known, UNKNOWN)}")
    attentions = METHODS[method].attentions() if method in METHODS else ["softmax"]
    if attention not in attentions:
        remedy = remedy.format(attentions[0])
        raise UserError(f"the method {method!r} does not exist in {attention} attention: {remedy}")


def aliases(method: str) -> list[str]:
    """Returns all methods with the flags of ``method``, including ``method``; they share their runs."""
    if method not in METHODS:  # the method "fairseq", or a model that is configured by flags
        return [method]
    return [name for name in METHODS if METHODS[name].flags == METHODS[method].flags]


def canonical(method: str) -> str:
    """Returns the first alias of a method, after which the folders of the runs of all aliases are named."""
    return aliases(method)[0]
