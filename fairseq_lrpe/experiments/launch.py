"""What of the machine a training uses, and fairseq-train's command for it."""

import argparse
import importlib.util
import os
from dataclasses import dataclass

import torch
from omegaconf import DictConfig

from fairseq_lrpe.commands import as_flags
from fairseq_lrpe.files import REPOSITORY, readable
from fairseq_lrpe.gpus import check_architectures, check_bf16, gpus_here
from fairseq_lrpe.programs import absolute, at_least

PRECISIONS = ("fp16", "fp32", "bf16")
TRACKERS = {"--tensorboard-logdir": "tensorboard", "--wandb-project": "wandb"}  # flags and their packages
BATCH_FLAGS = {"sequences": "batch_size", "tokens": "max_tokens"}


@dataclass(frozen=True)
class Launch:
    """The processes of a training: ``gpus`` of each of the ``nodes``, which meet at ``rendezvous``.

    No GPUs are one process on the CPU; with ``cpu`` they count CPU processes.
    """

    gpus: int = 0
    nodes: int = 1
    cpu: bool = True
    precision: str = "fp32"
    rendezvous: str | None = None


def add_machine_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what all trainings are told: what of the machine to use, and where to write."""
    parser.add_argument("--gpus", type=at_least(0), help="of each node; default: all here, 0 is the CPU")
    parser.add_argument("--cpu", action="store_true", help="use no GPU; --gpus then counts CPU processes")
    parser.add_argument("--precision", choices=PRECISIONS, help="default: fp16 on GPUs, fp32 on the CPU")
    parser.add_argument("--nodes", type=at_least(1), default=1, help="start the same on each of them")
    parser.add_argument("--rendezvous", metavar="HOST:PORT", help="where the nodes meet: one of them")
    add_results_flag(parser)
    told = "print the commands and run nothing; assumes the GPUs of --gpus, unless --cpu is given"
    parser.add_argument("--dry-run", action="store_true", help=told)


def add_results_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --results, the folder that runs are written to."""
    results = REPOSITORY / "results"
    parser.add_argument("--results", type=absolute, default=results, help="default: %(default)s")


def choose_launch(args: argparse.Namespace) -> Launch:
    """Returns what the machine flags ask for; ValueError if this machine has not got it."""
    here = len(gpus_here())
    asked = (0 if args.cpu else here) if args.gpus is None else args.gpus
    cpu = args.cpu or not asked or not (here or args.dry_run)
    if not cpu and not args.dry_run and asked > here:
        raise ValueError(f"--gpus {asked}: this machine has {here}")
    if args.nodes > 1 and not (asked and args.rendezvous):
        raise ValueError(f"--nodes {args.nodes} needs --gpus, those of a node, and --rendezvous HOST:PORT")
    precision = args.precision or ("fp32" if cpu else "fp16")
    if cpu and precision != "fp32":
        raise ValueError(f"--precision {precision} needs a GPU: on the CPU it is fp32")
    if not (cpu or args.dry_run):
        check_architectures()
    if precision == "bf16":
        check_bf16()
    return Launch(asked, args.nodes, cpu, precision, args.rendezvous)


def update_freq(batch: DictConfig, gpus: int, nodes: int = 1) -> int:
    """Returns how many batches one process sums up for an update of the total batch."""
    total, per_gpu, unit, processes = batch.total, batch.per_gpu, batch.unit, max(gpus, 1) * nodes
    if unit not in BATCH_FLAGS:
        raise ValueError(f"batch.unit={unit}: choose from {', '.join(BATCH_FLAGS)}")
    if min(total, per_gpu) < 1 or total % (per_gpu * processes):
        where = f"{processes} GPU{'s' * (processes > 1)}" if gpus else "one process"
        raise ValueError(
            f"the total batch of {total} {unit} is no multiple of {where} × {per_gpu} {unit} "
            f"(batch.per_gpu) = {per_gpu * processes}: change the number of GPUs, or override batch.per_gpu"
        )
    return total // (per_gpu * processes)


def train_command(job) -> list[str]:
    """Returns the arguments of fairseq-train, with torchrun before it where that starts the processes."""
    cfg, launch = job.cfg, job.launch
    if launch.precision == "bf16" and job.run.method == "fairseq":
        raise ValueError("fairseq takes --bf16 of its own models for a TPU: give --precision fp16")
    gpus, nodes = launch.gpus, launch.nodes
    flags = {
        "user_dir": "fairseq_lrpe",
        "task": job.kind.task,
        **job.kind.flags(job),
        **cfg.train,
        **cfg.by_method.get(job.run.method, {}),
        "max_update": job.updates,
        BATCH_FLAGS[cfg.batch.unit]: cfg.batch.per_gpu,
        "update_freq": update_freq(cfg.batch, gpus, nodes),
        # fairseq would drop a last batch whose size is no multiple of 8.
        "required_batch_size_multiple": 1,
        "seed": job.run.seed,
        "finetune_from_model": job.starts_from and readable(job.starts_from),
        "save_dir": readable(job.folder / "checkpoints"),
        "log_format": "json",
        # fairseq's default is the number of GPUs it sees.
        "distributed_world_size": max(gpus, 1) * nodes,
        launch.precision: launch.precision != "fp32",
        "cpu": launch.cpu,
    }
    if launch.cpu and gpus * nodes > 1:
        # The only flags with which fairseq's CPU processes train together.
        flags |= {"distributed_init_method": "env://", "distributed_rank": -1, "distributed_no_spawn": True}
        flags |= {"distributed_backend": "gloo", "ddp_backend": "legacy_ddp"}
    start = ["fairseq-train"]
    if nodes > 1 or (launch.cpu and gpus > 1):
        together = ["--nnodes", nodes, "--rdzv_backend", "c10d", "--rdzv_endpoint", launch.rendezvous]
        together = together if nodes > 1 else ["--standalone"]
        start = ["torchrun", *together, "--nproc_per_node", gpus, "-m", "fairseq_cli.train"]
    folders = [str(readable(folder)) for folder in job.kind.folders(cfg)]
    data = [os.pathsep.join(folders)] if folders else []
    return [str(x) for x in (*start, *data, *as_flags(flags), *job.more)]


def check_trackers(command: list[str]) -> None:
    """Raises ValueError if fairseq-train would be told to log by a package that is not installed."""
    for flag, package in TRACKERS.items():
        asked = any(word.partition("=")[0] == flag for word in command)
        if asked and importlib.util.find_spec(package) is None:
            raise ValueError(f"{flag} needs the package {package}: pip install -e '.[{package}]' installs it")


def visible_gpus() -> list[str]:
    """Returns the names of the GPUs that programs may see, as CUDA_VISIBLE_DEVICES takes them."""
    if not torch.cuda.is_available():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]
