"""Progress of steps that take long."""

import hashlib
import io
import time
from contextlib import redirect_stderr

import pytest

from data_prep import binarize, fetch, progress, validation


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def without_delay(monkeypatch):
    """Shows progress without a delay."""
    monkeypatch.setattr(progress, "DELAY", 0)


def test_bytes_written_by_another_program_are_shown(tmp_path):
    with redirect_stderr(Terminal()) as shown, progress.show_written("binarizing bin", tmp_path):
        (tmp_path / "train.bin").write_bytes(bytes(3000))
        while "binarizing bin: 3.00kB written, 00:0" not in shown.getvalue():
            time.sleep(0.01)


def test_checking_and_copying_are_shown(tmp_path):
    text = tmp_path / "train.txt"
    text.write_bytes(b"a line\n" * 1000)
    facts = {"size": 7000, "sha256": hashlib.sha256(text.read_bytes()).hexdigest()}
    with redirect_stderr(Terminal()) as shown:
        assert fetch.mismatch(text, facts) is None
        assert "instead of" in fetch.mismatch(text, {**facts, "sha256": "0"})
        assert validation.check_text(text) == 1000
        binarize.concatenate([text], tmp_path / "joined")
    assert (tmp_path / "joined").read_bytes() == text.read_bytes()
    assert "checking train.txt:   0%" in shown.getvalue()
    assert "checking train.txt: 0lines" in shown.getvalue() and "train.txt:   0%" in shown.getvalue()


def test_pipes_get_no_progress(capsys, tmp_path):
    with progress.show_written("binarizing bin", tmp_path):
        pass
    assert capsys.readouterr().err == ""
