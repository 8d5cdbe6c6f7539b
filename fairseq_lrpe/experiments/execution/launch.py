"""The machine of a training (GPUs, nodes and precision), and the fairseq-train command of the training."""

import os
import secrets
import socket
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from omegaconf import DictConfig

from fairseq_lrpe.experiments.execution.job import Job
from fairseq_lrpe.utils.cli import abs_path, min_int
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import PLUGIN, REPOSITORY, check_colon, check_control_characters, display_path
from fairseq_lrpe.utils.gpus import gpus_here
from fairseq_lrpe.utils.subprocesses import as_flags, threads_in

PRECISIONS = ("fp16", "fp32", "bf16")
COMPILE_MODES = ("layers", "reduce-overhead")
"""Values of --compile; models/compilation.py explains them."""
LOGGERS = {"tensorboard": "tensorboardX", "wandb": "wandb"}
"""{value of --report-to: the package that it needs}"""
WANDB_PROJECT = "fairseq-lrpe"
BATCH_FLAGS = {"sequences": "batch_size", "tokens": "max_tokens"}
PORTS = range(10_000, 32_768)
OWN_FLAGS = """
    task arch max_update batch_size max_tokens update_freq seed save_dir finetune_from_model restore_file
    cpu tpu fp16 bf16 distributed_world_size user_dir log_format required_batch_size_multiple
    distributed_init_method distributed_rank distributed_port distributed_no_spawn device_id local_rank
    max_sentences reset_dataloader reset_lr_scheduler reset_meters reset_optimizer
""".split()
"""Flags of fairseq-train that ``train_command`` sets, or that would apply again whenever a run is resumed."""


def add_machine_flags(parser: ArgumentParser) -> None:
    text = "GPUs per node, or with --cpu the number of processes (default: all GPUs, which a table divides "
    text += "among --jobs; with SLURM, none are requested)"
    parser.add_argument("--gpus", type=min_int(1), help=text)
    parser.add_argument("--cpu", action="store_true", help="train on the CPU")
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="precision of training (default: fp16 on GPUs, fp32 on the CPU)",
    )
    text = (
        "compile each layer by torch.compile in training: layers (default), or reduce-overhead, which also "
    )
    text += "records CUDA graphs"
    parser.add_argument("--compile", choices=COMPILE_MODES, nargs="?", const="layers", help=text)
    text = "also log the training in the run's folder for TensorBoard, or to the project fairseq-lrpe of "
    text += "Weights & Biases"
    parser.add_argument("--report-to", choices=LOGGERS, help=text)
    add_results_flag(parser)
    text = "print the commands without running them, as if the GPUs requested by --gpus were available"
    parser.add_argument("--dry-run", action="store_true", help=text)


def add_results_flag(parser: ArgumentParser) -> None:
    text = "folder that contains the folders of the runs (default: %(default)s)"
    parser.add_argument("--results", type=results_path, default=REPOSITORY / "results", help=text)


def results_path(text: str) -> Path:
    path = abs_path(text)
    check_control_characters(str(path), "the results folder")
    check_colon(path)
    return path


def choose_machine(args: Namespace, jobs: int = 1) -> dict[str, object]:
    """Returns the fields of ``Job`` that describe the machine, or a share of it for each of ``jobs`` runs.

    Raises:
        UserError: if this machine lacks the requested GPUs, or the options contradict each other.
    """
    threads_in(os.environ)  # raises UserError for an invalid number
    available = len(gpus_here())
    gpus = args.gpus
    if gpus is None:
        gpus = 0 if args.cpu else available // jobs
    cpu = args.cpu or (not available and not (gpus and args.dry_run))
    if not cpu and not args.dry_run:
        check_gpus(gpus, jobs, available)
    rendezvous = getattr(args, "rendezvous", None)
    if args.dry_run and args.nodes > 1:
        rendezvous = rendezvous or "HOST:PORT"
    if args.nodes > 1 and not (gpus and rendezvous):
        either = "--launcher slurm or, with `lrpe train`, --rendezvous HOST:PORT"
        raise UserError(f"--nodes {args.nodes} requires --gpus (per node) and either {either}")
    precision = args.precision or ("fp32" if cpu else "fp16")
    if cpu and precision != "fp32":
        raise UserError(f"--precision {precision} needs a GPU; on the CPU use fp32")
    return {
        "gpus": gpus,
        "nodes": args.nodes,
        "cpu": cpu,
        "precision": precision,
        "compile": args.compile,
        "report_to": check_logger(args.report_to),
        "rendezvous": rendezvous,
    }


def check_logger(name: str | None) -> str | None:
    """Returns the value of --report-to; raises UserError if its package is missing."""
    if name is not None and find_spec(LOGGERS[name]) is None:
        raise UserError(
            f"--report-to {name} needs the package {LOGGERS[name]}: run `pip install {LOGGERS[name]}`"
        )
    return name


def check_gpus(gpus: int, jobs: int, available: int) -> None:
    """Raises UserError if ``jobs`` runs with ``gpus`` GPUs each need more than the ``available`` GPUs."""
    needed = gpus or 1
    if needed * jobs <= available:
        return
    if jobs == 1:
        raise UserError(f"--gpus {gpus} exceeds this machine's {available} GPUs: reduce --gpus")
    wanted = f"--jobs {jobs} with {needed} GPUs each"
    raise UserError(f"{wanted} needs more than this machine's {available}: reduce --jobs or --gpus")


def update_freq(batch: DictConfig, gpus: int, nodes: int = 1) -> int:
    """Returns the number of batches that each GPU or process contributes to an update.

    Raises:
        UserError: if the total batch is not a multiple of the batches of all processes.
    """
    processes = max(gpus, 1) * nodes
    unit = batch.unit
    together = batch.per_gpu * processes
    if batch.total % together:
        where = f"{processes} GPU{'s' * (processes > 1)}" if gpus else "one process"
        raise UserError(
            f"the total batch of {batch.total} {unit} is not a multiple of {where} × {batch.per_gpu} {unit} "
            f"(batch.per_gpu) = {together}: change the number of GPUs, or override batch.per_gpu"
        )
    return batch.total // together


def train_command(job: Job) -> list[str]:
    """Returns the fairseq-train command of a job; torchrun starts it on several nodes or CPU processes."""
    cfg = job.cfg
    if job.precision == "bf16" and job.run.method == "fairseq":
        raise UserError("fairseq trains its own models in bf16 only on TPUs: use --precision fp16")
    check_own_flags(job.train_flags, job.extra_flags)
    flags = {
        "user_dir": display_path(PLUGIN),
        "task": job.kind.task,
        **job.kind.flags(job.run, cfg, job.starts_from),
        **job.train_flags,
        "max_update": job.updates,
        BATCH_FLAGS[cfg.batch.unit]: cfg.batch.per_gpu,
        "update_freq": update_freq(cfg.batch, job.gpus, job.nodes),
        # Otherwise, fairseq drops the last batch if its size is not a multiple of 8.
        "required_batch_size_multiple": 1,
        "seed": job.run.seed,
        "finetune_from_model": job.starts_from and display_path(job.starts_from),
        "save_dir": display_path(job.folder / "checkpoints"),
        "log_format": "json",
        # fairseq's default is the number of visible GPUs.
        "distributed_world_size": max(job.gpus, 1) * job.nodes,
        job.precision: job.precision != "fp32",
        "cpu": job.cpu,
        **logger_flags(job),
        **process_flags(job),
    }
    folders = [str(display_path(folder)) for folder in job.kind.folders(cfg)]
    data = [os.pathsep.join(folders)] if folders else []
    words = [*launcher(job), *data, *as_flags(flags), *job.extra_flags]
    return [str(word) for word in words]


def logger_flags(job: Job) -> dict[str, object]:
    """Returns {name: value} of the flags of fairseq's logger that --report-to selects."""
    if job.report_to == "tensorboard":
        return {"tensorboard_logdir": display_path(job.folder / "tensorboard")}
    if job.report_to == "wandb":
        return {"wandb_project": WANDB_PROJECT}
    return {}


def process_flags(job: Job) -> dict[str, object]:
    """Returns {name: value} of the flags by which the processes of a training find each other."""
    if job.cpu and job.gpus * job.nodes > 1:
        # Without these flags, each CPU process trains a separate model.
        return {
            "distributed_init_method": "env://",
            "distributed_rank": -1,
            "distributed_no_spawn": True,
            "distributed_backend": "gloo",
            "ddp_backend": "legacy_ddp",
        }
    if job.nodes == 1 and job.gpus > 1:
        # Otherwise, fairseq takes the number of processes from variables of torchrun, Kubeflow or SLURM.
        return {"distributed_init_method": f"tcp://127.0.0.1:{free_port()}"}
    if job.gpus == 1 and job.nodes == 1:
        return {"device_id": 0}  # fairseq's default is LOCAL_RANK
    return {}


def launcher(job: Job) -> list[object]:
    """Returns the first words of a training command: fairseq-train, or torchrun and its arguments.

    fairseq-train itself starts one process per GPU of one node.
    """
    if job.nodes > 1:
        rendezvous = ["--nnodes", job.nodes, "--rdzv_backend", "c10d", "--rdzv_endpoint", job.rendezvous]
    elif job.cpu and job.gpus > 1:
        # Without --local_addr, the processes wait for a host whose own name may not resolve.
        rendezvous = ["--standalone", "--local_addr", "127.0.0.1"]
    else:
        return ["fairseq-train"]
    return ["torchrun", *rendezvous, "--nproc_per_node", job.gpus, "-m", "fairseq_cli.train"]


def check_own_flags(configured: Iterable[str], extra_flags: list[str]) -> None:
    """Raises UserError if a flag in ``train`` or after -- is one whose value lrpe chooses."""
    for word in extra_flags:
        name = word[2:].partition("=")[0].replace("-", "_")
        # docs/performance.md measures the CPU with --fp16 and --bf16.
        if word.startswith("--") and name not in ("fp16", "bf16"):
            check_own_flag(name, f"--{name.replace('_', '-')}")
    for name in configured:
        check_own_flag(name, f"train.{name}")


def check_own_flag(name: str, shown: str) -> None:
    if name in OWN_FLAGS:
        raise UserError(
            f"{shown} cannot be set, because lrpe chooses its value: omit it, or use METHOD, updates=, "
            "batch., starts_from=, --seeds, --cpu, --gpus, --precision or --results, if one has its effect"
        )


def free_port() -> int:
    """Returns a random port on which no process of this machine listens.

    The port is below those that Linux gives to outgoing connections. It is random because the training's
    processes open it only seconds later, perhaps at the same time as those of another training.
    """
    while True:
        port = PORTS.start + secrets.randbelow(len(PORTS))
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def visible_gpus() -> list[str]:
    """Returns the GPUs of this machine as CUDA_VISIBLE_DEVICES names them."""
    count = len(gpus_here())
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names and count:
        return names.split(",")[:count]
    return [str(index) for index in range(count)]
