"""The settings of a run as run.json records them: its experiment, data, machine and versions."""

import hashlib
import os
from dataclasses import asdict
from functools import cache
from pathlib import Path

from omegaconf import DictConfig

from fairseq_lrpe.data import layout
from fairseq_lrpe.data.corpora import prepare_command
from fairseq_lrpe.experiments.definition.kinds import Kind
from fairseq_lrpe.experiments.execution import run_directory
from fairseq_lrpe.experiments.execution.job import Job
from fairseq_lrpe.experiments.execution.launch import visible_gpus
from fairseq_lrpe.experiments.execution.run_extension import used_extension
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import REPOSITORY, check_colon, display_path, file_exists
from fairseq_lrpe.utils.gpus import gpus_here


def run_settings(job: Job) -> dict:
    """Returns the content of a job's run.json."""
    processes = max(job.gpus, 1)
    return {
        **asdict(job.run),
        "kind": job.cfg.kind,
        "changes": dict(job.run.changes),
        "updates": job.updates,
        "gpus": job.gpus,
        "nodes": job.nodes,
        "cpu": job.cpu,
        "precision": job.precision,
        "rendezvous": job.rendezvous,
        "compile": job.train_flags.get("compile"),
        "gpu_names": [] if job.cpu else gpu_names(job),
        "processor": run_directory.processor({**os.environ, **job.environment}, processes),
        "flags": job.extra_flags,
        "config": job.recorded_config,
        **used_extension(job.run.method, job.train_flags),
        "starts_from": initial_checkpoint(job),
        "data": data_sizes(job.kind, job.cfg),
        "versions": run_directory.installed_versions(),
        "git": run_directory.git_revision(),
        "started": run_directory.timestamp(),
    }


def gpu_names(job: Job) -> list[str]:
    """Returns the model names of the GPUs that a job may use."""
    names = dict(zip(visible_gpus(), gpus_here(), strict=True))
    share = job.environment.get("CUDA_VISIBLE_DEVICES", ",".join(names))
    return [names[gpu] for gpu in share.split(",")]


def initial_checkpoint(job: Job) -> dict | None:
    """Returns {"path", "sha256"} of the checkpoint from which a job starts, or None if it starts anew."""
    path = job.starts_from
    if path is None:
        return None
    return {"path": str(display_path(path)), "sha256": file_digest(path, path.stat().st_mtime_ns)}


@cache  # many runs start from one checkpoint
def file_digest(path: Path, modified: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def data_sizes(kind: Kind, cfg: DictConfig) -> dict[str, int]:
    """Returns {path in the data folder: bytes} of a run's data; raises UserError if a file is missing."""
    folder = REPOSITORY / cfg.data
    check_colon(folder)
    paths = {os.path.relpath(path, folder): path for path in kind.data(cfg)}
    missing = [name for name, path in paths.items() if not file_exists(path)]
    if missing:
        remedy = f"{preparation(kind, cfg)}, or override data=FOLDER"
        raise UserError(f"{folder} lacks {', '.join(missing)}: {remedy}")
    sizes = {}
    for name, path in paths.items():
        layout.check_file(path)
        sizes[name] = path.stat().st_size
    return sizes


def preparation(kind: Kind, cfg: DictConfig) -> str:
    """Returns a text that says how to prepare a run's missing data."""
    bin_folder = next(iter(kind.folders(cfg)), REPOSITORY / cfg.data)
    command = prepare_command(display_path(bin_folder))
    if not command:
        return "create these files with `lrpe prepare` or fairseq-preprocess"
    if cfg.train.get("embed_path"):
        command += " --vectors glove.840B.300d.txt"
    text = f"`{command}` prepares it"
    return f"remove {display_path(bin_folder)}, then {text}" if bin_folder.is_dir() else text
