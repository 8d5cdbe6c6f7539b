"""Registry of encodings."""

import pytest
import torch

from fairseq_lrpe.encodings import (
    ENCODINGS,
    START,
    Context,
    Encoding,
    build_encoding,
    encoding_options,
    register_encoding,
)

SHARED = {"num_heads": 2, "head_dim": 6, "causal": True}


@pytest.fixture
def registry():
    before = dict(ENCODINGS)
    yield ENCODINGS
    ENCODINGS.clear()
    ENCODINGS.update(before)


class Scaled(Encoding):
    def __init__(self, *, factor=2.0, **shared):
        super().__init__(**shared)
        self.factor = factor

    def forward(self, q, k, context=START):
        return self.factor * q, k


def test_new_encoding_can_be_registered(registry):
    for wrong in ({}, {"factr": ""}, {"factor": "", "other": ""}):  # every option needs a help text
        with pytest.raises(TypeError, match=r"Scaled.*'factor'"):
            register_encoding("scaled", **wrong)(Scaled)
    assert "scaled" not in registry
    assert register_encoding("scaled", factor="what queries are multiplied by")(Scaled) is Scaled
    assert encoding_options(Scaled) == {"factor": 2.0}
    q = k = torch.randn(1, 2, 3, 6)
    assert build_encoding("scaled", **SHARED)(q, k)[0].equal(2 * q)
    encoding = build_encoding("scaled", layer=3, max_positions=99, factor=5.0, **SHARED)
    assert encoding(q, k)[0].equal(5 * q)
    assert (encoding.num_heads, encoding.head_dim, encoding.causal) == (2, 6, True)
    assert (encoding.layer, encoding.max_positions) == (3, 99)
    with pytest.raises(ValueError, match=r"'scaled'.*'factr'.*factor"):
        build_encoding("scaled", factr=5.0, **SHARED)


def test_offsets_may_be_given_instead_of_a_context():
    q, k = torch.randn(2, 1, 2, 3, 6)
    encoding = build_encoding("rope", **SHARED)
    for found, expected in zip(encoding(q, k, 7, 4), encoding(q, k, Context(7, 4)), strict=True):
        assert found.equal(expected)
    assert not encoding(q, k, 7, 4)[0].equal(encoding(q, k)[0])
