"""Training speed as an experiment: a table without trainings."""

from support.tiny import output_of, run_here

from fairseq_lrpe.cli import table, train
from fairseq_lrpe.experiments.reporting.records import read_runs

SMALL = ["layers=1", "length=16", "vocab_size=100", "batch.total=2", "rounds=2", "seeds=[1]"]
SMALL += ["train.encoder_embed_dim=32", "train.encoder_ffn_embed_dim=32", "train.encoder_attention_heads=2"]


def test_table_of_speeds(tmp_path):
    words = ["tmlr_table6", "--scale", "mini", *SMALL, "--methods", "base", "spe", "--results", str(tmp_path)]
    output = output_of(table.main, *words)
    assert "relative speed (higher is better)" in output and "(2 rounds)" in output
    records = {record.run.method: record for record in read_runs(tmp_path)}
    assert records.keys() == {"base", "spe"}
    for record in records.values():
        assert record.state == "finished" and (record.length, record.unit) == (2, "rounds")
        assert record.measured["steps"]["relative_speed"] > 0 < record.measured["steps"]["milliseconds"]
    again = run_here(table.main, *words)
    assert "started" not in again.stdout + again.stderr


def test_options_of_an_encoding_do_not_apply_to_the_reference(tmp_path):
    words = ["speed/roberta_mini", "shaw", "--attention", "softmax", "--cpu", "--results", tmp_path, *SMALL]
    output_of(train.main, *words, "train.shaw_k=2")
