"""Training speed as an experiment: a table without trainings."""

import json

from tiny import run_here

from fairseq_lrpe.benchmarks import measure_steps, shared, speed
from fairseq_lrpe.cli import table
from fairseq_lrpe.experiments.reporting.recorded import read_runs

SMALL = ["layers=1", "length=16", "vocab_size=100", "batch.total=2", "rounds=2", "seeds=[1]"]
SMALL += ["train.encoder_embed_dim=32", "train.encoder_ffn_embed_dim=32", "train.encoder_attention_heads=2"]


def test_table_of_speeds(tmp_path):
    words = ["tmlr_table6", "--scale", "mini", *SMALL, "--methods", "base", "spe", "--results", str(tmp_path)]
    done = run_here(table.main, *words)
    assert done.returncode == 0, done.stderr
    assert "relative speed (higher is better)" in done.stdout and "(2 rounds)" in done.stdout
    records = {record.method: record for record in read_runs(tmp_path)}
    assert records.keys() == {"base", "spe"}
    for record in records.values():
        assert record.state == "finished" and (record.length, record.unit) == (2, "rounds")
        assert record.values["steps"]["relative_speed"] > 0 < record.values["steps"]["milliseconds"]
    again = run_here(table.main, *words)
    assert "started" not in again.stdout + again.stderr


def test_speed_is_relative_to_base(tmp_path, monkeypatch):
    """Measures steps with a clock that counts 4 seconds for a step of the method, and 1 for one of base."""
    clock = [0]

    def training_step(arch, args, **flags):
        return lambda: clock.append(clock[-1] + (4 if arch == "linear_lm_rope" else 1))

    monkeypatch.setattr(speed, "training_step", training_step)
    monkeypatch.setattr(shared, "timer", lambda: clock[-1])
    settings = {"arch": "linear_lm_rope", "base": "linear_lm_base", "length": 8, "rounds": 5}
    out = tmp_path / "out.json"
    measure_steps.main([json.dumps({**settings, "cpu": True, "flags": {}}), str(out)])
    assert json.loads(out.read_text()) == {"relative_speed": 0.25, "milliseconds": 4000}
