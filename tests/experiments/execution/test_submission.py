"""Which runs are submitted to SLURM, by the states of others. sbatch and squeue are replaced by scripts."""

from argparse import Namespace
from contextlib import ExitStack, contextmanager

import pytest
from support.tiny import job_of, write_run

from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.execution import slurm
from fairseq_lrpe.experiments.execution.job import Job, State
from fairseq_lrpe.experiments.execution.run_directory import locked
from fairseq_lrpe.experiments.execution.slurm_queue import queue

SBATCH = """#!/bin/sh
number=$(($(wc -l < {queue}) + 1))
echo "$number|PENDING||Priority|$(sed -n 's/^#SBATCH --comment=//p' "$1" | tr -d \\'\\")" >> {queue}
sed -n 's/^#SBATCH --dependency=//p' "$1" > {folder}/dependency-$number
echo "Submitted batch job $number"
"""
METHODS = ("base", "rope", "nope", "alibi")
OVERRIDES = ["evaluations.test=null"]


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    """The arguments of a command that submits runs; the folder "cluster" has the scripts and their queue."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    (folder / "queue").touch()
    programs = {"sbatch": SBATCH.format(queue=folder / "queue", folder=folder)}
    programs["squeue"] = f"#!/bin/sh\ncat {folder}/queue\n"
    programs["srun"] = "#!/bin/sh\n"
    for name, content in programs.items():
        (folder / name).write_text(content)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return Namespace(results=tmp_path / "results", jobs=None, slurm=[], cpu=True, gpus=None, nodes=1)


def independent_jobs(results):
    """Returns {run: job} of runs that do not need each other."""
    jobs = [job_of("lm/mini", method, overrides=OVERRIDES, results=results) for method in METHODS]
    return {job.run: job for job in jobs}


def jobs_of_a_choice(results):
    """Returns {run: job} of two trials and the run that chooses among them."""
    experiment = Experiment.load("lm/mini", [*OVERRIDES, "choose.train.dropout=[0.0,0.2]"])
    [choice] = experiment.runs("linear", "rope", [1])
    return {run: Job(experiment, run, results) for run in [*experiment.needs(choice), choice]}


@contextmanager
def in_state(state, job, arguments):
    """Puts the run of a job in a state during the block; yields the set of failed runs."""
    failed = set()
    with ExitStack() as stack:
        if state == State.QUEUED:
            slurm.submit({job.run: job}, arguments)
        elif state == State.RUNNING:
            stack.enter_context(locked(job.folder))
            assert job.state == state
        elif state == State.FINISHED:
            write_run(job.folder, {job.updates: 9.0}, valid=9.0)
            assert job.state == state
        elif state == State.FAILED:
            failed.add(job.run)
        yield failed


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.FINISHED, State.FAILED])
@pytest.mark.parametrize("index", [0, 1, len(METHODS) - 1])
def test_run_that_is_not_submitted_does_not_affect_others(index, state, arguments):
    jobs = independent_jobs(arguments.results)
    run = list(jobs)[index]
    with in_state(state, jobs[run], arguments) as failed:
        assert slurm.submit(jobs, arguments, failed) == (set(jobs) - {run}, 0)
        assert slurm.submit(jobs, arguments, failed) == (set(), 0)


@pytest.mark.parametrize("limit", range(1, len(METHODS) + 2))
def test_length_of_the_queue_is_limited(limit, arguments):
    jobs = independent_jobs(arguments.results)
    arguments.jobs = limit
    count = min(limit, len(jobs))
    assert slurm.submit(jobs, arguments) == (set(list(jobs)[:count]), len(jobs) - count)


@pytest.mark.parametrize(("state", "submitted", "waiting", "dependency"), [
    (State.ABSENT, [0, 1, 2], 0, "afterok:1:2"),
    (State.QUEUED, [1, 2], 0, "afterok:1:2"),
    (State.RUNNING, [1], 1, None),  # without a job that it could depend on
    (State.FINISHED, [1, 2], 0, "afterok:1"),
    (State.FAILED, [1], 0, None),
])  # fmt: skip
def test_run_starts_after_the_runs_that_it_needs(state, submitted, waiting, dependency, arguments):
    """The state is that of the first of two trials; the third run chooses among them."""
    jobs = jobs_of_a_choice(arguments.results)
    first, second, choice = jobs
    with in_state(state, jobs[first], arguments) as failed:
        runs = {list(jobs)[index] for index in submitted}
        assert slurm.submit(jobs, arguments, failed) == (runs, waiting)
    numbers = {run: status.number for run, status in queue(jobs).items()}
    folder = arguments.results.with_name("cluster")
    assert (folder / f"dependency-{numbers[second]}").read_text() == ""
    assert (choice in numbers) == (dependency is not None)
    if dependency:
        assert (folder / f"dependency-{numbers[choice]}").read_text().strip() == dependency
