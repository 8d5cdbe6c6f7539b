"""Train one method in one experiment, then evaluate it.

What is trained is said in configs/EXPERIMENT.yaml; KEY=VALUE overrides a value in it, and what follows --
goes to fairseq-train as it is. Everything is written to RESULTS/EXPERIMENT/ATTENTION_METHOD/seed-SEED:
started again, a run continues from its last checkpoint, and a finished one is not repeated.
"""

import argparse
import fcntl
import importlib.metadata
import json
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import torch
from omegaconf import OmegaConf

from fairseq_lrpe.experiments import compose
from fairseq_lrpe.experiments.commands import CommandFailed, ending_signals, run_command
from fairseq_lrpe.experiments.compose import REPOSITORY

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
    parser.add_argument("method", help="python -m fairseq_lrpe.methods lists them")
    parser.add_argument("--attention", default="linear", help="linear (default) or softmax")
    parser.add_argument("--seed", type=at_least(1), default=1, help="default: %(default)s")
    parser.add_argument("--gpus", type=at_least(0), help="of each node; default: all here, 0 is the CPU")
    parser.add_argument("--cpu", action="store_true", help="use no GPU; --gpus then counts CPU processes")
    parser.add_argument("--nodes", type=at_least(1), default=1, help="start the same on each of them")
    parser.add_argument("--rendezvous", metavar="HOST:PORT", help="where the nodes meet: one of them")
    parser.add_argument(
        "--precision", choices=compose.PRECISIONS, help="default: fp16 on GPUs, fp32 on the CPU"
    )
    parser.add_argument("--results", type=Path, default=REPOSITORY / "results", help="default: %(default)s")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the command and run nothing; assumes the GPUs of --gpus, unless --cpu is given",
    )
    args = parser.parse_args(arguments)
    args.results = args.results.absolute()
    return args


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


def readable(path):
    """The path from the repository, where the commands run, if it is inside."""
    return path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path


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
    splits = dict.fromkeys(["train", "valid", *cfg.evaluate.splits])
    files = [folder / name for name in ("dict.txt", *(f"{split}.bin" for split in splits))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ValueError(
            f"{folder} lacks {', '.join(missing)}: make it with the script of data_prep that the "
            "experiment's YAML names, or override data=FOLDER with one that fairseq-preprocess wrote"
        )
    return {file.name: file.stat().st_size for file in files}


def versions():
    found = {"python": platform.python_version()}
    for name, package in (("torch", "torch"), ("fairseq", "fairseq-fixed"), ("fairseq_lrpe", "fairseq-lrpe")):
        try:
            found[name] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def git():
    """The revision that runs, and whether tracked files differ from it; None outside of git."""

    def ask(*words):
        try:
            return subprocess.run(
                ["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=True
            ).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None

    changes = ask("status", "--porcelain", "--untracked-files=no")
    return {"revision": ask("rev-parse", "HEAD"), "dirty": None if changes is None else bool(changes)}


def now():
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_whole(path, text):
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)


def check_same(folder, settings):
    """Refuse to go on in a folder whose run was started with other settings.

    The machines may differ, for the total batch stays the same, and so may the versions; run.json tells
    those of the last start.
    """
    path = folder / "run.json"
    if not path.exists():
        return
    before = json.loads(path.read_text())
    differing = []
    for name in ("config", "flags", "precision", "data"):
        differing += differences(before.get(name), settings[name], name)
    if differing:
        raise ValueError(
            f"{folder} holds a run with other settings ({'; '.join(differing)}): give the same, "
            "another --results, or remove the folder"
        )


FREE = ("source", "seeds", "per_gpu", "batch_size")
"""What may differ inside the settings: it changes nothing about one run."""


def differences(before, after, name):
    """["key was this, now that"]; keys inside "config" go without its name, as in an override."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [] if before == after else [f"{name} was {before}, now {after}"]
    prefix = "" if name == "config" else f"{name}."
    found = []
    for key in dict.fromkeys([*before, *after]):
        if key not in FREE:
            found += differences(before.get(key), after.get(key), prefix + key)
    return found


def train_and_evaluate(folder, cfg, command, settings, launch):
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            # The training holds it too: it stays locked should this program be killed and that go on.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if launch["nodes"] == 1:
                raise ValueError(f"{folder} is in use: another process is training there") from None
            follow(folder, cfg, command)
            return
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
        train(folder, cfg, command, Log(folder), lock)
        evaluation = {"splits": evaluate(folder, cfg, launch["cpu"], lock), "finished": now()}
        write_whole(folder / "evaluation.json", json.dumps(evaluation, indent=2) + "\n")
        for split, measured in evaluation["splits"].items():
            print(f"{split}: perplexity {measured['perplexity']:.2f} ({measured['tokens']:,} tokens)")
        print(f"finished: {folder}")


def train(folder, cfg, command, log, *locks):
    print(shlex.join(command), flush=True)
    # Of a training that is done, fairseq would do one more update.
    if updates_done(folder / "checkpoints") < cfg.updates:
        run_command(command, log.raw, log.take, cwd=REPOSITORY, pass_fds=[lock.fileno() for lock in locks])


def updates_done(checkpoints):
    """The updates of the last checkpoint; 0 if there is none."""
    last = checkpoints / "checkpoint_last.pt"
    if not last.exists():
        return 0
    state = torch.load(last, map_location="cpu", mmap=True, weights_only=True)
    return state["optimizer_history"][-1]["num_updates"]


def follow(folder, cfg, command):
    """Another node of a run whose folder belongs to the node that came first: train, write nothing else.

    Whichever has fairseq's first process tells of the training.
    """
    train(folder, cfg, command, Log(folder, f"train-{socket.gethostname()}-{os.getpid()}.log"))


def mend(checkpoints):
    """fairseq copies checkpoint_last.pt, which an interruption can cut short; its original is then whole."""
    last = checkpoints / "checkpoint_last.pt"
    if last.exists() and not zipfile.is_zipfile(last):
        originals = [path for path in checkpoints.glob("checkpoint*.pt") if zipfile.is_zipfile(path)]
        if not originals:
            last.unlink()
        else:
            os.replace(max(originals, key=lambda path: path.stat().st_mtime), last)


class Log:
    """train.log as fairseq wrote it, and log.jsonl: its JSON lines with their kind.

    A continued run repeats updates; the last of each counts.
    """

    line = re.compile(r"\| (train_inner|train|valid) \| (\{.*\})$")

    def __init__(self, folder, raw="train.log"):
        self.raw, self.jsonl, self.entries = folder / raw, folder / "log.jsonl", {}
        if self.jsonl.exists():
            for text in self.jsonl.read_text().splitlines():
                self.add(json.loads(text))

    def add(self, entry):
        updates = next((value for key, value in entry.items() if key.endswith("num_updates")), None)
        self.entries.pop((entry["kind"], updates), None)
        self.entries[entry["kind"], updates] = entry

    def take(self, line):
        found = self.line.search(line)
        if not found:
            return
        entry = {"kind": found[1], **{k: as_number(v) for k, v in json.loads(found[2]).items()}}
        self.add(entry)
        write_whole(self.jsonl, "".join(json.dumps(e) + "\n" for e in self.entries.values()))
        if entry["kind"] == "valid":
            print(f"    {entry['valid_num_updates']} updates: valid ppl {entry['valid_ppl']}", flush=True)


def as_number(value):
    for kind in (int, float):
        try:
            return kind(value) if isinstance(value, str) else value
        except ValueError:
            pass
    return value


def evaluate(folder, cfg, cpu, lock):
    """{split: {loss, perplexity, tokens}} by fairseq-eval-lm, whose output stays in eval-<split>.log."""
    measured = {}
    for split in cfg.evaluate.splits:
        log = folder / f"eval-{split}.log"
        log.unlink(missing_ok=True)
        command = compose.evaluate_command(cfg, split, save_dir=readable(folder / "checkpoints"), cpu=cpu)
        run_command(command, log, cwd=REPOSITORY, pass_fds=[lock.fileno()])
        text = log.read_text()
        tokens = int(re.search(r"Evaluated ([\d,]+) tokens", text)[1].replace(",", ""))
        if not tokens:
            raise ValueError(f"fairseq-eval-lm evaluated no token of {split}: see {log}")
        loss, perplexity = re.search(r"Loss \(base 2\): ([\w.]+), Perplexity: ([\w.]+)", text).groups()
        measured[split] = {"loss": float(loss), "perplexity": float(perplexity), "tokens": tokens}
    return measured


if __name__ == "__main__":
    main()
