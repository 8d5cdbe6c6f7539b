"""The command `lrpe table`: the runs of each table, the list of tables, and executing a table."""

import json
import threading
import time
from argparse import Namespace

import pytest
from support.tiny import SMALL_LM, output_of, pretend_gpus, read, run_command, run_here

from fairseq_lrpe.cli import table as table_command
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.definition.table_settings import SCALES
from fairseq_lrpe.experiments.execution import scheduler, slurm_queue
from fairseq_lrpe.experiments.execution.job import Job, State
from fairseq_lrpe.experiments.execution.launch import choose_machine
from fairseq_lrpe.experiments.execution.run_directory import locked
from fairseq_lrpe.methods import canonical
from fairseq_lrpe.utils.errors import UserError

SMALL_RUNS = {"iclr_table2": 12 + 14, "tmlr_table2": 8 * 3, "tmlr_table5": 9}  # at --scale small
TABLES = {  # number of runs at full scale and at --scale mini
    # Pretrainings, and fine-tunings with their trials.
    "tmlr_table1": (7 + 7 * 8 * 5 * (4 + 1), 7 * 2 + 7 * 5 * 2 * (2 + 1)),
    "iclr_table3": (10 + 10 * 4 * (4 + 1), 10 + 10 * 1 * 2 * (2 + 1)),
    "iclr_table8": (11 + 14, (11 + 14) * 2),
    "iclr_table4": ((11 + 14) * 5, (11 + 14) * 2),  # with fairseq's own model
    "tmlr_table2": (8 * 5 * 2, 8 * 3),
    "tmlr_table5": (9 * 5, 9 * 3),
    "tmlr_figure2": (4 + 4, 4 * 3 + 4 * 2),
    "iclr_figure2": (5 + 5, (5 + 5) * 2),
    "tmlr_table6": (7 * 3, 7 * 3),
    "iclr_table9": ((5 + 6) * 3, (5 + 6) * 3),
    "iclr_table2": ((12 + 14) * 5, (12 + 14) * 3),
    "iclr_table5": (3 * 2 * 5, 3 * 2 * 3),
    "quickstart": (4, None),
    "lfhc_table3": (5 * 10, (5 + 1 + 3 + 3 * 2) * 3),  # with and without running sums
    "lfhc_table7": (8 * 10, 8 * 3),
    "tmlr_table3": (8 * 5, 8 * 2),
    "tmlr_table4": (6 * 5 * 5, 6 * (3 * 3 + 2)),  # mini lacks Pathfinder
    # Three methods, and two with 4 values of k (3 for SST-2); mini has 3 for two tasks.
    "lfhc_table1": ((3 * 6 + 2 * (5 * 4 + 3)) * 10, (3 + 2) * 2 + (3 * 3 + 2 * (2 * 3 + 1)) * 3),
    "lfhc_table5": (2 * (5 * 4 + 3) * 10, 2 * (3 + 4) * 3),
    # Three values of k, mini has one.
    "lfhc_table2": ((3 + 2 * 3) * 2 * 10, (3 + 2 * 1) * 2 * 2),
    "lfhc_table6": (2 * 3 * 2 * 10, 2 * 3 * 2 * 2),
    "roper_wikipedia": (2, 2 * 3),
    "extrapolation": (124 * 3, 124 * 3),
    "rope_scaling": (10 * 3, 10 * 3),
    "recall": (146 * 3 * (1 + 4), 146 * 3),  # full chooses one of four learning rates
    "length_generalization": (124 * 3 * 2, 124 * 3),  # mini lacks sum
    "needle": (124 * 3, 124 * 3),
    "training_speed": (124 * 2 * 3, 124 * 2),  # two lengths
    "roper": ((2 + 4) * 3 * 10, (2 + 4) * (2 * 2 + 3)),  # and linear attention
}
CHANGED = sorted([*SMALL_LM, "updates=4"])
SMALL = [*CHANGED, "evaluations.test=null", "seeds=[1]"]
CHANGES = "/".join(word for word in CHANGED if not word.startswith("batch.per_gpu"))


def test_gpus_are_shared(monkeypatch):
    pretend_gpus(monkeypatch, {f"card {i}": (8, 0) for i in range(4)}, ["sm_80"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    given = {
        "cpu": False,
        "nodes": 1,
        "precision": None,
        "compile": None,
        "dry_run": False,
        "report_to": None,
    }
    assert choose_machine(Namespace(gpus=None, **given), 2)["gpus"] == 2
    assert scheduler.share_of_machine(1, 2, 2) == {"CUDA_VISIBLE_DEVICES": "6,7"}
    for jobs, gpus in ((3, 2), (5, None)):
        with pytest.raises(UserError, match="GPUs each needs more than this machine's 4"):
            choose_machine(Namespace(gpus=gpus, **given), jobs)


@pytest.mark.parametrize("name", TABLES)
def test_runs_and_their_order(name):
    full, mini = TABLES[name]
    for scale, count in zip(SCALES, (full, SMALL_RUNS.get(name), mini), strict=True):
        if count is None:
            with pytest.raises(ValueError, match=f"has no experiment at --scale {scale}; use --scale full"):
                Table(name, scale)
            continue
        table = Table(name, scale)
        runs = table.runs()
        assert len(runs) == len(set(runs)) == count
        for number, one in enumerate(runs):
            assert set(table.experiment_of(one).needs(one)) <= set(runs[:number])
        needed = {other for one in runs for other in table.experiment_of(one).needs(one)}
        first = {one for one in needed if table.experiment_of(one).cfg.kind == "roberta"}
        assert set(runs[: len(first)]) == first  # the pretrainings of fine-tuned models
        for part in (runs[: len(first)], runs[len(first) :]):
            assert [one.seed for one in part] == sorted(one.seed for one in part)
        assert all(canonical(one.method) == one.method for one in runs)


def test_overrides_apply_to_all_runs():
    table = Table("tmlr_table1", "mini", ["train.dropout=0.3", "choose.train.lr=[0.5]", "epochs=7"])
    runs = table.runs(methods=["rope"])
    assert str(runs[0]) == "roberta/mini/linear_rope/train.dropout=0.3/seed-1"
    assert str(runs[1]) == "glue/mini/linear_rope/epochs=7/task=RTE/train.dropout=0.3/train.lr=0.5/seed-1"
    assert len(runs) == 2 + 5 * 2 * (1 + 1)
    assert len(Table("tmlr_table1", "mini", ["choose=null"]).runs(methods=["rope"])) == 2 + 5 * 2
    assert {run.seed for run in Table("tmlr_table2", "mini", ["seeds=[7]"]).runs()} == {7}


def test_dry_run_prints_commands(tmp_path):
    words = ["tmlr_table1", "--scale", "mini", "--methods", "rope", "--results", tmp_path / "results"]
    first, *later = output_of(table_command.main, *words, "--dry-run", "grid.task=[RTE]").splitlines()
    assert first.startswith("fairseq-train data/wikitext_mini_bpe/bin ")
    fine_tunings = [line for line in later if line.startswith("#")]
    assert len(fine_tunings) == 2 * 2 and len(later) == 2 * 2 + 1  # rates and seeds, and a second pretraining
    for line in fine_tunings:
        assert line.startswith("# glue/mini/linear_rope/task=RTE/train.lr=")
        assert line.endswith("/seed-1/checkpoints/checkpoint_best.pt, which does not exist yet")
    assert not (tmp_path / "results").exists()


WORKING = ("ablation_identity_unitary", "ablation_identity_orthogonal")
FAILING = "ablation_identity_permutation"


def test_failing_run_does_not_stop_others_and_finished_runs_are_not_repeated(data_bin, tmp_path, monkeypatch):
    def folder(method):
        return tmp_path / f"lm/mini/linear_{method}/{CHANGES}/seed-1"

    folder(FAILING).mkdir(parents=True)
    (folder(FAILING) / "run.json").write_text("{}}")
    words = ["tmlr_table5", "--scale", "mini", "--jobs", 2, "--cpu", "--results", tmp_path]
    words += [*SMALL, f"data={data_bin}", "--methods", *WORKING]
    plot = tmp_path / "plot.svg"
    done = run_command("python", "-m", "fairseq_lrpe", "table", *words, FAILING, "--plot", plot)
    assert done.returncode == 1
    for method in WORKING:
        assert read(folder(method), "run.json")["updates"] == 4
        assert f"finished lm/mini/linear_{method}/{CHANGES}/seed-1" in done.stdout
    assert f"FAILED   lm/mini/linear_{FAILING}/{CHANGES}/seed-1" in done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert f"lm/mini/linear_{FAILING}/{CHANGES}/seed-1: " in last and "run.json is damaged" in last
    assert "| linear | Identity × Unitary |" in done.stdout and "(4 updates)" in done.stdout
    assert plot.exists()

    settings = read(folder(WORKING[1]), "run.json")
    other = settings | {"data": {name: size + 2 for name, size in settings["data"].items()}}
    (folder(WORKING[1]) / "run.json").write_text(json.dumps(other))
    changed = run_here(table_command.main, *words)
    assert changed.returncode == 1 and "started" not in changed.stdout
    assert f"linear_{WORKING[1]}/{CHANGES}/seed-1 contains a run with other settings" in changed.stderr
    (folder(WORKING[1]) / "run.json").write_text(json.dumps(settings))

    before = (folder(WORKING[0]) / "evaluation.json").stat().st_mtime_ns
    assert "started" not in output_of(table_command.main, *words)
    assert before == (folder(WORKING[0]) / "evaluation.json").stat().st_mtime_ns

    damaged = folder(WORKING[0]) / "evaluation.json"
    damaged.write_text("{")
    again = run_here(table_command.main, *words)
    assert again.returncode == 1 and f"{damaged} is damaged (" in again.stderr
    assert "| linear | Identity × Orthogonal |" in again.stdout and "(4 updates)" in again.stdout
    monkeypatch.setattr(slurm_queue, "squeue", list)
    assert output_of(table_command.main, *words, "--status").endswith("1 failed, 1 finished\n")


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """Returns (jobs, names of executed runs); a run that is executed writes a finished record."""
    experiment = Experiment.load("lm/mini", ["choose.train.lr=[1e-3,1e-2]", "evaluations={}"])
    [chooser] = experiment.runs("linear", "base", [1])
    [other] = experiment.runs("linear", "rope", [1])
    runs = [*experiment.trials(chooser), chooser, experiment.trials(other)[0]]
    done = []

    def execute(job):
        done.append(job)
        if job.run == runs[0] and fails:
            raise fails[0]
        job.folder.mkdir(parents=True, exist_ok=True)
        tried = {"tried": {"train.lr=0.001": {}, "train.lr=0.01": {}}} if job.run == chooser else {}
        (job.folder / "evaluation.json").write_text(json.dumps({"finished": "now", **tried}))

    fails = []
    monkeypatch.setattr(scheduler, "execute_run", execute)
    monkeypatch.setattr(scheduler, "check", lambda job: None)
    monkeypatch.setattr(scheduler, "POLL_SECONDS", 0.01)
    return {run: Job(experiment, run, tmp_path) for run in runs}, done, fails


def test_runs_are_executed_after_those_they_need(planned, capsys):
    jobs, done, _ = planned
    first, second, chooser, _ = jobs
    assert scheduler.Scheduler(jobs, 2, 0).execute_all() == []
    order = [job.run for job in done]
    assert set(order) == set(jobs) and order.index(chooser) > max(order.index(first), order.index(second))
    assert all(job.environment and job.stop is not None for job in done)
    assert {job.state for job in jobs.values()} == {State.FINISHED}
    assert scheduler.Scheduler(jobs, 2, 0).execute_all() == [] and len(done) == 4


@pytest.mark.parametrize("error, shown", [(UserError("no"), "no"), (KeyError("x"), "Traceback")])
def test_run_that_depends_on_a_failed_one_is_not_started(planned, error, shown, capsys):
    jobs, done, fails = planned
    first, _, chooser, _ = jobs
    fails.append(error)
    one, other = scheduler.Scheduler(jobs, 1, 0).execute_all()
    assert one.startswith(f"{first}: {shown}") and other == f"{chooser}: not started: {first} failed"
    assert chooser not in [job.run for job in done] and len(done) == 3


def test_run_in_use_by_another_process_is_waited_for(planned, capsys):
    """Then it is not executed again if the other process has finished it."""
    jobs, done, _ = planned
    first, shown = next(iter(jobs.values())), ""
    with locked(first.folder):
        assert first.state == State.RUNNING
        thread = threading.Thread(target=scheduler.Scheduler(jobs, 1, 0).execute_all)
        thread.start()
        while "waiting" not in shown:  # after the other two runs that do not need it
            time.sleep(0.01)
            shown += capsys.readouterr().out
        (first.folder / "evaluation.json").write_text('{"finished": "now"}')
    thread.join()
    assert first.run not in [job.run for job in done] and len(done) == 3
    shown += capsys.readouterr().out
    assert shown.count(f"waiting  {first.run}: in use by another process") == 1
