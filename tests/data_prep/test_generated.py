"""Generated corpora are complete, made once, and not mixed."""

import pytest
from small_corpora import error_of, prepare

from data_prep import labelled

SMALL = {
    "listops": ["--depth", 4, "--length", 20, 100, "--rows", 80, 10, 10],
    "pathfinder": ["--window", 16, "--contour-length", 4, "--rows", 8, 2, 2],
}


@pytest.mark.parametrize("name", SMALL)
def test_generated_data_is_kept_and_not_mixed(name, tmp_path, capsys):
    out = tmp_path / "out"
    prepare(name, ["--out", out, *SMALL[name]])
    before = (out / "bin" / "train.input0.bin").stat().st_mtime_ns
    prepare(name, ["--out", out, *SMALL[name]])
    assert f"already there: {out / 'bin'}" in capsys.readouterr().out
    assert (out / "bin" / "train.input0.bin").stat().st_mtime_ns == before
    message = error_of(name, "--out", out, *SMALL[name], "--seed", 2)
    options = " ".join(map(str, SMALL[name][:2]))
    assert f"{out / 'bin'} was made from the generator with {options}" in message


@pytest.mark.parametrize("name", SMALL)
def test_an_interruption_leaves_nothing(name, tmp_path, interrupt):
    with interrupt(labelled, "write_dictionary"):
        prepare(name, ["--out", tmp_path / "out", *SMALL[name]])
    assert not list(tmp_path.iterdir())
