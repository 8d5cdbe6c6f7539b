"""Reading run folders: damaged files are described and never raise."""

import json
import shutil

import pytest
from support.tiny import write_run

from fairseq_lrpe.experiments.definition.run import Run, run_folders
from fairseq_lrpe.experiments.reporting.records import read_run

KIND = '"kind": "lm"'
BAD_NUMBER = '{"evaluations": {"valid": {"perplexity": "many"}}}'


@pytest.mark.parametrize(("name", "content", "problem"), [
    ("run.json", "[1]", "run.json is damaged (it is not a JSON object): restore it, or "),
    ("run.json", '{"kind": "x", "config": {}}', "unknown kind 'x': expected one of "),
    ("run.json", f'{{{KIND}, "config": {{}}}}', "run.json lacks the key updates: restore it, or "),
    ("run.json", "{}", "run.json lacks the key kind: restore it, or "),
    ("run.json", b"\xff\xfe", "run.json is damaged (it is not JSON: "),
    ("evaluation.json", BAD_NUMBER, "(evaluations.valid.perplexity: input should be a valid number)"),
    ("log.jsonl", "x\n{}\n", "log.jsonl is damaged (line 1: it is not JSON: "),
])  # fmt: skip
def test_damaged_files(name, content, problem, tmp_path):
    folder = tmp_path / "lm/gone/linear_base/updates=800/seed-1"
    write_run(folder, {400: 100, 800: 90}, 90, 800)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    record = read_run(folder, tmp_path)
    assert record.state == "damaged" and problem in record.problem
    assert record.run == Run("lm/gone", "linear", "base", 1, (("updates", "800"),))


def test_copies_are_not_other_seeds(tmp_path):
    run = tmp_path / "lm/gone/linear_base/seed-1"
    write_run(run, {100: 90}, 90)
    settings = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(settings | {"method": "base", "seed": 1}))
    for name in ("seed-1-old", "seed-2", "old/seed-1"):
        shutil.copytree(run, run.parent / name)
    assert run_folders(tmp_path) == [run, run.with_name("seed-2")]
    records = [read_run(folder, tmp_path) for folder in run_folders(tmp_path)]
    assert [record.state for record in records] == ["finished", "damaged"]
    assert records[1].problem == "it is a copy of the run with seed 1 (run.json): remove it"


def test_runs_below_a_linked_folder(tmp_path):
    write_run(tmp_path / "disk/lm/gone/linear_base/seed-1", {100: 90}, 90)
    (tmp_path / "results/lm").mkdir(parents=True)
    (tmp_path / "results/lm/gone").symlink_to(tmp_path / "disk/lm/gone")
    (tmp_path / "disk/lm/gone/loop").symlink_to(tmp_path / "results")
    assert run_folders(tmp_path / "results") == [tmp_path / "results/lm/gone/linear_base/seed-1"]
