"""What ``import fairseq_lrpe`` gives, and ``python -m fairseq_lrpe``."""

import pytest
from support.tiny import BIN, REPOSITORY, run_command, succeeded

import fairseq_lrpe
from fairseq_lrpe.attention import LinearAttention
from fairseq_lrpe.ops import linear_attention


def test_names():
    assert fairseq_lrpe.LinearAttention is LinearAttention
    assert fairseq_lrpe.linear_attention is linear_attention
    assert set(dir(fairseq_lrpe)) == {*fairseq_lrpe.__all__, "__version__"}
    for name in fairseq_lrpe.__all__:
        assert callable(getattr(fairseq_lrpe, name))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        fairseq_lrpe.nothing  # noqa: B018


def test_import_loads_no_library():
    program = "import sys, fairseq_lrpe; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = succeeded(run_command(BIN / "python", "-c", program))
    assert not {"torch", "fairseq", "pandas", "numpy"} & set(done.stdout.split())


def test_version_of_citation():
    assert f"version: {fairseq_lrpe.__version__}\n" in (REPOSITORY / "CITATION.cff").read_text()


def test_module_is_the_command():
    done = succeeded(run_command(BIN / "python", "-m", "fairseq_lrpe", "--help"))
    assert "usage: lrpe COMMAND" in done.stdout
