"""The tables of runs: which runs they are, and one of them done."""

import json

import pytest
from omegaconf import OmegaConf
from tiny import run_command, run_here

from fairseq_lrpe.experiments import experiment as experiments
from fairseq_lrpe.experiments import schedule
from fairseq_lrpe.experiments.table import SCALES, Table, tables
from fairseq_lrpe.methods import canonical

TABLES = {  # runs at full scale and at the small one
    # Fine-tunings, each of so many trials and their choice, after pretrainings.
    "tmlr_table1": (7 + 7 * 8 * 5 * (4 + 1), 7 + 7 * 5 * 2 * (2 + 1)),
    "iclr_table3": (10 + 10 * 4 * (4 + 1), 10 + 10 * 1 * 2 * (2 + 1)),
    "iclr_table8": (11 + 12, 11 + 12),
    "iclr_table4": ((11 + 14) * 5, 11 + 14),  # with fairseq's own
    "tmlr_table2": (8 * 5 * 2, 8 * 3),
    "tmlr_table5": (9 * 5, 9),
    "tmlr_figure2": (4 + 4, 4 + 4),
    "iclr_table2": ((12 + 14) * 5, 12 + 14),
    "iclr_table5": (3 * 2 * 5, 3 * 2),
    "quickstart": (4, None),
    "lfhc_table3": (5 * 10, (5 + 3 + 3 * 2) * 3),  # and with running sums
    "lfhc_table7": (8 * 10, 8 * 3),
    "tmlr_table3": (6 * 5, 6 * 2),
    "tmlr_table4": (6 * 5 * 5, 6 * 5 * 2),
    # Three methods, and two with 4 k (3 for SST-2) and their choice; the small form has 3 k for two tasks.
    "lfhc_table1": ((3 * 6 + 2 * (5 * 4 + 3 + 6)) * 10, (3 * 4 + 2 * (2 * 3 + 2 * 1 + 4)) * 2),
    "lfhc_table5": (2 * (5 * 4 + 3) * 10, 2 * (3 + 4) * 2),
    # As before: three k, of which the small form has one.
    "lfhc_table2": ((3 + 2 * (3 + 1)) * 2 * 10, (3 + 2 * (1 + 1)) * 2 * 2),
    "lfhc_table6": (2 * 3 * 2 * 10, 2 * 3 * 2 * 2),
    "roper_wikipedia": (2, None),
    "extrapolation": (57 * 3, 57 * 3),
    "roper": ((2 + 4) * 3 * 10, (2 + 4) * 3 * 3),  # and linear attention
}
SMALL = (
    "batch.total=4 batch.per_gpu=4 train.tokens_per_sample=32 train.decoder_layers=1 "
    "train.decoder_embed_dim=32 train.decoder_ffn_embed_dim=64 updates=4 evaluations.test=null"
).split()
CHANGES = "batch.total=4/train.decoder_embed_dim=32/train.decoder_ffn_embed_dim=64/train.decoder_layers=1/"
CHANGES += "train.tokens_per_sample=32/updates=4"


def test_a_job_has_its_share_of_the_cores_unless_a_person_says_otherwise(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert schedule.environment(0, 3, None)["OMP_NUM_THREADS"] == "2"
    assert schedule.environment(0, 9, None)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert schedule.environment(0, 3, None)["OMP_NUM_THREADS"] == "5"


def run(*words):
    return run_command("python", "-m", "fairseq_lrpe.experiments.schedule", *words)


def test_these_are_the_tables(tmp_path):
    assert set(tables()) == set(TABLES)
    listed = run_here(schedule.main, "--results", tmp_path)
    assert listed.returncode == 0, listed.stderr
    for name, (full, mini) in TABLES.items():
        [line] = [x for x in listed.stdout.splitlines() if f"│ {name} " in x]
        assert f"0 of {full} runs" in line and (f"0 of {mini} runs" if mini else "│ - ") in line


@pytest.mark.parametrize("name", TABLES)
def test_its_runs(name):
    for scale, count in zip(SCALES, TABLES[name], strict=True):
        if count is None:
            with pytest.raises(ValueError, match="has no small form: leave --scale mini out"):
                Table(name, scale)
            continue
        table = Table(name, scale)
        runs = table.runs()
        assert len(runs) == len(set(runs)) == count
        for number, one in enumerate(runs):
            assert set(table.experiment_of(one).needs(one)) <= set(runs[:number])
        kinds = [table.experiment_of(one).cfg.kind for one in runs]
        assert "glue" not in kinds[: kinds.count("masked_lm")]  # all pretrainings first
        for part in (runs[: kinds.count("masked_lm")], runs[kinds.count("masked_lm") :]):
            assert [one.seed for one in part] == sorted(one.seed for one in part)
        assert all(canonical(one.method) == one.method for one in runs)


@pytest.mark.parametrize("name", TABLES)
def test_its_rows_and_columns_are_the_papers(name):
    table = Table(name)
    if table.settings.table is None:
        assert name in ("tmlr_figure2", "quickstart", "extrapolation")  # without published numbers
        return
    paper = OmegaConf.load(experiments.CONFIGS / "paper" / f"{table.settings.paper}.yaml")
    published = paper.tables[table.settings.table]
    rows = {(row.attention, row.row) for row in published.rows if row.method}
    ours = {(cell.attention, cell.row) for cell in table.cells if cell.runs or cell.parts}
    own = {(row.attention, row.row) for row in table.settings.rows}
    assert ours - own == rows and not own & rows
    assert set(published.columns) <= set(table.settings.columns)
    # Every value that the paper has is measured too, but for rows that are means of others.
    for row in published.rows:
        for column in row["values"] if row.method else ():
            key = row.attention, row.row, column
            [cell] = [c for c in table.cells if (c.attention, c.row, c.column) == key]
            is_dash = row["values"][column] is None
            assert bool(cell.runs or cell.parts) != is_dash, (name, row.row, column)


def test_only_some_methods():
    table = Table("tmlr_table5", "mini")
    [only] = table.runs(only=["ablation_householder_unitary"])
    assert only.method == "tmlr_type1"
    assert table.runs(only=["tmlr_type1"]) == [only]
    with pytest.raises(ValueError, match="the table has no method 'xl': choose from ablation_householder"):
        table.runs(only=["xl"])
    with pytest.raises(ValueError, match="no table 'table5' in configs/tables: choose from extrapolation, "):
        Table("table5")


def test_changes_of_the_command_line_are_those_of_all_runs():
    table = Table("tmlr_table1", "mini", ["train.dropout=0.3", "choose.train.lr=[0.5]", "epochs=7"])
    runs = table.runs(only=["rope"])
    assert str(runs[0]) == "roberta/mini/linear_rope/train.dropout=0.3/seed-1"
    assert str(runs[1]) == "glue/mini/linear_rope/epochs=7/task=RTE/train.dropout=0.3/train.lr=0.5/seed-1"
    assert len(runs) == 1 + 5 * 2 * (1 + 1)
    with pytest.raises(ValueError, match="has no key 'epoch'"):
        Table("tmlr_table1", "mini", ["epoch=7"])
    assert {run.seed for run in Table("tmlr_table2", "mini", ["seeds=[7]"]).runs()} == {7}


def test_a_dry_run_prints_what_is_known_before_any_run(tmp_path):
    words = ["tmlr_table1", "--scale", "mini", "--only", "rope", "--results", tmp_path / "results"]
    done = run_here(schedule.main, *words, "--dry-run", "grid.task=[RTE]")
    first, *later = done.stdout.splitlines()
    assert done.returncode == 0 and first.startswith("fairseq-train data/wikitext_mini_bpe/bin "), done.stderr
    assert len(later) == 2 * 2  # rates and seeds
    for line in later:
        assert line.startswith("# glue/mini/linear_rope/task=RTE/train.lr=")
        assert line.endswith("roberta/mini/linear_rope/seed-1/checkpoints/checkpoint_best.pt is there")
    assert not (tmp_path / "results").exists()


WORKING = ("ablation_identity_unitary", "ablation_identity_orthogonal")
FAILING = "ablation_identity_permutation"


def test_a_failing_run_stops_no_other_and_a_finished_one_is_not_repeated(data_bin, tmp_path):
    def folder(method):
        return tmp_path / f"lm/mini/linear_{method}/{CHANGES}/seed-1"

    folder(FAILING).mkdir(parents=True)
    (folder(FAILING) / "run.json").write_text('{"config": {"updates": 3}}')  # of an earlier version
    words = ["tmlr_table5", "--scale", "mini", "--jobs", 2, "--gpus", 0, "--results", tmp_path]
    words += [*SMALL, f"data={data_bin}", "--only", *WORKING]
    done = run(*words, FAILING)
    assert done.returncode == 1
    for method in WORKING:
        assert json.loads((folder(method) / "run.json").read_text())["updates"] == 4
        assert f"finished lm/mini/linear_{method}/{CHANGES}/seed-1" in done.stdout
    assert f"FAILED   lm/mini/linear_{FAILING}/{CHANGES}/seed-1" in done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert f"lm/mini/linear_{FAILING}/{CHANGES}/seed-1: train: " in last and "of an earlier version" in last
    assert "| linear | Identity × Unitary |" in done.stdout and "(4 updates)" in done.stdout

    before = (folder(WORKING[0]) / "evaluation.json").stat().st_mtime_ns
    again = run_here(schedule.main, *words)
    assert again.returncode == 0 and "started" not in again.stdout, again.stderr
    assert before == (folder(WORKING[0]) / "evaluation.json").stat().st_mtime_ns


def test_without_data_nothing_starts(tmp_path):
    done = run_here(
        schedule.main, "tmlr_figure2", "--scale", "mini", "--results", tmp_path / "results", "data=nowhere"
    )
    [sentence] = done.stderr.strip().splitlines()
    assert done.returncode == 1 and "lm/mini left out: " in sentence and "nowhere lacks dict.txt" in sentence
    assert "roberta/mini left out: " in sentence
    assert not (tmp_path / "results").exists()
