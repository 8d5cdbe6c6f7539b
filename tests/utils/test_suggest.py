"""Messages for unknown names."""

from fairseq_lrpe.utils.suggest import SHORT, choices


def test_the_closest_match_and_where_to_choose_from():
    assert choices("ropee", ["base", "rope"]) == " (did you mean 'rope'?): choose from base, rope"
    assert choices("zzz", ["base", "rope"], "`x` lists them") == ": choose from base, rope"
    many = ["rope", *map(str, range(SHORT))]
    assert choices("ropee", many, "`x` lists them") == " (did you mean 'rope'?): `x` lists them"
    assert choices(None, many).endswith(", 10, 11")
