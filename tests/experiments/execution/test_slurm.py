"""Runs as jobs of a real SLURM cluster: all of them end like local runs."""

import json
import re
import subprocess
import time

import pytest
from support.slurm_cluster import slurm_cluster, wait_until
from support.tiny import (
    BIN,
    REPOSITORY,
    SMALL_LM,
    TINY_EXTENSION,
    job_of,
    output_of,
    read,
    run_command,
    run_here,
    succeeded,
    write_configs,
)

from fairseq_lrpe.cli import table, train
from fairseq_lrpe.experiments.execution import slurm, slurm_queue
from fairseq_lrpe.experiments.execution.job import State
from fairseq_lrpe.experiments.execution.run_files import read_log
from fairseq_lrpe.fairseq_ext.checkpoint import read_checkpoint

pytestmark = pytest.mark.slow

SMALL = [*SMALL_LM, "train.warmup_updates=4", "train.log_interval=2", "train.save_interval_updates=100"]
SMALL += ["train.validate_interval_updates=100", "evaluations.test=null", "seeds=[1]"]
TABLE = ["tmlr_table2", "--scale", "mini", "--methods", "base", "rope"]
CHOICE = "choose.train.dropout=[0.0,0.2]"  # two trials and a run that chooses, for each method
TIMES = ("wps", "ups", "wall", "gb_free", "clip")


@pytest.fixture(scope="module")
def slurm_nodes():
    with slurm_cluster() as nodes:
        yield nodes


@pytest.fixture
def environment(slurm_nodes, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", slurm_nodes.environment["SLURM_CONF"])
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.5)
    monkeypatch.setattr(slurm_queue, "POLL_SECONDS", 0.5)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    # Jobs run in new processes, not in forks of this one.
    monkeypatch.setattr(slurm, "PYTHON", str(BIN / "python"))
    monkeypatch.delenv("PYTHON_EXEC", raising=False)
    return slurm_nodes


def measured(results):
    """Returns {run: (log without times, evaluations, weights)} of all finished runs."""
    found = {}
    for path in results.rglob("evaluation.json"):
        record, folder = json.loads(path.read_text()), path.parent
        assert "finished" in record, folder
        record["evaluations"].pop("training")
        entries = [
            {key: value for key, value in entry.items() if not key.endswith(TIMES)}
            for entry in list(read_log(folder))
        ]
        weights = {}
        for name in ("best", "last"):
            if (path := folder / f"checkpoints/checkpoint_{name}.pt").exists():
                state = read_checkpoint(path, "")["model"]
                weights |= {(name, key): value.numpy().tobytes() for key, value in state.items()}
        found[str(folder.relative_to(results))] = entries, record["evaluations"], weights
    return found


def running(nodes, state="RUNNING"):
    return nodes.run("squeue", "-h", "-t", state, "-o", "%i").split()


def start(nodes, job):
    """Starts a requeued job, which would otherwise wait for two minutes."""

    def is_started():
        nodes.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        time.sleep(3)  # for the scheduler
        return job not in running(nodes, "PENDING")

    wait_until(is_started, "the start of the job", seconds=300)


def trained_updates(results):
    return {path.parent: len(list(read_log(path.parent))) for path in results.rglob("log.jsonl")}


def test_table_ends_like_a_local_one(environment, data_bin, tmp_path):
    """Also after a killed submission, a second one, a requeue, a cancelled job and a restarted slurmctld."""
    words = [*TABLE, *SMALL, CHOICE, "updates=100", f"data={data_bin}"]
    on_nodes = [*words, "--launcher", "slurm", "--results", tmp_path / "slurm"]

    command = [BIN / "lrpe", "table", *map(str, on_nodes)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_until(lambda: environment.run("squeue", "-h"), "a job")
    process.kill()
    process.communicate()
    known = len(environment.run("squeue", "-h").split("\n")) - 1
    assert 1 <= known <= 6
    submitted, queued = map(int, re.findall(r"\d+", output_of(table.main, *on_nodes))[:2])
    assert submitted <= 6 - known and queued <= 6  # sbatch may have been running when the process was killed
    assert output_of(table.main, *on_nodes).startswith("0 jobs submitted")

    wait_until(lambda: sum(trained_updates(tmp_path / "slurm").values()) > 4, "a training")
    [first, *_] = running(environment)
    environment.run("scontrol", "requeue", first)
    start(environment, first)
    [*_, last] = running(environment, "PENDING")
    environment.run("scancel", last)
    environment.restart_controller()
    status = output_of(table.main, *words, "--status", "--results", tmp_path / "slurm")
    assert "running" in status.splitlines()[-1] or "queued" in status.splitlines()[-1]

    shown = output_of(table.main, *on_nodes, "--wait")
    assert "1 jobs submitted" in shown and "| linear | RoPE |" in shown
    assert output_of(table.main, *words, "--status", "--results", tmp_path / "slurm").endswith("6 finished\n")
    output_of(table.main, *words, "--jobs", 2, "--cpu", "--results", tmp_path / "local")
    assert measured(tmp_path / "slurm") == measured(tmp_path / "local")


def test_finished_run_of_gpus_is_accepted(environment, data_bin, tmp_path):
    """The precision is that of the nodes, not of the machine that submits."""
    words = ["lm/mini", "rope", *SMALL, "updates=4", f"data={data_bin}", "--results", tmp_path]
    output_of(train.main, *words, "--cpu")
    [path] = tmp_path.rglob("run.json")
    path.write_text(path.read_text().replace('"precision": "fp32"', '"precision": "fp16"'))
    for given in (["--gpus", 1], [], ["--precision", "fp16"]):
        assert output_of(train.main, *words, "--launcher", "slurm", *given).startswith("0 jobs submitted")
    for given in (["--cpu"], ["--gpus", 1, "--precision", "bf16"]):
        refused = run_here(train.main, *words, "--launcher", "slurm", *given)
        assert refused.returncode == 1 and "(precision was fp16, now " in refused.stderr


def test_run_is_saved_and_requeued_before_its_time_limit(environment, data_bin, tmp_path):
    words = ["lm/mini", "rope", "--cpu", *SMALL, "updates=600", f"data={data_bin}"]
    on_nodes = [*words, "--launcher", "slurm", "--results", tmp_path / "slurm"]
    output_of(train.main, *on_nodes)
    wait_until(
        lambda: any(updates > 4 for updates in trained_updates(tmp_path / "slurm").values()), "a training"
    )
    [job] = running(environment)
    # What SLURM sends to all processes of a job before its time limit.
    environment.run("scancel", "--signal=USR2", job)
    wait_until(lambda: running(environment, "PENDING"), "the requeued job")
    start(environment, job)
    output_of(train.main, *on_nodes, "--wait")
    assert "DUE TO JOB REQUEUE" in next((tmp_path / "slurm").rglob("*_log.err")).read_text()
    output_of(train.main, *words, "--results", tmp_path / "local")
    assert measured(tmp_path / "slurm") == measured(tmp_path / "local")


def test_failed_run_is_reported_with_the_last_line_of_its_log(environment, data_bin, tmp_path):
    words = ["lm/mini", "rope", "--cpu", *SMALL, "updates=4", f"data={data_bin}", "--results", tmp_path]
    done = run_here(train.main, *words, "--launcher", "slurm", "--wait", "--", "--lr-scheduler", "x")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "invalid choice: 'x'" in done.stderr and str(tmp_path) in done.stderr
    status = output_of(train.main, *words, "--status")
    assert "failed" in status and status.endswith("1 failed\n")


def test_jobs_in_the_queue_are_limited_and_cancelled(environment, data_bin, tmp_path):
    words = [*TABLE, *SMALL, CHOICE, "updates=100000", f"data={data_bin}", "--results", tmp_path, "--cpu"]
    shown = output_of(table.main, *words, "--launcher", "slurm", "--jobs", 2)
    assert "2 jobs submitted, 2 in the queue; 4 more wait" in shown
    assert output_of(table.main, *words, "--cancel") == "2 jobs cancelled\n"
    wait_until(lambda: not environment.run("squeue", "-h"), "the end of the jobs")
    rejected = run_here(table.main, *words, "--launcher", "slurm", "--slurm", "partition=none")
    assert "Invalid partition name specified" in rejected.stderr and len(rejected.stderr.splitlines()) == 1


def in_allocation(nodes, allocation, command, **variables):
    """Runs a command in an allocation, or with srun, as a new process; returns the finished process."""
    environment = nodes.environment | {"PYTHONPATH": str(REPOSITORY)} | variables
    words = [*allocation.split(), *map(str, command)]
    return subprocess.run(words, cwd=REPOSITORY, env=environment, capture_output=True, text=True)


def test_job_is_submitted_from_inside_an_allocation(environment, data_bin, tmp_path):
    """With the caller's options of sbatch and squeue, which must not reach the job, and % in the folder."""
    caller = {"SBATCH_PARTITION": "none", "SBATCH_TIMELIMIT": "x", "SQUEUE_STATES": "COMPLETED"}
    caller |= {"SLURM_MEM_PER_NODE": "1", "SLURM_NTASKS": "7", "SLURM_EXPORT_ENV": "NONE"}
    changes = [*SMALL, "updates=4", f"data={data_bin}", "train.adam_betas=(0.9,0.98)"]
    command = [
        "env",
        *(f"{name}={value}" for name, value in caller.items()),
        BIN / "lrpe",
        "train",
        "lm/mini",
    ]
    words = ["rope", "--cpu", *changes, "--launcher", "slurm", "--wait", "--results", tmp_path]
    done = in_allocation(environment, "salloc --quiet -N1 -n1", [*command, *words])
    assert done.returncode == 0, done.stderr
    assert "1 jobs submitted, 1 in the queue" in done.stdout
    [record] = tmp_path.rglob("evaluation.json")
    assert "finished" in json.loads(record.read_text()) and "%280.9" in str(record)
    assert {path.name.partition("_")[2] for path in record.parent.glob("slurm/*_log.*")} >= {"0_log.out"}


@pytest.mark.parametrize("allocation", ["salloc --quiet -N2 -n2", "srun --quiet -N1 -n1"])
def test_training_in_an_allocation_has_the_batch_of_the_experiment(
    environment, allocation, data_bin, tmp_path
):
    changes = [*SMALL, "updates=4", f"data={data_bin}", "batch.total=8", "batch.per_gpu=4"]
    words = ["lm/mini", "rope", "--cpu", "--gpus", 2, *changes, "--results", tmp_path]
    kubeflow = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    done = in_allocation(environment, allocation, [BIN / "lrpe", "train", *words], **kubeflow)
    assert done.returncode == 0, done.stderr
    [log] = tmp_path.rglob("train.log")
    assert "training on 2 devices" in log.read_text()
    entries = [entry for entry in read_log(log.parent) if entry["kind"] == "train_inner"]
    assert {entry["bsz"] for entry in entries} == {8}


SUBMISSION = """
import sys
from pathlib import Path
import cloudpickle
from fairseq_lrpe import extensions
from fairseq_lrpe.cli import train
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.execution import slurm
from fairseq_lrpe.experiments.execution.job import Job

extensions.load(["mine.py"])
args, overrides = train.parse(train.make_parser(), sys.argv[1:])
experiment = Experiment.load(args.experiment, overrides)
[run] = experiment.runs(args.attention, args.method, args.seeds)
job = slurm.SlurmRun(Job(experiment, run, args.results), args, slurm.own_files())
Path("job.pkl").write_bytes(cloudpickle.dumps(job))
"""
JOB = "import sys, cloudpickle; cloudpickle.load(open(sys.argv[1], 'rb'))()"


def test_job_has_the_modules_and_configs_of_the_command(data_bin, tmp_path):
    """The function of a job, in a process without their variables and in another folder."""
    (tmp_path / "mine.py").write_text(TINY_EXTENSION)
    write_configs(tmp_path / "configs", {"lm/own": {"defaults": "lm/mini"}})
    words = ["lm/own", "mine", *SMALL, "updates=2", f"data={data_bin}", "--cpu"]
    words += ["--results", tmp_path / "results"]
    path = {"PYTHONPATH": str(REPOSITORY)}
    succeeded(run_command("python", "-c", SUBMISSION, *words, folder=tmp_path, **path))
    variables = {"LRPE_IMPORT": "", "LRPE_CONFIGS": "", **path}
    succeeded(run_command("python", "-c", JOB, tmp_path / "job.pkl", folder="/", **variables))
    [run] = [path.parent for path in tmp_path.rglob("evaluation.json")]
    assert run.is_relative_to(tmp_path / "results/lm/own/linear_mine") and "finished" in read(run)


def test_several_tasks_of_srun_are_refused(environment):
    done = in_allocation(environment, "srun --quiet -N2 -n2", [BIN / "lrpe", "train", "lm/mini", "rope"])
    lines = [line for line in done.stderr.splitlines() if not line.startswith("srun: ")]
    expected = (
        "lrpe train: srun started this command as 2 processes, but lrpe itself starts those of a training"
    )
    assert (
        done.returncode == 1
        and lines == [f"{expected}: run it without srun, with --gpus 1 and --nodes 2"] * 2
    )


def test_missing_programs_are_named(environment, tmp_path, monkeypatch):
    (tmp_path / "sbatch").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for more in ([], ["--cancel"]):
        done = run_here(train.main, "lm/mini", "rope", "--cpu", "--launcher", "slurm", *more)
        assert done.returncode == 1 and done.stderr.startswith("train: srun was not found: ")


@pytest.mark.parametrize("results, options, message", [
    ("a\nb", [], "the results folder contains the control character '\\n': use a name without it"),
    ("%j", [], "SLURM replaces % in the path "),
    ("x", ["--slurm", "comment=a\ntouch b"], "the option comment of sbatch contains the control character"),
    ("x", ["--slurm", "a\ntouch b=c"], "'a\\ntouch b' is not an option of sbatch: use a name such as"),
    ("x", ["train.adam_betas=(0.9,0.98)#%j"], "SLURM cannot write logs to "),
])  # fmt: skip
def test_names_that_would_change_the_script_are_refused(
    results, options, message, data_bin, tmp_path, monkeypatch
):
    for name in ("sbatch", "srun", "squeue", "scancel"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    words = ["lm/mini", "rope", "--cpu", *SMALL, f"data={data_bin}", "--results", tmp_path / results]
    done = run_here(train.main, *words, "--launcher", "slurm", *options)
    assert done.returncode and message in done.stderr
    assert not list(tmp_path.rglob("*_submission.sh")) and not list(tmp_path.rglob(".submission_file*"))


def test_job_is_found_by_another_path_of_the_results(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path)
    job, other = (job_of("lm/mini", "rope", results=x) for x in (tmp_path, tmp_path / "link"))
    monkeypatch.setattr(slurm_queue, "squeue", lambda: [f"7|RUNNING|node1|None|{other.folder}"])
    status = slurm_queue.Status("7", State.RUNNING, "running on node1")
    assert slurm_queue.queue({job.run: job}) == {job.run: status}


def test_defaults_of_the_cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "REPOSITORY", tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/cluster.yaml").write_text(
        "partition: gpu\ntime: '1-0'\nexclusive: true\nrequeue: false\n"
    )
    options = slurm.sbatch_options(["cpus-per-gpu=8", "time=30"], 2)
    expected = {"partition": "gpu", "time": "30", "exclusive": True, "cpus-per-gpu": "8", "gpus-per-node": 2}
    assert expected.items() <= options.items() and "requeue" not in options and "cpus-per-task" not in options
