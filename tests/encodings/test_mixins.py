"""Mixins of encodings: a member that attention would never use is refused, in whatever class it is."""

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


@pytest.mark.parametrize("mixin, name", PUBLIC, ids=[name for _, name in PUBLIC])
def test_member_without_its_mixin(mixin, name):
    base = Encoding if mixin is ShiftMixin else RoPE
    with pytest.raises(TypeError, match=rf"Mine\.{name} would never be used.*class Mine\({mixin.__name__}"):
        type("Mine", (base,), {name: vars(mixin)[name]})
    mine = type("Mine", (mixin, base), {name: vars(mixin)[name]})
    assert issubclass(mine, Encoding)


def test_all_mixins_are_tested_and_used():
    assert set(MIXINS) == {InputsMixin, ScoresMixin, ShiftMixin, ValuesMixin}
    for mixin in MIXINS:
        assert any(issubclass(cls, mixin) for cls in ENCODINGS.values())


def test_interface_is_small():
    """What somebody who adds an encoding has to know, besides the arguments of its constructor."""
    members = {name for name in vars(Encoding) if not name.startswith("_")}
    assert members == {"bias", "bidirectional", "decomposable", "forward", "log_decay", "name"}
