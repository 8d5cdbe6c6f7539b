"""What all programs share: standard input."""

import io

import pytest

from fairseq_lrpe.utils.cli import read_stdin_lines


def standard_input(content, encoding="utf-8"):
    """What Python makes of standard input in the locale C.UTF-8, or in one of another encoding."""
    return io.TextIOWrapper(io.BytesIO(content), encoding=encoding, errors="surrogateescape")


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_lines_are_utf8_in_every_locale(encoding, monkeypatch):
    monkeypatch.setattr("sys.stdin", standard_input("caf\u00e9\n\nth\u00e9".encode(), encoding))
    assert read_stdin_lines() == ["caf\u00e9", "", "th\u00e9"]


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_other_bytes_are_refused_in_every_locale(encoding, monkeypatch):
    monkeypatch.setattr("sys.stdin", standard_input("caf\u00e9\n".encode("latin-1"), encoding))
    with pytest.raises(ValueError, match=r"the text is not UTF-8 .*0xe9 in position 3.*: convert it first"):
        read_stdin_lines()
