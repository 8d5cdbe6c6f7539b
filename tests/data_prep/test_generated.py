"""What is generated, by any generator: whole or not there, not made twice, and not mixed."""

import pytest
from small_corpora import prepare, refused

from data_prep import generated

SMALL = {
    "listops": ["--depth", 4, "--length", 20, 100, "--rows", 80, 10, 10],
    "pathfinder": ["--window", 16, "--contour-length", 4, "--rows", 8, 2, 2],
}


@pytest.mark.parametrize("name", SMALL)
def test_it_is_not_done_again_and_not_mixed(name, tmp_path, capsys):
    out = tmp_path / "out"
    prepare(name, ["--out", out, *SMALL[name]])
    before = (out / "bin" / "train.input0.bin").stat().st_mtime_ns
    prepare(name, ["--out", out, *SMALL[name]])
    assert f"already there: {out / 'bin'}" in capsys.readouterr().out
    assert (out / "bin" / "train.input0.bin").stat().st_mtime_ns == before
    sentence = refused(name, "--out", out, *SMALL[name], "--seed", 2)
    options = " ".join(map(str, SMALL[name][:2]))
    assert f"{out / 'bin'} was made from the generator with {options}" in sentence


@pytest.mark.parametrize("name", SMALL)
def test_an_interruption_leaves_nothing(name, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(generated, "write_dictionary", interrupted)
    with pytest.raises(SystemExit):
        prepare(name, ["--out", tmp_path / "out", *SMALL[name]])
    assert not list(tmp_path.iterdir())
