"""The command `lrpe quickstart`: a complete run on a small folder."""

import json

import pytest
from tiny import run_command

METHODS = {"Base": "base", "RoPE": "rope", "Type1": "tmlr_type1", "Type2": "tmlr_type2"}


def quickstart(*arguments):
    return run_command("python", "-m", "fairseq_lrpe", "quickstart", *arguments)


@pytest.mark.slow
def test_quickstart_and_its_repetition(text_folder, tmp_path):
    flags = ["--from", text_folder, "--updates", 4, "--results", tmp_path / "out"]
    first = quickstart(*flags)
    assert first.returncode == 0, first.stdout + first.stderr
    for row, method in METHODS.items():
        folder = tmp_path / f"out/lm/quickstart/linear_{method}/updates=4/seed-1"
        [line] = [line for line in first.stdout.splitlines() if line.startswith(f"| linear | {row} |")][:1]
        measured = json.loads((folder / "evaluation.json").read_text())["evaluations"]
        assert f"{measured['test']['perplexity']:,.2f} (1)" in line
    assert (tmp_path / "out/quickstart.png").read_bytes().startswith(b"\x89PNG")
    assert not list((tmp_path / "out").rglob("*.part"))

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("train.log")}
    second = quickstart(*flags)
    assert second.returncode == 0 and "started" not in second.stdout and len(before) == len(METHODS)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    shown = [[x for x in run.stdout.splitlines() if x.startswith("|")] for run in (first, second)]
    assert shown[0] == shown[1] != []
