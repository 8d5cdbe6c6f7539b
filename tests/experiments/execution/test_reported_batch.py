"""The processes and the batch of a training, in every environment and as fairseq reports them."""

import copy
import json
import os
import subprocess
from importlib import import_module

import pytest
from support.tiny import BIN, REPOSITORY, SMALL_LM, job_of, run_here

from fairseq_lrpe.cli import train
from fairseq_lrpe.experiments.execution import training
from fairseq_lrpe.experiments.execution.launch import train_command
from fairseq_lrpe.experiments.execution.reported_batch import ReportedBatch
from fairseq_lrpe.experiments.execution.run_files import read_log
from fairseq_lrpe.experiments.execution.run_log import Log

KUBEFLOW = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "23456"}
SLURM = {"SLURM_JOB_NODELIST": "node1", "SLURM_NNODES": "1", "SLURM_NODEID": "0", "SLURM_PROCID": "0"}
SLURM |= {"SLURM_LOCALID": "0", "SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "8", "SLURM_JOB_ID": "7"}


@pytest.mark.parametrize("environment", [{}, KUBEFLOW, SLURM, {**KUBEFLOW, **SLURM}, {"LOCAL_RANK": "3"}])
@pytest.mark.parametrize("gpus", [1, 4, 8])
def test_command_is_right_in_every_environment(environment, gpus, monkeypatch):
    """fairseq starts as many processes as the command says, of 8 visible GPUs."""
    import torch
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.distributed.utils import infer_init_method

    words = train_command(job_of("lm/wikitext103", "rope", gpus=gpus, cpu=False, precision="fp16"))
    import_module("fairseq_lrpe.models")
    parser = options.get_training_parser()
    cfg = copy.deepcopy(convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words[1:])))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    started = cfg.distributed_training
    infer_init_method(started)
    assert started.distributed_world_size == gpus and not started.distributed_no_spawn
    assert started.device_id == 0 and started.distributed_rank == 0
    assert (started.distributed_init_method is None) == (gpus == 1)
    assert cfg.optimization.update_freq[0] * gpus * cfg.dataset.batch_size == 128


def checked(lines, **machine):
    job = job_of("lm/wikitext103", "rope", cpu=True, **machine)  # 128 sequences, 8 per process
    report = ReportedBatch(job, Log.parse.__get__(Log.__new__(Log)))
    for line in lines:
        report.check(line)


def inner(updates, bsz, update):
    entry = {"epoch": 1, "update": update, "loss": "1", "bsz": str(bsz), "num_updates": str(updates)}
    return f"2026-01-01 | INFO | train_inner | {json.dumps(entry)}"


@pytest.mark.parametrize("lines, message", [
    (["training on 2 devices (GPUs/TPUs)"], None),
    (["training on 1 devices (GPUs/TPUs)"], "reports 1 processes instead of 2"),
    (["max tokens per device = None and max sentences per device = 8"], None),
    (["max tokens per device = None and max sentences per device = 4"], "4 sequences per process instead"),
    (["max tokens per device = 512 and max sentences per device = 8"], "512 tokens per process instead"),
    ([inner(10, 128, 0.1), inner(20, 128, 0.2)], None),
    ([inner(10, 128, 0.1), inner(20, 127.3, 0.2)], None),  # one batch of an epoch has a single sequence
    ([inner(10, 128, 0.1), inner(20, 127.2, 0.2)], "reports 127.2 sequences per update instead of 128"),
    ([inner(10, 256, 0.1)], "reports 256 sequences per update instead of 128"),
    ([inner(10, 64, 0.1)], None),  # it may contain the end of an epoch before a resumption
    ([inner(0, 128, 0.1), inner(0, 121, 0.1)], None),  # a gradient overflowed
    ([inner(10, 128, 0.9), inner(20, 100, 1.0)], None),  # the last update of the epoch
])  # fmt: skip
def test_report_of_fairseq_is_compared(lines, message):
    if message is None:
        checked(lines, gpus=2)
        return
    with pytest.raises(ValueError, match=message):
        checked(lines, gpus=2)


@pytest.mark.slow
def test_run_with_another_batch_is_stopped(data_bin, tmp_path, monkeypatch):
    changes = [*SMALL_LM, "updates=9", "train.log_interval=1", f"data={data_bin}"]
    words = ["lm/mini", "rope", "--cpu", *changes, "--results", tmp_path]
    refused = run_here(train.main, *words, "--", "--max-sentences", "2")
    assert "--max-sentences cannot be set, because lrpe chooses its value" in refused.stderr
    monkeypatch.setattr(training, "train_command", lambda job: [*train_command(job), "--update-freq", "3"])
    done = run_here(train.main, *words)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "fairseq-train reports 12 sequences per update instead of 4, so the run was stopped" in done.stderr
    assert not list(tmp_path.rglob("evaluation.json"))


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a host name of its own")
def test_two_processes_in_a_container(data_bin, tmp_path):
    """Its host name does not resolve, and it has the variables of a cluster. The script is right, too."""
    cluster = {**KUBEFLOW, "PET_NNODES": "2", "PET_NPROC_PER_NODE": "8", "LOCAL_RANK": "5"}
    cluster |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "PYTHONPATH": str(REPOSITORY)}
    cluster |= {"PATH": f"{BIN}:{os.environ['PATH']}"}
    changes = [*SMALL_LM, "updates=4", "train.warmup_updates=2", "batch.total=8", "batch.per_gpu=4"]
    changes += ["train.log_interval=1", "evaluations.valid=null", "evaluations.test=null", f"data={data_bin}"]
    words = ["lm/mini", "rope", "--cpu", "--gpus", 2, *changes, "--results", tmp_path]

    def in_container(*command):
        inside = ["unshare", "--uts", "sh", "-c", 'hostname does-not-resolve; exec "$@"', "sh"]
        environment = os.environ | cluster
        done = subprocess.run(
            [*inside, *map(str, command)], cwd=REPOSITORY, env=environment, capture_output=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return (done.stdout + done.stderr).decode()

    in_container(BIN / "lrpe", "train", *words)
    [log] = tmp_path.rglob("train.log")
    assert "training on 2 devices" in log.read_text()
    entries = [entry for entry in read_log(log.parent) if entry["kind"] == "train_inner"]
    assert [entry["bsz"] for entry in entries] == [8] * 4
    for path in log.parent.glob("checkpoints/*"):
        path.unlink()
    assert "training on 2 devices" in in_container("sh", log.with_name("command.sh"))
