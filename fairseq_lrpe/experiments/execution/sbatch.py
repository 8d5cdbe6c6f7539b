"""Calls of SLURM's commands: their environment, and checks of the names in the script of a job."""

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
    """Removes SLURM's environment variables, such as those of an allocation, during the block.

    SBATCH_* would replace the options in a job's script, and SLURM_* the options of the script's ``srun``.
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
    """Raises UserError for an option of sbatch that could add lines to the script of a job."""
    if not OPTION.fullmatch(key):
        raise UserError(f"{key!r} is not an option of sbatch: use a name such as partition")
    if not isinstance(value, str | int | float | bool):
        raise UserError(f"the option {key} of sbatch must be a text, a number, true or false, not {value!r}")
    check_control_characters(str(value), f"the option {key} of sbatch")


def check_folder(folder: Path) -> None:
    """Raises UserError if SLURM would replace a part of the name of a run's folder, or cannot write to it."""
    check_control_characters(str(folder), "the run's folder")
    if UNWRITABLE.search(str(folder)):
        raise UserError(f"SLURM cannot write logs to {folder}: use values with fewer special characters")


class Executor(submitit.SlurmExecutor):
    """Executor of submitit that escapes % in the names of folders; SLURM replaces it in the paths of logs."""

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        text = super()._make_submission_file_text(command, uid)
        folder = str(self.folder).replace("'", "'\"'\"'")  # as shlex.quote
        return text.replace(f"{folder}/%j", f"{folder.replace('%', '%%')}/%j")
