"""Lists the published methods: one row each, from which every model family's architectures are registered.

``python -m fairseq_lrpe.methods`` prints the table.
"""

from dataclasses import dataclass

from fairseq_lrpe.commands import as_flags
from fairseq_lrpe.encodings import ENCODINGS

ATTENTIONS = ("linear", "softmax")
LINEAR_NORMS = ("denominator", "layernorm", "content")
LINEAR_BACKENDS = ("auto", "chunk", "fla")


@dataclass(frozen=True)
class Method:
    """Gives a model's flags other defaults, ``flags``; ``source`` is the paper and table row it is from."""

    flags: dict
    source: str

    @property
    def encoding(self) -> str:
        """Returns the name of its encoding."""
        return self.flags.get("encoding", "none")

    def attentions(self) -> list[str]:
        """Returns the attentions it can be used in."""
        return [a for a in ATTENTIONS if a == "softmax" or ENCODINGS[self.encoding].decomposable]


def _lrpe(core, rotation, source, **learned):
    flags = {"encoding": "lrpe", "lrpe_core": core, "lrpe_rotation": rotation, "linear_norm": "layernorm"}
    return Method({**flags, **{f"lrpe_{what}": True for what in learned}}, source)


_TMLR, _ICLR = "LRPE, TMLR 2023", "LRPE, ICLR 2022 submission"
_LFHC = "LFHC and GCDF, Qu et al. 2021"
_THETA, _VECTOR = {"learn_theta": True}, {"learn_householder": True}

METHODS = {
    "base": Method({}, f"{_TMLR}, Tables 1-4 and 6 'Base'; {_ICLR}, Tables 2-4 'Base'"),
    "nope": Method({"token_positions": "none"}, f"{_TMLR}, Table 2 'NoPE'"),
    "rope": Method({"encoding": "rope"}, f"RoFormer, Su et al. 2021; {_TMLR}, Tables 1-4 and 6 'RoPE'"),
    "spe": Method({"encoding": "spe"}, f"Liutkus et al. 2021; {_TMLR}, Tables 1, 2 and 6 'SPE'"),
    "per": Method({"encoding": "per"}, f"PermuteFormer, Chen 2021; {_TMLR}, Tables 1-4 and 6 'PER'"),
    "t5": Method(
        {"encoding": "t5"}, f"Raffel et al. 2020; {_ICLR}, Tables 2-4 'T5'; {_LFHC}, Tables 1-3 'T5'"
    ),
    "xl": Method({"encoding": "xl"}, f"Dai et al. 2019; {_ICLR}, Table 2 'XL'; {_LFHC}, Tables 1-3 'XL'"),
    "shaw": Method({"encoding": "shaw"}, f"Shaw et al. 2018; {_LFHC}, Tables 1-3 'Shaw'"),
    "shaw_values": Method({"encoding": "shaw", "shaw_values": True}, "Shaw et al. 2018, Eqs. 3-4"),
    "lfhc": Method({"encoding": "lfhc"}, f"{_LFHC}, Tables 1-3 'LFHC'"),
    "gcdf": Method({"encoding": "gcdf"}, f"{_LFHC}, Tables 1-3 'GCDF'"),
    "deberta": Method({"encoding": "deberta"}, f"He et al. 2021; {_TMLR}, Eq. 31"),
    "kerple": Method({"encoding": "kerple"}, "Chi et al. 2022, the logarithmic variant"),
    "fire": Method({"encoding": "fire"}, "Li et al. 2024"),
    "tupe_a": Method({"encoding": "tupe", "token_positions": "none"}, "TUPE-A, Ke et al. 2021"),
    "tupe_r": Method(
        {"encoding": "tupe", "tupe_relative_bias": True, "token_positions": "none"},
        "TUPE-R, Ke et al. 2021",
    ),
    "roper": Method({"encoding": "roper"}, "Harik and Jayasiri 2022"),
    "alibi": Method({"encoding": "alibi"}, "Press et al. 2022"),
    "xpos": Method({"encoding": "xpos"}, "xPos, Sun et al. 2022, Algorithm 1"),
    "xpos_512": Method({"encoding": "xpos", "xpos_scale_base": 512}, "the same, as its public code has it"),
    "retnet": Method({"encoding": "retnet", "linear_norm": "layernorm"}, "Sun et al. 2023, Eqs. 5 and 8"),
    "lrpe_decay": Method(
        {"encoding": "lrpe_decay", "linear_norm": "layernorm"}, "TransNormerLLM, Qin et al. 2023"
    ),
    "cope": Method({"encoding": "cope"}, "CoPE, Golovneva et al. 2024"),
    "path": Method({"encoding": "path"}, "PaTH, Yang et al. 2025"),
    "cosformer": Method({"encoding": "cosformer", "feature_map": "relu"}, "Qin et al. 2022"),
    "tmlr_type1": _lrpe("unitary", "householder", f"{_TMLR}, Tables 1-4 and 6 'Type1'", **_THETA),
    "tmlr_type2": _lrpe("orthogonal", "householder", f"{_TMLR}, Tables 1-4 and 6 'Type2'", **_THETA),
    "tmlr_type3": _lrpe("permutation", "householder", f"{_TMLR}, Tables 1-4 and 6 'Type3'"),
    "iclr_type1": _lrpe("mixed", "householder", f"{_ICLR}, Table 1 'Type1'"),
    "iclr_type2": _lrpe("orthogonal", "householder", f"{_ICLR}, Table 1 'Type2'", **_THETA),
    "iclr_type3": _lrpe("orthogonal", "householder", f"{_ICLR}, Table 1 'Type3'", **_THETA, **_VECTOR),
    "iclr_type4": _lrpe("permutation", "householder", f"{_ICLR}, Table 1 'Type4'"),
    "iclr_type5": _lrpe("mixed", "odd_even", f"{_ICLR}, Table 1 'Type5'"),
    "iclr_type6": _lrpe("orthogonal", "odd_even", f"{_ICLR}, Table 1 'Type6'", **_THETA),
    "iclr_type7": _lrpe("permutation", "odd_even", f"{_ICLR}, Table 1 'Type7'"),
    "iclr_type8": _lrpe("unitary", "fft", f"{_ICLR}, Table 1 'Type8'"),
}

# TMLR Table 5: every P beside every Λ; its 'Permutation' row is the papers' fixed odd-even permutation.
for _p, _rotation in (("householder", "householder"), ("identity", "identity"), ("permutation", "odd_even")):
    for _core in ("unitary", "orthogonal", "permutation"):
        _source = f"{_TMLR}, Table 5 '{_p.capitalize()}' × '{_core.capitalize()}'"
        _learned = {} if _core == "permutation" else _THETA
        METHODS[f"ablation_{_p}_{_core}"] = _lrpe(_core, _rotation, _source, **_learned)


FAIRSEQS = {"lm": "transformer_lm", "roberta": "roberta", "transformer": "transformer"}
"""fairseq's own model of each family: the method ``fairseq``, which softmax's ``base`` has to equal."""


def architecture(attention: str, family: str, method: str) -> str:
    """Returns the name that fairseq's --arch takes; ValueError where fairseq has no model of that family."""
    if method == "fairseq" and family not in FAIRSEQS:
        raise ValueError(f"fairseq has no {family} of its own: choose a method of this plugin")
    return FAIRSEQS[family] if method == "fairseq" else f"{attention}_{family}_{method}"


def check_method(method: str, attention: str) -> None:
    """Refuses, by ValueError, a method that does not exist, or not in this attention."""
    if attention not in ATTENTIONS:
        raise ValueError(f"no attention {attention!r}: choose from {', '.join(ATTENTIONS)}")
    choices = [name for name in METHODS if attention in METHODS[name].attentions()]
    choices += ["fairseq"] * (attention == "softmax")
    if method not in choices:
        exists = method in METHODS or method == "fairseq"
        what = f"does not exist in {attention} attention" if exists else "does not exist"
        raise ValueError(f"the method {method!r} {what}: choose from {', '.join(choices)}")


def namesakes(method: str) -> list[str]:
    """Returns all methods with the same flags: a run of one is a run of each."""
    if method not in METHODS:  # fairseq's own, or a model by flags
        return [method]
    return [name for name in METHODS if METHODS[name].flags == METHODS[method].flags]


def canonical(method: str) -> str:
    """Returns the first of a method's namesakes, under whose name tables have their runs."""
    return namesakes(method)[0]


def main():
    from rich.table import Table

    from fairseq_lrpe.programs import show_wide

    table = Table("method", "attention", "flags", "source", title="--arch <attention>_<family>_<method>")
    for name, method in METHODS.items():
        flags = " ".join(as_flags(method.flags)) or "(defaults)"
        table.add_row(name, ", ".join(method.attentions()), flags, method.source)
    show_wide(table)


if __name__ == "__main__":
    main()
