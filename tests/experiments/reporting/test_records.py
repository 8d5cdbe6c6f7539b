"""Reading run folders: damaged files are described and never raise."""

import pytest
from support.tiny import write_run

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.reporting.records import read_run

KIND = '"kind": "lm"'


@pytest.mark.parametrize(("name", "content", "problem"), [
    ("run.json", "[1]", "run.json is not a JSON object"),
    ("run.json", '{"kind": "x", "config": {}}', "unknown kind 'x': expected one of "),
    ("run.json", f'{{{KIND}, "config": {{}}}}', "the key 'updates' is missing"),
    ("run.json", b"\xff\xfe", "codec can't decode"),
    ("evaluation.json", '{"evaluations": {"valid": {"perplexity": "many"}}}', "could not convert string"),
    ("log.jsonl", "x\n{}\n", "log.jsonl is damaged (line 1 is not a JSON object)"),
])  # fmt: skip
def test_damaged_files(name, content, problem, tmp_path):
    folder = tmp_path / "lm/gone/linear_base/updates=800/seed-1"
    write_run(folder, {400: 100, 800: 90}, 90, 800)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    record = read_run(folder, tmp_path)
    assert record.state == "damaged" and problem in record.problem
    assert record.run == Run("lm/gone", "linear", "base", 1, (("updates", "800"),))
