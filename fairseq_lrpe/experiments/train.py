"""Train one method in one experiment, then evaluate it.

What is trained is said in configs/EXPERIMENT.yaml; KEY=VALUE overrides a value in it, and what follows --
goes to fairseq-train as it is. Everything is written to RESULTS/EXPERIMENT/ATTENTION_METHOD/seed-SEED:
started again, a run continues from its last checkpoint, and a finished one is not repeated.
"""

import argparse
import json
import os
import re
import shlex
import socket
import sys
from pathlib import Path

import torch
from omegaconf import OmegaConf

from fairseq_lrpe.experiments import compose, translation
from fairseq_lrpe.commands import CommandFailed, ending_signals, run_command
from fairseq_lrpe.experiments.compose import REPOSITORY
from fairseq_lrpe.experiments.run_folder import (
    InUse,
    Log,
    check_same,
    git,
    locked,
    mend,
    now,
    readable,
    train,
    versions,
    write_whole,
)

OVERRIDE = re.compile(r"[\w.]+=")


def main(arguments=None):
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    more = []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, more = arguments[:cut], arguments[cut + 1 :]
    overrides = [a for a in arguments if OVERRIDE.match(a)]
    args = parse([a for a in arguments if not OVERRIDE.match(a)])
    try:
        cfg = compose.load(args.experiment, overrides)
        if cfg.family == "glue":
            raise ValueError(f"{args.experiment} goes on from a checkpoint: scripts/finetune_glue.sh does it")
        compose.check_method(args.method, args.attention)
        launch = choose_launch(args)
        folder = args.results / args.experiment / f"{args.attention}_{args.method}" / f"seed-{args.seed}"
        command = compose.train_command(
            cfg,
            args.method,
            args.attention,
            args.seed,
            **launch,
            save_dir=readable(folder / "checkpoints"),
            rendezvous=args.rendezvous,
            more=more,
        )
        if args.dry_run:
            print(shlex.join(command))
            return
        settings = describe(args, cfg, launch, overrides, more)
        with ending_signals():
            train_and_evaluate(folder, cfg, command, settings, launch)
    except (ValueError, CommandFailed) as error:
        sys.exit(f"train: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="train.sh",
        description=__doc__,
        usage="%(prog)s EXPERIMENT METHOD [options] [KEY=VALUE ...] [-- fairseq-train's flags]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("experiment", help=", ".join(compose.experiments()))
    parser.add_argument("method", help="python -m fairseq_lrpe.methods lists them; fairseq is its own model")
    parser.add_argument("--attention", default="linear", help="linear (default) or softmax")
    parser.add_argument("--seed", type=at_least(1), default=1, help="default: %(default)s")
    parser.add_argument("--nodes", type=at_least(1), default=1, help="start the same on each of them")
    parser.add_argument("--rendezvous", metavar="HOST:PORT", help="where the nodes meet: one of them")
    add_machine_flags(parser)
    args = parser.parse_args(arguments)
    args.results = args.results.absolute()
    return args


def add_machine_flags(parser):
    """What all trainings are told: what of the machine to use, and where to write."""
    parser.add_argument("--gpus", type=at_least(0), help="of each node; default: all here, 0 is the CPU")
    parser.add_argument("--cpu", action="store_true", help="use no GPU; --gpus then counts CPU processes")
    parser.add_argument(
        "--precision", choices=compose.PRECISIONS, help="default: fp16 on GPUs, fp32 on the CPU"
    )
    parser.add_argument("--results", type=Path, default=REPOSITORY / "results", help="default: %(default)s")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the command and run nothing; assumes the GPUs of --gpus, unless --cpu is given",
    )


def at_least(smallest):
    def number(text):
        if not text.isdecimal() or int(text) < smallest:
            raise argparse.ArgumentTypeError(f"must be a whole number from {smallest} on, not {text!r}")
        return int(text)

    return number


def choose_launch(args):
    """{gpus, nodes, cpu, precision} of the command, checked against this machine."""
    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = args.gpus
    if gpus is None:
        gpus = 0 if args.cpu else here
    cpu = args.cpu or not gpus or not (here or args.dry_run)
    if not cpu and not args.dry_run and gpus > here:
        raise ValueError(f"--gpus {gpus}: this machine has {here}")
    if args.nodes > 1 and not (gpus and args.rendezvous):
        raise ValueError(
            f"--nodes {args.nodes} needs --gpus, the number on each node, and --rendezvous HOST:PORT"
        )
    precision = args.precision or ("fp32" if cpu else "fp16")
    if cpu and precision != "fp32":
        raise ValueError(f"--precision {precision} needs a GPU: on the CPU it is fp32")
    if precision == "bf16" and here and min(map(torch.cuda.get_device_capability, range(here))) < (8, 0):
        raise ValueError(
            f"--precision bf16 needs GPUs of compute capability 8.0 and {torch.cuda.get_device_name()} has "
            "less: use fp16"
        )
    return {"gpus": gpus, "nodes": args.nodes, "cpu": cpu, "precision": precision}


# --- a run folder ---------------------------------------------------------------------------------


def describe(args, cfg, launch, overrides, more):
    """run.json."""
    return {
        "experiment": args.experiment,
        "family": cfg.family,
        "attention": args.attention,
        "method": args.method,
        "seed": args.seed,
        "arch": compose.arch(cfg, args.method, args.attention),
        "updates": cfg.updates,
        **launch,
        "overrides": overrides,
        "flags": more,
        "config": OmegaConf.to_container(cfg, resolve=True),
        "data": sizes(cfg),
        "versions": versions(),
        "git": git(),
        "started": now(),
    }


def sizes(cfg):
    """{file: bytes} of the data: other sizes are other data."""
    folder = REPOSITORY / cfg.data
    files = [folder / name for name in compose.data_files(cfg)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ValueError(
            f"{folder} lacks {', '.join(missing)}: make it with the script of data_prep that the "
            "experiment's YAML names, or override data=FOLDER with one that fairseq-preprocess wrote"
        )
    found = {file.name: file for file in files}
    for shard in compose.shards(cfg.data)[1:]:
        found[f"{Path(shard).name}/train.bin"] = REPOSITORY / shard / "train.bin"
    return {name: file.stat().st_size for name, file in found.items()}


def train_and_evaluate(folder, cfg, command, settings, launch):
    try:
        with locked(folder) as lock:
            lead(folder, cfg, command, settings, launch["cpu"], lock)
    except InUse:
        if launch["nodes"] == 1:
            raise
        follow(folder, cfg, command)


def lead(folder, cfg, command, settings, cpu, lock):
    """What the process that has the folder does."""
    check_same(folder, settings)
    if (folder / "evaluation.json").exists():
        print(f"finished before: {folder}")
        return
    if (folder / "run.json").exists():
        settings["started"] = json.loads((folder / "run.json").read_text())["started"]
        print(f"continuing: {folder}")
    write_whole(folder / "run.json", json.dumps(settings, indent=2) + "\n")
    write_whole(folder / "command.sh", f"cd {shlex.quote(str(REPOSITORY))}\n{shlex.join(command)}\n")
    mend(folder / "checkpoints")
    train(folder, cfg.updates, command, Log(folder), lock)
    evaluation = {"splits": evaluate(folder, cfg, cpu, lock), "finished": now()}
    write_whole(folder / "evaluation.json", json.dumps(evaluation, indent=2) + "\n")
    for split, measured in evaluation["splits"].items():
        what = "perplexity" if "perplexity" in measured else "sacrebleu"
        print(f"{split}: {what} {measured[what]:.2f}")
    print(f"finished: {folder}")


def follow(folder, cfg, command):
    """Another node of a run whose folder belongs to the node that came first: train, write nothing else.

    Whichever has fairseq's first process tells of the training.
    """
    train(folder, cfg.updates, command, Log(folder, f"train-{socket.gethostname()}-{os.getpid()}.log"))


def evaluate(folder, cfg, cpu, lock):
    """{split: {loss, perplexity, ..}} by fairseq's commands, whose output stays in eval-<split>.log."""
    measured = {}
    for split in cfg.evaluate.splits:
        log = folder / f"eval-{split}.log"
        log.unlink(missing_ok=True)
        command = compose.evaluate_command(cfg, split, save_dir=readable(folder / "checkpoints"), cpu=cpu)
        run_command(command, log, cwd=REPOSITORY, pass_fds=[lock.fileno()])
        measured[split] = READERS[cfg.task](log, split, cfg)
    return measured


def read_perplexity(log, split, cfg):
    """{loss (base 2), perplexity, tokens} from a log of fairseq-eval-lm."""
    text = log.read_text()
    tokens = int(re.search(r"Evaluated ([\d,]+) tokens", text)[1].replace(",", ""))
    if not tokens:
        raise ValueError(f"fairseq-eval-lm evaluated no token of {split}: see {log}")
    loss, perplexity = re.search(r"Loss \(base 2\): ([\w.]+), Perplexity: ([\w.]+)", text).groups()
    return {"loss": float(loss), "perplexity": float(perplexity), "tokens": tokens}


def read_validation(log, split, cfg):
    """{loss (base 2), perplexity} of the masked tokens from a log of fairseq-validate."""
    entry = json.loads(re.search(rf"\| {split} \| (\{{.*\}})$", log.read_text(), re.M)[1])
    return {"loss": float(entry[f"{split}_loss"]), "perplexity": float(entry[f"{split}_ppl"])}


READERS = {
    "language_modeling": read_perplexity,
    "masked_lm": read_validation,
    "translation": translation.read_generated,
}

if __name__ == "__main__":
    main()
