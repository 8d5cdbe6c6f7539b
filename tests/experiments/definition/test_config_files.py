"""Experiments and tables in folders of the user, which are searched before those of the repository."""

import os

import pytest
from support.tiny import PLUGIN, REPOSITORY, run_command, succeeded, write_configs, write_run

from fairseq_lrpe.experiments.definition import config_files
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.execution import slurm

TABLE = {"title": "Own", "experiment": "lm/own", "columns": {"test": {"evaluation": "test"}}}
FILES = {
    "lm/own": {"defaults": "lm/quickstart", "updates": 7},
    "lm/mini": {"defaults": "lm/mini", "updates": 8},
    "tables/own": TABLE | {"rows": [{"row": "RoPE", "attention": "linear", "method": "rope"}]},
    "tables/more": TABLE | {"rows_of": "quickstart"},
    "cluster": {"partition": "x"},
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    write_configs(tmp_path / "configs", FILES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LRPE_CONFIGS", raising=False)
    return tmp_path


def test_files_here_come_first(here):
    names = config_files.experiments()
    assert "lm/own" in names and names.count("lm/mini") == 1 and "lm/books" in names
    assert "cluster" not in names and "tables/own" not in names
    assert Experiment.load("lm/own").cfg.updates == 7 and Experiment.load("lm/mini").cfg.updates == 8
    assert Experiment.load("lm/quickstart").cfg.updates == 250
    assert {"own", "more", "quickstart"} <= set(config_files.tables())
    assert config_files.own_tables() == ["more", "own"]
    assert [row.row for row in Table("more").rows] == ["Base", "RoPE", "Type1", "Type2"]
    assert str(Table("own").runs()[0]) == "lm/own/linear_rope/seed-1"
    assert config_files.config_path("lm/own") == here / "configs/lm/own.yaml"
    assert config_files.config_path("paper/roper") == REPOSITORY / "configs/paper/roper.yaml"


def test_the_variable_replaces_the_folder_here(here, tmp_path, monkeypatch):
    for number in (1, 2):
        files = {"lm/own": {"defaults": "lm/quickstart", "updates": number}, f"lm/own{number}": {}}
        write_configs(tmp_path / f"other{number}", files)
    monkeypatch.setenv("LRPE_CONFIGS", os.pathsep.join(["other1", f"{tmp_path}/other2", ""]))
    assert Experiment.load("lm/own").cfg.updates == 1
    assert {"lm/own1", "lm/own2"} <= set(config_files.experiments())
    assert Experiment.load("lm/mini").cfg.updates != 8
    assert config_files.variables() == {"LRPE_CONFIGS": f"{tmp_path}/other1:{tmp_path}/other2"}


def test_the_repository_has_one_folder(monkeypatch):
    monkeypatch.delenv("LRPE_CONFIGS", raising=False)
    monkeypatch.chdir(REPOSITORY)
    assert config_files.own_folders() == [] and config_files.variables() == {}
    monkeypatch.setenv("LRPE_CONFIGS", str(REPOSITORY / "configs"))
    assert config_files.own_folders() == []


def test_jobs_of_slurm_get_absolute_paths(here, monkeypatch):
    monkeypatch.delenv("LRPE_IMPORT", raising=False)
    assert slurm.own_files() == {"LRPE_CONFIGS": f"{here}/configs"}
    monkeypatch.setenv("LRPE_IMPORT", "/mine.py,other")
    assert slurm.own_files() == {"LRPE_IMPORT": "/mine.py,other", "LRPE_CONFIGS": f"{here}/configs"}


@pytest.mark.parametrize("files, words, message", [
    ({"lm/own": {"defaults": "lm/no"}}, "train lm/own rope", "configs/lm/own.yaml: defaults: lm/no does not"),
    ({"lm/own": {"defaults": "lm/mini", "x": 1}}, "train lm/own rope", "/configs/lm/own.yaml or configs/lm/"),
    ({"tables/own": {"title": "x"}}, "table own", "/configs/tables/own.yaml: columns: this key is missing"),
    ({"tables/own": TABLE | {"experiment": "lm/x"}}, "table own", "unknown experiment 'lm/x'"),
    ({"tables/own": TABLE | {"paper": "x"}}, "table own", "paper/x.yaml"),
    ({"lm/a": {"defaults": "lm/b"}, "lm/b": {"defaults": "lm/a"}}, "train lm/a rope", "lm/a extends this"),
])  # fmt: skip
def test_errors_name_the_file(files, words, message, tmp_path):
    write_configs(tmp_path / "configs", files)
    done = lrpe(tmp_path, *words.split())
    [line] = done.stderr.splitlines()
    assert done.returncode == 1 and message in line, line


def test_wrong_folder_of_the_variable(tmp_path):
    write_run(tmp_path / "results/lm/mini/linear_rope/seed-1", {100: 9.0}, 9.0)
    message = f"LRPE_CONFIGS names {tmp_path}/nosuch, which is not a folder: correct or unset it"
    for words in (
        ["table"],
        ["train", "lm/mini", "rope"],
        ["finetune", "x", "RTE"],
        ["report", "--results", tmp_path / "results"],
    ):
        done = lrpe(tmp_path, *words, LRPE_CONFIGS="nosuch")
        assert done.returncode == 1 and done.stderr.strip() == f"{words[0]}: {message}"


def test_listings_show_them(here):
    listed = succeeded(lrpe(here, "table")).stdout
    assert "own" in listed and "quickstart" in listed
    shown = succeeded(lrpe(here, "train", "--help")).stdout
    assert "lm/own" in shown and "lm/books" in shown
    assert str(PLUGIN.parent) not in listed


def lrpe(folder, *words, **variables):
    environment = {"PYTHONPATH": str(REPOSITORY), "LRPE_CONFIGS": "", **variables}
    return run_command("python", "-m", "fairseq_lrpe", *words, folder=folder, **environment)
