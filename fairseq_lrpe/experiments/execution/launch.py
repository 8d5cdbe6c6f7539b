"""Launch settings of a training (GPUs, nodes, precision) and its fairseq-train command."""

import argparse
import os
import re
from dataclasses import dataclass

from omegaconf import DictConfig

from fairseq_lrpe.experiments.spec.experiment import check_flags
from fairseq_lrpe.utils.cli import abs_path, min_int
from fairseq_lrpe.utils.files import PLUGIN, REPOSITORY, display_path
from fairseq_lrpe.utils.gpus import check_architectures, check_bf16, gpus_here
from fairseq_lrpe.utils.subprocesses import as_flags

PRECISIONS = ("fp16", "fp32", "bf16")
BATCH_FLAGS = {"sequences": "batch_size", "tokens": "max_tokens"}


@dataclass(frozen=True)
class Launch:
    """The devices, processes and precision of a training.

    Args:
        gpus: number of GPUs per node, or of processes per node if ``cpu``; 0 means one CPU process.
        rendezvous: HOST:PORT at which the nodes connect.
    """

    gpus: int = 0
    nodes: int = 1
    cpu: bool = True
    precision: str = "fp32"
    rendezvous: str | None = None


def add_machine_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that select GPUs, nodes, precision and results folder, and --dry-run."""
    parser.add_argument("--gpus", type=min_int(0), help="GPUs per node (default: all; 0: train on the CPU)")
    parser.add_argument("--cpu", action="store_true", help="train on the CPU; --gpus: number of processes")
    parser.add_argument("--precision", choices=PRECISIONS, help="default: fp16 on GPUs, fp32 on the CPU")
    text = "number of machines, each of which must execute this command (default: 1)"
    parser.add_argument("--nodes", type=min_int(1), default=1, help=text)
    text = "address of one of the nodes, to which all nodes connect (required if there are several)"
    parser.add_argument("--rendezvous", metavar="HOST:PORT", help=text)
    add_results_flag(parser)
    text = "print the commands without running them, as if the GPUs requested by --gpus were available"
    parser.add_argument("--dry-run", action="store_true", help=text)


def add_results_flag(parser: argparse.ArgumentParser) -> None:
    """Adds the flag --results, the folder to which runs are written."""
    results = REPOSITORY / "results"
    text = "folder of the runs (default: %(default)s)"
    parser.add_argument("--results", type=abs_path, default=results, help=text)


def machine_flags(args: argparse.Namespace) -> list[str]:
    """Returns the flags of ``lrpe train`` for another process with the same results folder and GPUs."""
    flags = {name: getattr(args, name, None) for name in ("results", "gpus", "cpu", "precision")}
    return as_flags({name: value for name, value in flags.items() if value is not False})


def choose_launch(args: argparse.Namespace) -> Launch:
    """Returns the launch settings of the flags; raises ValueError if this machine does not support them."""
    available = len(gpus_here())
    gpus = (0 if args.cpu else available) if args.gpus is None else args.gpus
    cpu = args.cpu or not gpus or not (available or args.dry_run)
    if not cpu and not args.dry_run and gpus > available:
        raise ValueError(f"--gpus {gpus}: the number of GPUs of this machine is {available}")
    if args.nodes > 1 and not (gpus and args.rendezvous):
        raise ValueError(f"--nodes {args.nodes} requires --gpus (per node) and --rendezvous HOST:PORT")
    precision = args.precision or ("fp32" if cpu else "fp16")
    if cpu and precision != "fp32":
        raise ValueError(f"--precision {precision} needs a GPU; on the CPU use fp32")
    if not (cpu or args.dry_run):
        check_architectures()
    if precision == "bf16":
        check_bf16()
    return Launch(gpus, args.nodes, cpu, precision, args.rendezvous)


def update_freq(batch: DictConfig, gpus: int, nodes: int = 1) -> int:
    """Returns the number of batches per process and update; raises ValueError if it is not an integer."""
    total, per_gpu, unit, processes = batch.total, batch.per_gpu, batch.unit, max(gpus, 1) * nodes
    if total % (per_gpu * processes):
        where = f"{processes} GPU{'s' * (processes > 1)}" if gpus else "one process"
        raise ValueError(
            f"the total batch of {total} {unit} is not a multiple of {where} × {per_gpu} {unit} "
            f"(batch.per_gpu) = {per_gpu * processes}: change the number of GPUs, or override batch.per_gpu"
        )
    return total // (per_gpu * processes)


def train_command(job) -> list[str]:
    """Returns the fairseq-train command of a job; torchrun starts it on several nodes or CPU processes."""
    cfg, launch = job.cfg, job.launch
    if launch.precision == "bf16" and job.run.method == "fairseq":
        raise ValueError("fairseq trains its own models in bf16 only on TPUs: use --precision fp16")
    given = {word[2:].partition("=")[0] for word in job.more if word.startswith("--")}
    check_flags(given - {"fp16", "bf16"}, "--")  # docs/performance.md measures half precision on the CPU
    gpus, nodes = launch.gpus, launch.nodes
    flags = {
        "user_dir": display_path(PLUGIN),
        "task": job.kind.task,
        **job.kind.flags(job),
        **cfg.train,
        **cfg.by_method.get(job.run.method, {}),
        "max_update": job.updates,
        BATCH_FLAGS[cfg.batch.unit]: cfg.batch.per_gpu,
        "update_freq": update_freq(cfg.batch, gpus, nodes),
        # Otherwise, fairseq drops the last batch if its size is not a multiple of 8.
        "required_batch_size_multiple": 1,
        "seed": job.run.seed,
        "finetune_from_model": job.starts_from and display_path(job.starts_from),
        "save_dir": display_path(job.folder / "checkpoints"),
        "log_format": "json",
        # fairseq's default is the number of visible GPUs.
        "distributed_world_size": max(gpus, 1) * nodes,
        launch.precision: launch.precision != "fp32",
        "cpu": launch.cpu,
    }
    if launch.cpu and gpus * nodes > 1:
        # Without these flags, each CPU process trains a separate model.
        flags |= {"distributed_init_method": "env://", "distributed_rank": -1, "distributed_no_spawn": True}
        flags |= {"distributed_backend": "gloo", "ddp_backend": "legacy_ddp"}
    start = ["fairseq-train"]
    if nodes > 1 or (launch.cpu and gpus > 1):
        rendezvous = ["--nnodes", nodes, "--rdzv_backend", "c10d", "--rdzv_endpoint", launch.rendezvous]
        rendezvous = rendezvous if nodes > 1 else ["--standalone"]
        start = ["torchrun", *rendezvous, "--nproc_per_node", gpus, "-m", "fairseq_cli.train"]
    folders = [str(display_path(folder)) for folder in job.kind.folders(cfg)]
    data = [os.pathsep.join(folders)] if folders else []
    return [str(x) for x in (*start, *data, *as_flags(flags), *job.more)]


def check_checkpoint(job, command: list[str]) -> None:
    """Raises ValueError if the training will not write the checkpoint ``evaluate.checkpoint``."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in ("--no-save", "--no-last-checkpoints", "--no-epoch-checkpoints", "--disable-validation"):
        parser.add_argument(flag, action="store_true")
    numbers = {"--save-interval": 1, "--save-interval-updates": 0, "--keep-interval-updates": -1}
    for flag, default in numbers.items():
        parser.add_argument(flag, type=int, default=default)
    try:
        flags, _ = parser.parse_known_args(command)
    except argparse.ArgumentError:
        return  # fairseq-train reports the error
    name, every, last = job.cfg.evaluate.checkpoint, flags.save_interval_updates, job.updates + 1
    epochs = range(0) if flags.no_epoch_checkpoints else range(last)[:: max(flags.save_interval, 1)][1:]
    updates = range(last)[::every][1:][-max(flags.keep_interval_updates, 0) :] if every > 0 else range(0)
    written = ["checkpoint_best.pt"] * (not flags.disable_validation)
    written += ["checkpoint_last.pt"] * (not flags.no_last_checkpoints)
    match = re.fullmatch(r"checkpoint(?:([1-9]\d*)|_[1-9]\d*_([1-9]\d*))\.pt", name)
    is_periodic = match and (int(match[1]) in epochs if match[1] else int(match[2]) in updates)
    if flags.no_save or not (name in written or is_periodic):
        written += [f"checkpoint{n}.pt" for n in epochs[:1]]
        written += [f"checkpoint_EPOCH_{n}.pt" for n in updates[-1:]]
        names = "no checkpoint" if flags.no_save or not written else ", ".join(written)
        raise ValueError(f"evaluate.checkpoint={name}: the training writes {names}")


def visible_gpus() -> list[str]:
    """Returns the visible GPUs as elements of CUDA_VISIBLE_DEVICES."""
    import torch  # this import takes seconds

    if not torch.cuda.is_available():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]
