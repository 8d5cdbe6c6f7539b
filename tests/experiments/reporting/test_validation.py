"""lrpe results --validate: real records without problems, and each kind of damage."""

import re
import shutil

import pytest
from support.quickstart_records import (
    CURVES,
    MEASUREMENTS,
    RECORDS,
    ROW,
    RUN,
    SETTINGS,
    change_line,
    change_rows,
    copy_seed,
    read_line,
    write_line,
)
from support.tiny import run_here

from fairseq_lrpe.cli import results
from fairseq_lrpe.experiments.reporting.validation import validate

ALL = ".*\n"
FAILED = {"updates": 120, "reason": "diverged"}
ENDED = {"updates": 200, "reason": "patience"}


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with the recorded results of one experiment."""
    for name in (SETTINGS, MEASUREMENTS, CURVES):
        target = tmp_path / "records" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(RECORDS / name, target)
    return tmp_path / "records"


@pytest.fixture
def base(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "base")


@pytest.fixture
def base_without_run(base):
    """Returns a copy of the records, compared with which ``RUN`` is new."""
    write_line(base, "")
    change_rows(base, MEASUREMENTS, ALL, "")
    change_rows(base, CURVES, ALL, "")
    return base


def problems_of_run(folder, base=None):
    problems = validate(folder, base)
    assert all(problem.startswith(f"{RUN}: ") for problem in problems), problems
    return [problem.removeprefix(f"{RUN}: ") for problem in problems]


def command(folder, *words):
    done = run_here(results.main, "--validate", folder, *words)
    assert (done.returncode == 1) == bool(done.stdout)
    return done.stdout.splitlines()


def test_records_without_problems(folder, base_without_run):
    assert command(folder) == [] and command(folder, "--results", base_without_run) == []
    assert command(folder, "--results", folder) == []


@pytest.mark.slow
def test_all_records():
    assert validate(RECORDS) == [] and validate(RECORDS, RECORDS) == []


VERSIONS = {"torch": "2.13.0", "fairseq_lrpe": "2.0.0"}
CONFIG = read_line(RECORDS)["config"]
DIFFER = "its settings differ from those in configs"


@pytest.mark.parametrize(("changed", "messages"), [
    ({"versions": {"torch": "2.13.0"}}, ["versions.fairseq_lrpe: this key is missing"]),
    ({"versions": VERSIONS | {"torch": "x"}}, ["versions.torch: expected a version such as 2.0.1, not 'x'"]),
    ({"machine": None}, ["machine: this key is missing"]),
    ({"machine": "-"}, ["machine: expected a CPU or GPUs, not '-'"]),
    ({"finished": "yesterday"}, ["finished: expected a date such as 2026-01-31, not 'yesterday'"]),
    ({"seconds": -1}, ["seconds: input should be greater than or equal to 0"]),
    ({"comment": "x"}, ["comment: unknown key"]),
    ({"kind": "memory_lm"}, ["kind: expected 'lm' as in config, not 'memory_lm'"]),
    ({"config": CONFIG | {"train.lr": 0.25}}, [f"{DIFFER}: train.lr was 0.25, now 0.005"]),
    ({"config": CONFIG | {"train.lr": "0.005"}}, [f"{DIFFER}: train.lr was '0.005', now 0.005"]),
    ({"updates": 100}, ["updates: expected 250 as in config, not 100",
                        "its curve ends at update 250, after the 100 updates of its training"]),
    ({"ended": ENDED}, ["its curve ends at update 250, after the 200 updates of its training"]),
    ({"ended": ENDED | {"reason": "x"}},
     ["ended.reason: input should be 'diverged', 'patience', 'stop_min_lr' or 'max_epoch'",
      "its curve ends at update 250, after the 200 updates of its training"]),
    ({"ended": ENDED | {"updates": 300}}, ["ended.updates: expected at most 250, not 300"]),
    ({"evaluations": {}}, ["its evaluation test has measurements, but no settings"]),
    ({"evaluations": {"test": read_line(RECORDS)["evaluations"]["test"], "x": {"split": "test"}}},
     ["its evaluation x is not defined in configs", "its evaluation x has no measurements"]),
])  # fmt: skip
def test_settings(changed, messages, folder):
    change_line(folder, **changed)
    assert problems_of_run(folder) == messages


@pytest.mark.parametrize(("changed", "message"), [
    ({"git": {"revision": 12 * "0", "dirty": True}},
     "git.dirty: the code had changes without a commit: commit them, and train again"),
    ({"git": {"revision": "", "dirty": False}},
     "git.revision: expected the first 12 digits of a commit, not ''"),
    ({"git": None}, "git: this key is missing"),
    ({"finished": "2999-01-01"}, "finished: 2999-01-01 is in the future"),
    ({"machine": "CPU fp32"},
     "machine: expected GPUs such as '2 × NVIDIA A100 fp16', or a CPU and its threads such as "
     "'CPU (AMD EPYC, 1 thread) fp32', not 'CPU fp32'"),
])  # fmt: skip
def test_settings_that_only_new_runs_need(changed, message, folder, base_without_run):
    change_line(folder, **changed)
    assert problems_of_run(folder) == [] and problems_of_run(folder, base_without_run) == [message]


@pytest.mark.parametrize("machine", ["8 × NVIDIA A100 fp16", "CPU (A, 2 processes with 1 thread each) fp32"])
def test_machines_of_new_runs(machine, folder, base_without_run):
    change_line(folder, machine=machine)
    assert problems_of_run(folder, base_without_run) == []


def test_empty_settings_of_an_evaluation(folder):
    change_line(folder, evaluations={"test": {}})
    problems = problems_of_run(folder)
    assert f"{DIFFER}: evaluations.test.split was None, now test" in problems


def test_unknown_method(folder):
    copy_seed(folder, 2)
    for name in (SETTINGS, MEASUREMENTS, CURVES):
        path = folder / name
        path.write_text(path.read_text().replace(",rope,,2,", ",x,,2,"))
    path = folder / SETTINGS
    *lines, last = path.read_text().splitlines()
    path.write_text("\n".join([*lines, last.replace('"rope"', '"x"')]))
    [problem] = validate(folder)
    assert problem.startswith("lm/quickstart/linear_x/seed-2: unknown method 'x'")


PERPLEXITY = "perplexity,87.25"


@pytest.mark.parametrize(("name", "pattern", "replacement", "messages"), [
    (MEASUREMENTS, PERPLEXITY, "perplexity,inf",
     ["its test perplexity is inf: expected a finite number of at least 1"]),
    (MEASUREMENTS, PERPLEXITY, "perplexity,87.35",
     ["its test perplexity is 87.35, which contradicts its 6.4472 bits: expected 87.2571"]),
    (MEASUREMENTS, "nats,4.46", "nats,4.45",
     ["its test nats is 4.45886, which contradicts its 6.4472 bits: expected 4.46886"]),
    (MEASUREMENTS, "bits,6.4472", "bits,6444.72",
     ["its test nats is 4.46886, which contradicts its 6444.72 bits: expected 4467.14"]),
    (MEASUREMENTS, "bits,6", "bits,-6", ["its test bits is -6.4472: expected a finite number of at least 0"]),
    (MEASUREMENTS, PERPLEXITY, "perplexity,nan",
     ["its test perplexity is nan: expected a number, because its settings name no divergence (ended)"]),
    (MEASUREMENTS, "perplexity", "perplexety", [
        "its evaluation test has no perplexity",
        "its evaluation test has the unknown metric perplexety: expected perplexity, bits, nats, "
        "tokens_per_second, rows_per_second"]),
    (MEASUREMENTS, f".*{PERPLEXITY}.*\n", "", ["its evaluation test has no perplexity"]),
    (MEASUREMENTS, ".*,bits,.*\n", "", ["its evaluation test has no bits"]),
    (MEASUREMENTS, ".*,test,.*\n", "", ["its evaluation test has no measurements"]),
    (MEASUREMENTS, ALL, "", ["it has no measurements"]),
    (CURVES, ALL, "", ["it has no curve"]),
    (CURVES, ",250,.*\n", ",250,nan\n",
     ["its curve ends with nan, but its settings name no divergence (ended)"]),
    (CURVES, ",105.2\n", ",-105.2\n", ["its curve has a negative value, -105.2"]),
    (CURVES, ".*,250,.*\n", "", ["its curve ends at update 200, before the 250 updates of its training"]),
    (CURVES, ".*,(50|[12][05]0),(?!81).*\n", "", ["its curve has only one point"]),
])  # fmt: skip
def test_numbers(name, pattern, replacement, messages, folder):
    change_rows(folder, name, pattern, replacement)
    assert problems_of_run(folder) == messages


def test_evaluation_that_is_missing_in_settings_and_measurements(folder):
    change_line(folder, evaluations={})
    change_rows(folder, MEASUREMENTS, ".*,test,.*\n", "")
    assert problems_of_run(folder) == ["its evaluation test has no measurements"]


def test_run_that_diverged_or_ended_early(folder, base_without_run):
    """A diverged run has NaN as its first metric, and no others."""
    change_rows(folder, CURVES, ".*,250,.*\n", "")
    change_line(folder, ended=ENDED)
    assert problems_of_run(folder, base_without_run) == []
    change_line(folder, ended=FAILED)
    change_rows(folder, CURVES, ".*,(150|200),.*\n", "")
    change_rows(folder, MEASUREMENTS, ".*,(bits|nats),.*\n", "")
    change_rows(folder, MEASUREMENTS, PERPLEXITY, "perplexity,nan")
    assert problems_of_run(folder, base_without_run) == []


def test_other_data(folder, base_without_run):
    change_line(folder, data="01234567")
    message = "it was trained on other data than lm/quickstart/linear_base/seed-1 (data)"
    assert problems_of_run(folder, base_without_run) == [message]


def test_copy_of_another_seed(folder, base):
    copy_seed(folder, 2)
    other = RUN.replace("seed-1", "seed-2")
    for words in ((), (base,)):
        assert validate(folder, *words) == [f"{other}: all its numbers are those of {RUN}"]


def test_seeds_with_equal_measurements_but_other_curves(folder, base):
    copy_seed(folder, 2)
    path = folder / CURVES
    path.write_text(path.read_text().replace(",rope,,2,100,179.13", ",rope,,2,100,179.12"))
    assert validate(folder, base) == []


@pytest.mark.parametrize(("name", "other"), [
    (SETTINGS, SETTINGS), (SETTINGS, "settings/other.jsonl"),
    (MEASUREMENTS, MEASUREMENTS), (MEASUREMENTS, "measurements/other.csv"),
    (CURVES, CURVES),
])  # fmt: skip
def test_repeated_line(name, other, folder):
    first, *lines = (folder / name).read_text().splitlines(keepends=True)
    line = next(line for line in lines if "rope" in line)
    if (folder / other).exists():
        before = (folder / other).read_text()
    else:
        before = first if name == MEASUREMENTS else ""
    (folder / other).write_text(before + line)
    done = run_here(results.main, "--validate", folder)
    [message] = done.stderr.splitlines()
    assert done.returncode == 1 and RUN in message
    assert re.search(r"\.(csv|jsonl) is damaged \(line \d+ ", message)


def test_columns_and_names_of_files(folder):
    path = folder / MEASUREMENTS
    path.write_text(re.sub("$", ",x", path.read_text().rstrip(), flags=re.MULTILINE))
    (folder / CURVES).rename(folder / "curves/other.csv")
    assert validate(folder) == [
        "curves/other.csv: no recorded experiment has this name",
        f"{MEASUREMENTS}: unknown columns x",
    ]


def test_numbers_without_a_run_and_a_run_without_numbers(folder):
    for name in (MEASUREMENTS, CURVES):
        change_rows(folder, name, ROW, ROW.replace(",1,", ",77,"))
    other = RUN.replace("seed-1", "seed-77")
    assert validate(folder) == [
        f"{RUN}: it has no measurements",
        f"{RUN}: it has no curve",
        f"{other}: measurements without a line in settings/",
        f"{other}: curve points without a line in settings/",
    ]


def test_changed_records(folder, base):
    change_rows(folder, MEASUREMENTS, "bits,6.4472", "bits,6.4471")
    change_rows(folder, MEASUREMENTS, ".*,nats,.*\n", "")
    change_rows(folder, MEASUREMENTS, PERPLEXITY, "accuracy,87.25")
    change_rows(folder, CURVES, ALL, "")
    change_line(folder, machine="2 × NVIDIA A100 fp32")
    assert problems_of_run(folder, base) == [
        "its recorded machine changed",
        "measurement test bits was 6.4472, now 6.4471",
        "measurement test nats was 4.468858502506079, now missing",
        "measurement test perplexity was 87.25, now missing",
        "measurement test accuracy was missing, now 87.25",
        "all 5 curve points are missing",
    ]


@pytest.mark.parametrize(("names", "message"), [
    ((MEASUREMENTS,), "all 16 measurements are missing"),
    ((CURVES,), "all 20 curve points are missing"),
    ((SETTINGS,), "all 4 runs are removed"),
    ((SETTINGS, MEASUREMENTS, CURVES), "all 4 runs are removed"),
])  # fmt: skip
def test_deleted_files(names, message, folder, base):
    for name in names:
        (folder / name).unlink()
    assert command(folder, "--results", base)[-1] == f"lm/quickstart: {message}"


def test_new_runs_may_be_added_and_none_removed(folder, base_without_run):
    assert validate(folder, base_without_run) == []
    assert validate(base_without_run, folder) == [f"{RUN}: it is removed"]


def test_folders_without_records(tmp_path, folder):
    for words in ((tmp_path,), (folder, "--results", tmp_path)):
        done = run_here(results.main, "--validate", *words)
        [line] = done.stderr.splitlines()
        assert done.returncode == 1 and f"{tmp_path} contains no recorded results" in line
