"""Variables of the environment with which launchers (torchrun, SLURM, MPI, clusters) describe a process.

fairseq and torch read these variables, and would start another number of processes than their own flags say.
"""

import os
import re
from collections.abc import Mapping

from fairseq_lrpe.utils.errors import UserError

PROCESS_VARIABLES = (
    "WORLD_SIZE RANK LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK GROUP_WORLD_SIZE ROLE_NAME ROLE_RANK "
    "ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT SLURM_JOB_NODELIST SLURM_STEP_NODELIST"
).split()
"""Variables of torchrun, Kubeflow, AzureML and SageMaker, and lists of nodes that fairseq reads."""
PREFIXES = ("PET", "TORCHELASTIC")
"""Prefixes of variables that torchrun reads as defaults of its flags, or sets for its processes."""
UNSET_IN_SHELL = (
    f"unset {' '.join(PROCESS_VARIABLES)} "
    rf"$(env | sed -nE 's/^(({'|'.join(PREFIXES)})_[A-Za-z0-9_]*)=.*/\1/p')"
)
"""Line of a shell script that unsets the variables that :func:`without_launchers` removes."""
MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")


def without_launchers(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which fairseq and torchrun start the processes that their flags say."""
    prefixes = tuple(f"{prefix}_" for prefix in PREFIXES)
    kept = {}
    for name, value in environment.items():
        if name not in PROCESS_VARIABLES and not name.startswith(prefixes):
            kept[name] = value
    return kept


def check_single_process(arguments: list[str]) -> None:
    """Raises a UserError if a launcher started several processes of this command, which would do the same.

    With --nodes, one process on each node is correct.
    """
    has_nodes = any(re.match(r"--nodes?(=|$)", word) for word in arguments)
    for launcher, processes, nodes in _launchers():
        if processes > 1 and not (has_nodes and processes == nodes):
            flags = f"--gpus {max(1, processes // nodes)}"
            if nodes > 1:
                flags += f" and --nodes {nodes}"
            raise UserError(
                f"{launcher} started this command as {processes} processes, but lrpe itself starts those of "
                f"a training: run it without {launcher}, with {flags}"
            )


def _launchers():
    """Yields (launcher, number of processes, number of nodes) for each launcher whose variables are set.

    Containers of Kubeflow and AzureML have WORLD_SIZE and RANK, too, but no TORCHELASTIC_RUN_ID.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        yield "torchrun", _number("WORLD_SIZE"), _number("GROUP_WORLD_SIZE")
    # Of the tasks of `srun --pty bash`, only the first has a shell.
    in_terminal = "SLURM_PTY_PORT" in os.environ and os.environ.get("SLURM_PROCID") == "0"
    if in_terminal:
        return
    yield "srun", _number("SLURM_STEP_NUM_TASKS"), _number("SLURM_STEP_NUM_NODES")
    for name in MPI_SIZES:
        processes = _number(name)
        local = _number("OMPI_COMM_WORLD_LOCAL_SIZE", processes)
        yield "mpirun", processes, max(1, processes // max(1, local))


def _number(name, default=1):
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default
