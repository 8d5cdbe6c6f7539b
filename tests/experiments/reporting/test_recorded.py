"""Recorded results: writing, reading, and checking runs against them."""

import json
import math
import shutil

import pandas as pd
import pytest
from support.recorded import CPU, PERPLEXITY, VERSIONS, call, write

import fairseq_lrpe
from fairseq_lrpe.cli import results
from fairseq_lrpe.experiments.definition import config_files
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.reporting.omissions import omissions
from fairseq_lrpe.experiments.reporting.recorded_results import MEASUREMENTS, read_settings
from fairseq_lrpe.experiments.reporting.records import read_runs
from fairseq_lrpe.experiments.reporting.settings import machine

RUN = "lm/mini/linear_rope/seed-1"


@pytest.fixture
def folder(tmp_path):
    """A results folder with three seeds of one method and one of another."""
    for seed in (1, 2, 3):
        write(tmp_path / "results", PERPLEXITY + seed, seed=seed)
    write(tmp_path / "results", method="base")
    return tmp_path / "results"


@pytest.fixture
def records(folder, tmp_path):
    """A folder with the recorded results of ``folder``."""
    assert call(folder, "--record", tmp_path / "records").returncode == 0
    return tmp_path / "records"


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*")}


def check(folder, records):
    done = call(folder, "--check", records)
    return done.returncode, done.stdout.splitlines()


def test_files(folder, records):
    before = content(records)
    assert call(folder, "--record", records).returncode == 0 and content(records) == before
    lines = pd.read_csv(records / "measurements/lm-mini-linear.csv", float_precision="round_trip")
    assert list(lines.columns) == MEASUREMENTS and len(lines) == 4 * 3  # nats and bits were not measured
    assert lines.query("method == 'base' and evaluation == 'valid'")["value"].tolist() == [PERPLEXITY]
    [run] = Experiment.load("lm/mini").runs("linear", "base", [1])
    line = read_settings(records)[run]
    assert line["seconds"] == 60 and line["updates"] == line["config"]["updates"] == 400
    assert line["config"]["train.lr"] == 0.005 and line["evaluations"]["valid"]["split"] == "valid"
    assert line["machine"] == "CPU (Toy CPU, AVX2, 1 thread) fp32" and line["finished"] == "2020-01-02"
    assert line["versions"] == VERSIONS and line["git"] == {"revision": 12 * "0", "dirty": True}


def test_a_later_record_replaces_only_its_runs(records, tmp_path):
    before = (records / "measurements/lm-mini-linear.csv").read_text().splitlines()
    write(tmp_path / "other", math.nan, seed=2, points=3)
    call(tmp_path / "other", "--record", records)
    after = (records / "measurements/lm-mini-linear.csv").read_text().splitlines()
    changed = [line for line in after if line not in before]
    assert len(after) == len(before) and len(changed) == 2 and all(",rope,,2," in line for line in changed)
    points = pd.read_csv(records / "curves/lm-mini.csv").groupby(["method", "seed"]).size()
    assert points.to_dict() == {("base", 1): 20, ("rope", 1): 20, ("rope", 2): 3, ("rope", 3): 20}


def test_runs_with_other_settings_are_refused(folder, tmp_path):
    config = json.loads((folder / RUN / "run.json").read_text())["config"]
    different = {
        2: {"config": {**config, "train": {**config["train"], "lr": 0.1}}},
        3: {"flags": ["--fp16"]},
        4: {"config": {**config, "starts_from": "other.pt"}},
    }
    for seed, changed in different.items():
        write(folder, seed=seed, **changed)
    path = folder / RUN / "evaluation.json"
    path.write_text(path.read_text().replace('"context_window": 0', '"context_window": 9'))
    path = folder / "lm/mini/linear_base/seed-1/evaluation.json"
    path.write_text(path.read_text().replace('"valid": ', '"test_512": '))  # configs does not define it
    (folder / RUN.replace("1", "5")).mkdir()
    (folder / RUN.replace("1", "5") / "run.json").write_text("{")
    done = call(folder, "--record", tmp_path / "records")
    assert done.returncode == 1 and done.stdout.endswith("records: 1 run recorded\n")
    assert "test_512" not in (tmp_path / "records/measurements/lm-mini-linear.csv").read_text()
    expected = ["evaluations.valid.context_window was 9, now 0", "train.lr was 0.1, now 0.005"]
    expected += ["flags of fairseq-train was ['--fp16'], now None"]
    expected += ["starts_from was other.pt, now None", "damaged"]
    for seed, (line, part) in enumerate(zip(done.stderr.splitlines(), expected, strict=True), 1):
        assert f"linear_rope/seed-{seed} " in line and part in line


def test_ambiguous_runs_are_refused(folder, records):
    before = content(records)
    write(folder, method="tmlr_type2")
    write(folder, method="iclr_type2")
    done = call(folder, "--record", records)
    assert done.returncode == 1 and "is the same run as" in done.stderr
    shutil.rmtree(folder / "lm/mini/linear_iclr_type2")
    write(folder, method="tmlr_type2", data={"train.bin": 8})
    done = call(folder, "--record", records)
    assert done.returncode == 1 and "were trained on different data" in done.stderr
    assert content(records) == before


@pytest.mark.parametrize("settings, expected", [
    ({**CPU, "processor": {"name": "Toy CPU", "threads": 3}}, "CPU (Toy CPU, 3 threads) fp32"),
    ({**CPU, "gpus": 2}, "CPU (Toy CPU, AVX2, 2 processes with 1 thread each) fp32"),
    ({"gpus": 2, "precision": "fp16", "gpu_names": ["A (cuda:0)", "A (cuda:1)", "B"]}, "2 × A fp16"),
    ({"gpus": 1, "nodes": 2, "precision": "fp16", "gpu_names": ["A (cuda:0)"]}, "2 × A fp16"),
])  # fmt: skip
def test_machine(settings, expected):
    assert machine(settings) == expected


def test_records_are_read_like_runs(folder, records):
    ours, theirs = (fairseq_lrpe.load_results(x).drop(columns="folder") for x in (records, folder))
    keys = ["method", "seed", "evaluation"]
    ours, theirs = (x.sort_values(keys).reset_index(drop=True) for x in (ours, theirs))
    pd.testing.assert_frame_equal(ours, theirs)
    for words in (["--table", "tmlr_table2", "--scale", "mini"], ["--experiment", "lm/mini"]):
        ours, theirs = (call(x, *words, "--format", "csv") for x in (records, folder))
        assert ours.returncode == 0 and sorted(ours.stdout) == sorted(theirs.stdout)
    assert "contains recorded results" in call(records, "--record", records).stderr


@pytest.mark.parametrize("name, old, new, problem", [
    (
        "measurements/lm-mini-linear.csv", ",rope,,2,", ",rope,,1,",
        f"(line 8 repeats test perplexity of {RUN})",
    ),
    ("curves/lm-mini.csv", ",400.0", ",many", "could not convert"),
    ("settings/lm-mini.jsonl", '"kind": "lm"', '"kind": "lmm"', "unknown kind 'lmm': expected one of "),
    ("settings/lm-mini.jsonl", '"finished": ', '"ending": ', "finished: this key is missing"),
])  # fmt: skip
def test_damaged_records(name, old, new, problem, folder, records):
    path = records / name
    path.write_text(path.read_text().replace(old, new))
    done = call(folder, "--check", records)
    [line] = done.stderr.splitlines()
    assert done.returncode == 1 and f"{path} is damaged (" in line and problem in line


def test_records_of_changed_experiments_are_omitted(folder, records, tmp_path, monkeypatch):
    shutil.copytree(config_files.CONFIGS, tmp_path / "configs")
    monkeypatch.setattr(config_files, "CONFIGS", tmp_path / "configs")
    path = tmp_path / "configs/lm/mini.yaml"
    path.write_text(path.read_text() + "by_method: {cope: {clip_norm: 2}}\n")  # flags of another method
    assert not fairseq_lrpe.load_results(records)["problem"].any()
    path.write_text(path.read_text().replace("lr: 5e-3", "lr: 6e-3"))
    loaded = fairseq_lrpe.load_results(records)
    assert set(loaded["state"]) == {"other settings"} and loaded["value"].isna().all()
    assert set(loaded["problem"]) == {"train.lr was 0.005, now 0.006"}
    assert "no run of the table" in call(records, "--table", "tmlr_table2", "--scale", "mini").stderr
    code, [line] = check(folder, records)
    assert code == 0 and line.startswith("0 of 4 runs as recorded; 4 not compared: ")
    assert "lr was 0.005" in line


def test_runs_without_a_record_or_on_other_data_are_not_off(folder, records):
    write(folder, method="nope")
    write(folder, 1.0, data={"train.bin": 10})
    without = "1 without a record: lm/mini/linear_nope/seed-1"
    assert check(folder, records) == (0, [f"3 of 5 runs as recorded; {without}; 1 on other data: {RUN}"])


def test_numbers_must_be_equal_on_the_same_machine(folder, records):
    ours = math.nextafter(PERPLEXITY + 1, 99)
    write(folder, ours)
    code, lines = check(folder, records)
    assert code == 1 and lines[-1] == f"3 of 4 runs as recorded; 1 off: {RUN}"
    expected = f"{RUN}: valid perplexity is {ours!r}, recorded {PERPLEXITY + 1!r} (difference +7.1"
    assert lines[0].startswith(expected) and "equality is expected" in lines[0]


@pytest.mark.parametrize("changed", [
    {"versions": {**VERSIONS, "torch": "2.1"}},
    {"processor": {"name": "Toy CPU", "instructions": "AVX512", "threads": 1}},
])  # fmt: skip
def test_other_machines_may_differ_by_the_spread(changed, folder, records):
    write(folder, PERPLEXITY + 1 - 3.99, **changed)  # the standard deviation of the seeds is 1
    write(folder, 1.049 * PERPLEXITY, "base", **changed)
    assert check(folder, records) == (0, ["4 of 4 runs as recorded"])
    write(folder, PERPLEXITY + 1 + 4.01, **changed)
    write(folder, 1.06 * PERPLEXITY, "base", **changed)
    code, lines = check(folder, records)
    assert code == 1 and lines[-1] == f"2 of 4 runs as recorded; 2 off: lm/mini/linear_base/seed-1, {RUN}"
    assert len(lines) == 5 and lines[-2].endswith("(difference +4.01; allowed is 4)")


def test_diverged_runs(folder, tmp_path):
    write(folder, math.nan)
    call(folder, "--record", tmp_path / "records")
    assert check(folder, tmp_path / "records")[0] == 0
    write(folder, PERPLEXITY, versions={})
    assert check(folder, tmp_path / "records")[0] == 1


def test_no_record_is_omitted():
    """A changed default of a setting would hide the recorded runs of its experiments."""
    assert not list(omissions(read_runs(results.RECORDED)))
