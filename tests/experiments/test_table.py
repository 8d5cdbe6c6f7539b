"""The tables of runs: which runs they are, and one of them done."""

import json

import pytest
from omegaconf import OmegaConf
from tiny import REPOSITORY, run_command

from fairseq_lrpe.experiments import compose, table

TABLES = {  # runs at full scale and at the small one
    "tmlr_table1": (7 + 7 * 8 * 5, 7 + 7 * 5 * 2),  # fine-tunings after pretrainings
    "iclr_table3": (10 + 10 * 4, 10 + 10 * 1 * 2),
    "iclr_table8": (11 + 12, 11 + 12),
    "iclr_table4": ((11 + 14) * 5, 11 + 14),  # with fairseq's own
    "tmlr_table2": (8 * 5 * 2, 8 * 3),
    "tmlr_table5": (9 * 5, 9),
    "tmlr_figure2": (4 + 4, 4 + 4),
    "iclr_table2": ((12 + 14) * 5, 12 + 14),
    "iclr_table5": (3 * 2 * 5, 3 * 2),
}
SMALL = (
    "batch.total=4 batch.per_gpu=4 train.tokens_per_sample=32 train.decoder_layers=1 "
    "train.decoder_embed_dim=32 train.decoder_ffn_embed_dim=64 updates=4 evaluate.splits=[valid]"
).split()


def run(*words):
    return run_command("python", "-m", "fairseq_lrpe.experiments.table", *words)


def test_these_are_the_tables():
    assert {path.stem for path in (compose.CONFIGS / "tables").glob("*.yaml")} == set(TABLES)
    for name in TABLES:
        assert f"experiments.table {name} " in (REPOSITORY / f"scripts/{name}.sh").read_text()


@pytest.mark.parametrize("name", TABLES)
def test_its_runs(name):
    for scale, count in zip(table.SCALES, TABLES[name], strict=True):
        runs = table.runs(table.load(name), scale)
        assert len(runs) == len(set(runs)) == count
        pretraining = [run for run in runs if not run.task]
        assert runs[: len(pretraining)] == pretraining
        assert {run.pretrained for run in runs if run.task} in (set(), set(pretraining))
        for part in (pretraining, runs[len(pretraining) :]):
            assert [run.seed for run in part] == sorted(run.seed for run in part)
        assert all(compose.canonical(run.method) == run.method for run in runs)


@pytest.mark.parametrize("name", TABLES)
def test_its_rows_and_columns_are_the_papers(name):
    settings = table.load(name)
    paper = OmegaConf.load(compose.CONFIGS / "paper" / f"{settings['paper']}.yaml")
    if settings["table"] not in paper.tables:
        assert name == "tmlr_figure2"  # a figure has no numbers
        return
    published = paper.tables[settings["table"]]
    rows = {(row.attention, row.row, row.method) for row in published.rows if row.method}
    ours = {(part["attention"], row, m) for part in settings["runs"] for row, m in part["methods"].items()}
    assert ours - {("softmax", "fairseq", "fairseq")} == rows
    columns = {column for part in settings["runs"] for column in part["columns"].values()}
    assert columns | set(settings.get("average", {})) == set(published.columns)


def test_a_run_is_found_under_each_name_of_its_method(tmp_path):
    run = table.Run("mt/multi30k", "linear", compose.canonical("iclr_type4"), 1)
    own, other = (tmp_path / f"mt/multi30k/linear_{name}/seed-1" for name in ("tmlr_type3", "iclr_type4"))
    assert table.folder_of(run, tmp_path) == own
    other.mkdir(parents=True)
    assert table.folder_of(run, tmp_path) == other
    own.mkdir(parents=True)
    assert table.folder_of(run, tmp_path) == own


def test_only_some_methods():
    settings = table.load("tmlr_table5")
    [only] = table.runs(settings, "mini", only=["ablation_householder_unitary"])
    assert only.method == "tmlr_type1"
    assert table.runs(settings, "mini", only=["tmlr_type1"]) == [only]
    with pytest.raises(ValueError, match="the table has no method 'xl': choose from tmlr_type1, tmlr_type2"):
        table.runs(settings, "mini", only=["xl"])
    with pytest.raises(ValueError, match="no table 'table5' in configs/tables: choose from iclr_table2"):
        table.load("table5")


WORKING = ("ablation_identity_unitary", "ablation_identity_orthogonal")
FAILING = "ablation_identity_permutation"


def test_a_failing_run_stops_no_other_and_a_finished_one_is_not_repeated(data_bin, tmp_path):
    def folder(method):
        return tmp_path / f"lm/mini/linear_{method}/seed-1"

    folder(FAILING).mkdir(parents=True)
    (folder(FAILING) / "run.json").write_text('{"config": {"updates": 3}}')
    words = ["tmlr_table5", "--scale", "mini", "--jobs", 2, "--gpus", 0, "--results", tmp_path]
    words += [*SMALL, f"data={data_bin}", "--only", *WORKING]
    done = run(*words, FAILING)
    assert done.returncode == 1
    for method in WORKING:
        assert json.loads((folder(method) / "run.json").read_text())["updates"] == 4
        assert f"finished lm/mini/linear_{method}/seed-1" in done.stdout
    assert f"FAILED   lm/mini/linear_{FAILING}/seed-1" in done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert f"lm/mini/linear_{FAILING}/seed-1: train: " in last and "updates was 3, now 4" in last

    before = (folder(WORKING[0]) / "evaluation.json").stat().st_mtime_ns
    again = run(*words)
    assert again.returncode == 0 and "started" not in again.stdout, again.stderr
    assert before == (folder(WORKING[0]) / "evaluation.json").stat().st_mtime_ns


def test_without_data_nothing_starts(tmp_path):
    done = run("tmlr_figure2", "--scale", "mini", "--results", tmp_path / "results", "data=nowhere")
    [sentence] = done.stderr.strip().splitlines()
    assert done.returncode == 1 and "lm/mini left out: " in sentence and "nowhere lacks dict.txt" in sentence
    assert not (tmp_path / "results").exists()
