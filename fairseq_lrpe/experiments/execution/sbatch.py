"""Calls of SLURM's commands: their environment, and the names that reach the script of a job."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import submitit

from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import check_control_characters

FOLDER = "slurm"  # in a run's folder, with submitit's files
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")  # which cluster, and its access
FILTERS = ("SQUEUE_", "SCANCEL_")  # variables that hide jobs from squeue and scancel
UNWRITABLE = re.compile(r"%\w\w%")  # SLURM 22.05 fails to unescape such parts of the paths of logs
OPTION = re.compile(r"[A-Za-z][A-Za-z0-9-]*")


@contextmanager
def clean_environment() -> Iterator[None]:
    """Removes SLURM's variables in the block, such as those of an allocation in which this process runs.

    SBATCH_* would replace the options in a job's script, and SLURM_* those of its ``srun``.
    """
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    filters = [name for name in os.environ if name.startswith(FILTERS)]
    with submitit.helpers.clean_env(filters):
        os.environ.update(kept)
        yield


def check_programs(*names: str) -> None:
    for name in names:
        if shutil.which(name) is None:
            raise UserError(f"{name} was not found: run this command on a login node of a SLURM cluster")


def check_option(key: str, value: object) -> None:
    """Raises a UserError for an option of sbatch that could add lines to the script of a job."""
    if not OPTION.fullmatch(key):
        raise UserError(f"{key!r} is not an option of sbatch: use a name such as partition")
    if not isinstance(value, str | int | float | bool):
        raise UserError(f"the option {key} of sbatch must be a single value, not {value!r}")
    check_control_characters(str(value), f"the option {key} of sbatch")


def check_folder(folder: Path) -> None:
    """Raises a UserError if a run's folder has a name that SLURM would replace or cannot write to."""
    check_control_characters(str(folder), "the run's folder")
    if UNWRITABLE.search(str(folder)):
        raise UserError(f"SLURM cannot write logs to {folder}: use values with fewer special characters")


class Executor(submitit.SlurmExecutor):
    """Submits jobs whose folder may have % in its name, which SLURM replaces in the paths of logs."""

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        text = super()._make_submission_file_text(command, uid)
        folder = str(self.folder).replace("'", "'\"'\"'")  # as shlex.quote
        return text.replace(f"{folder}/%j", f"{folder.replace('%', '%%')}/%j")
