"""Traits of encodings, and mixins: a member that attention would never use is refused, in whatever class."""

import pytest

from fairseq_lrpe.encodings import ENCODINGS, Encoding, InputsMixin, ScoresMixin, ShiftMixin, ValuesMixin
from fairseq_lrpe.encodings.mixins import MIXINS, Traits
from fairseq_lrpe.encodings.rope import RoPE

PUBLIC = [
    (mixin, name)
    for mixin in MIXINS
    for name in vars(mixin)
    if not name.startswith("_") and name not in vars(Traits)
]

# The encodings whose formula has a value of a trait that others do not have.
EXCEPTIONS = {
    (
        "accumulates",
        True,
    ): "content_bias cope fox fox_rope gla grape mamba3_rope path path_fox selective_rope "
    "selective_rope_fox selective_rope_gla stick_breaking stick_breaking_norm wall",
    ("bidirectional", False): "alibi content_bias cope fox fox_rope gla grape lrpe_decay mamba3_rope path "
    "path_fox retnet selective_rope selective_rope_fox selective_rope_gla stick_breaking "
    "stick_breaking_norm wall xpos",
    (
        "decomposable",
        False,
    ): "content_bias cope dape deberta fire gaussian gcdf huang kerple lfhc nezha path path_fox "
    "sandwich shaw stick_breaking stick_breaking_norm t5 tupe xl",
    ("draws_noise", True): "conv_spe spe",
    ("multidimensional", True): "axial_rope liere rope_mixed",
    ("shared_across_layers", True): "tupe",
    ("uses_absolute_positions", True): "fire fope log_scale rope_values selective_rope_gla tupe",
    ("uses_distance_table", True): "dape deberta gaussian gcdf huang kerple lfhc nezha sandwich shaw t5 xl",
}


@pytest.mark.parametrize("trait, value", EXCEPTIONS)
def test_encodings_with_each_trait(trait, value):
    found = {name for name, cls in ENCODINGS.items() if getattr(cls, trait) is value}
    assert found == set(EXCEPTIONS[trait, value].split())


@pytest.mark.parametrize("mixin, name", PUBLIC, ids=[name for _, name in PUBLIC])
def test_member_without_its_mixin(mixin, name):
    base = Encoding if mixin is ShiftMixin else RoPE
    with pytest.raises(TypeError, match=rf"Mine\.{name} would never be used.*class Mine\({mixin.__name__}"):
        type("Mine", (base,), {name: vars(mixin)[name]})
    mine = type("Mine", (mixin, base), {name: vars(mixin)[name]})
    assert issubclass(mine, Encoding)


@pytest.mark.parametrize("mixin, name", PUBLIC, ids=[name for _, name in PUBLIC])
def test_member_with_all_other_mixins(mixin, name):
    others = tuple(other for other in MIXINS if other is not mixin)
    with pytest.raises(TypeError, match=rf"Mine\.{name} would never be used.*class Mine\({mixin.__name__}"):
        type("Mine", (*others, Encoding), {name: vars(mixin)[name]})


def test_all_mixins_are_tested_and_used():
    assert set(MIXINS) == {InputsMixin, ScoresMixin, ShiftMixin, ValuesMixin}
    for mixin in MIXINS:
        assert any(issubclass(cls, mixin) for cls in ENCODINGS.values())


def test_interface_is_small():
    """What somebody who adds an encoding has to know, besides the arguments of its constructor."""
    members = {name for name in vars(Encoding) if not name.startswith("_")}
    assert members == {"bias", "bidirectional", "decomposable", "forward", "log_decay", "name"}
