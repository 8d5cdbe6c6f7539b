"""Variables of launchers: a clean environment, and commands that a launcher has started several times."""

import subprocess

import pytest
from support.tiny import BIN, REPOSITORY, run_command

from fairseq_lrpe.utils.launchers import UNSET_IN_SHELL, check_single_process, without_launchers

TORCHRUN = {
    name: "2"
    for name in "WORLD_SIZE LOCAL_WORLD_SIZE RANK LOCAL_RANK GROUP_RANK ROLE_RANK ROLE_WORLD_SIZE".split()
}
TORCHRUN |= {"GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True"}
KUBEFLOW = {"WORLD_SIZE": "4", "RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "23456"}
KUBEFLOW |= {"PET_NNODES": "4", "PET_NPROC_PER_NODE": "8", "PET_RDZV_BACKEND": "static"}
SRUN = {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "1"}
ONE_EACH = SRUN | {"SLURM_STEP_NUM_NODES": "8"}
TERMINAL = SRUN | {"SLURM_PTY_PORT": "44175"}  # of `srun --pty bash`
BATCH = {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "node[1-2]"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


@pytest.mark.parametrize("environment, nodes, message", [
    (TORCHRUN, "", "torchrun started this command as 2 processes, .* run it without torchrun, with --gpus 2"),
    (TORCHRUN, "--nodes=2", "with --gpus 2"),
    (TORCHRUN | {"WORLD_SIZE": "1"}, "", None),
    (KUBEFLOW, "", None),
    (SRUN, "", "srun started this command as 8 processes, .* with --gpus 8"),
    (SRUN, "--nodes 8", "with --gpus 8"),
    (SRUN | {"SLURM_STEP_NUM_TASKS": "1"}, "", None),
    (ONE_EACH, "", "with --gpus 1 and --nodes 8"),
    (ONE_EACH, "--nodes 8", None),
    (TERMINAL, "", None),
    (TERMINAL | {"SLURM_PROCID": "3"}, "", "with --gpus 8"),
    (BATCH, "", None),
    (MPIRUN, "", "mpirun started this command as 4 processes, .* with --gpus 2 and --nodes 2"),
    ({"PMI_SIZE": "4"}, "", "with --gpus 4"),
    ({"PMI_SIZE": "1", "OMPI_COMM_WORLD_SIZE": "1"}, "", None),
])  # fmt: skip
def test_command_that_was_started_several_times(environment, nodes, message, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    arguments = ["lm/mini", "rope", *nodes.split()]
    if message is None:
        check_single_process(arguments)
        return
    with pytest.raises(ValueError, match=message):
        check_single_process(arguments)


@pytest.mark.parametrize("command", ["train", "table", "finetune", "evaluate", "results", "quickstart"])
def test_every_command_refuses_several_processes(command):
    done = run_command("python", "-m", "fairseq_lrpe", command, **TORCHRUN)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"lrpe {command}: torchrun started") and "--gpus 2" in done.stderr


@pytest.mark.slow
def test_command_in_torchrun():
    words = "--standalone --local_addr 127.0.0.1 --nproc_per_node 2 -m fairseq_lrpe train lm/mini rope --cpu"
    command = [BIN / "torchrun", *words.split()]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode and "run it without torchrun, with --gpus 2\n" in done.stderr


def test_clean_environment_of_commands_and_of_the_script():
    given = {**TORCHRUN, **KUBEFLOW, **BATCH, "SLURM_JOB_END_TIME": "9", "CUDA_VISIBLE_DEVICES": "1"}
    expected = {
        "SLURM_NTASKS": "8",
        "SLURM_PROCID": "0",
        "SLURM_JOB_END_TIME": "9",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    assert without_launchers(given) == expected
    shown = subprocess.run(
        ["sh", "-c", f"{UNSET_IN_SHELL}\nenv"], env={**given, "PATH": "/usr/bin:/bin"}, capture_output=True
    ).stdout.decode()
    found = dict(line.split("=", 1) for line in shown.splitlines())
    assert {
        name: value for name, value in found.items() if name not in ("PATH", "PWD", "_", "SHLVL")
    } == expected
