"""Fine-tune a pretrained RoBERTa on tasks of GLUE, with every learning rate of the experiment.

The one counts that is best on the development set, at the best of its epochs. Everything is written to
RESULTS/EXPERIMENT/ATTENTION_METHOD/seed-SEED/TASK: started again, it goes on where it stopped, and what is
finished is not repeated. KEY=VALUE overrides a value of the experiment, such as learning_rates=[1e-4].
"""

import argparse
import hashlib
import json
import logging
import math
import shlex
import shutil
import sys
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import torch
from omegaconf import ListConfig, OmegaConf

from fairseq_lrpe.experiments import compose, glue
from fairseq_lrpe.commands import CommandFailed, ending_signals, run_command
from fairseq_lrpe.experiments.compose import REPOSITORY
from fairseq_lrpe.experiments.run_folder import (
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
from fairseq_lrpe.experiments.train import OVERRIDE, add_machine_flags, at_least, choose_launch

SHAPE = (
    "encoder_layers",
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_attention_heads",
    "encoder_normalize_before",
    "layernorm_embedding",
    "activation_fn",
    "untie_weights_roberta",
)
"""The flags that a model has to share with the one it goes on from, beside those of its position."""


@dataclass
class Pretrained:
    """What has to be known of a checkpoint to go on from it; ``types`` is the size of its vocabulary."""

    path: Path
    arch: str
    flags: dict
    types: int
    data: Path
    sha256: str

    @property
    def method(self):
        """The name of its folders: linear_rope of linear_roberta_rope."""
        return self.arch.replace("_roberta_", "_").replace("_roberta", "_by_flags")


def read_pretrained(path):
    if not path.is_file():
        raise ValueError(f"the checkpoint {path} does not exist: scripts/pretrain_roberta.sh makes one")
    try:
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        model, task = state["cfg"]["model"], state["cfg"]["task"]
        weights = state["model"]
        if isinstance(model, Namespace):  # of fairseq's own models
            model = {"_name": model.arch}
    except Exception as error:  # whatever torch says of what it cannot read
        reason = next(iter(str(error).splitlines()), error)
        raise ValueError(f"{path} is no checkpoint of fairseq that can be read ({reason})") from None
    if "_roberta" not in model["_name"]:
        raise ValueError(
            f"{path} is of the architecture {model['_name']}: a <linear|softmax>_roberta_... is needed"
        )
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # its import tells of packages for speech
    from fairseq_lrpe.config import position_flags

    flags = {name: model[name] for name in SHAPE} | position_flags(Namespace(**model))
    flags["max_positions"] = model["max_positions"] or task.get("tokens_per_sample") or task["max_positions"]
    types = weights["encoder.sentence_encoder.embed_tokens.weight"].size(0)
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return Pretrained(path, model["_name"], flags, types, REPOSITORY / task["data"].split(":")[0], sha256)


def data_of(cfg, task):
    """The folder of the task's data, checked to be there."""
    folder = REPOSITORY / cfg.data / task.name / "bin"
    if not (folder / "rows.json").is_file():
        raise ValueError(
            f"{folder} holds no data of {task.name}: bash data_prep/glue.sh {task.name} makes it, or "
            "override data=FOLDER with its --out"
        )
    return folder


def read_rows(cfg, task, pretrained):
    """{split: rows} of the task's data, checked to have the vocabulary of the checkpoint."""
    folder = data_of(cfg, task)
    dictionary = folder / "input0" / "dict.txt"
    types = dictionary.read_bytes().count(b"\n") + 5  # fairseq's four special types and <mask>
    trained_on = pretrained.data / "dict.txt"
    if types != pretrained.types or (
        trained_on.is_file() and trained_on.read_bytes() != dictionary.read_bytes()
    ):
        raise ValueError(
            f"{pretrained.path} has another vocabulary ({pretrained.types:,} types) than {folder} "
            f"({types:,}): prepare both with the same dictionary, such as GPT-2's byte pairs"
        )
    return json.loads((folder / "rows.json").read_text())


def check_settings(cfg, experiment):
    if cfg.family != "glue":
        raise ValueError(f"{experiment} is no fine-tuning on GLUE: choose from {', '.join(experiments())}")
    rates = cfg.learning_rates
    if not isinstance(rates, ListConfig) or not len(rates):
        raise ValueError("learning_rates is empty: give at least one, such as learning_rates=[1e-5,3e-5]")
    for rate in rates:
        if not isinstance(rate, float | int) or not 0 < rate < math.inf:
            raise ValueError(f"learning_rates has {rate!r}: learning rates are numbers above 0")


def experiments():
    return [name for name in compose.experiments() if name.startswith("glue/")]


def command_of(cfg, task, pretrained, rate, seed, updates, launch, save_dir):
    """The arguments of fairseq-train for one fine-tuning."""
    off = {f"no_{name}": True for name, value in pretrained.flags.items() if value is False}
    flags = {
        "user_dir": "fairseq_lrpe",
        "task": "sentence_prediction",
        "arch": pretrained.arch,
        **pretrained.flags,
        **off,
        **cfg.train,
        "num_classes": task.classes,
        **task.flags,
        "best_checkpoint_metric": task.best,
        "maximize_best_checkpoint_metric": True,
        "lr": rate,
        "total_num_update": updates,
        "warmup_updates": int(cfg.warmup * updates),
        "valid_subset": ",".join(task.splits.values()),
        "finetune_from_model": readable(pretrained.path),
    }
    data, run = readable(data_of(cfg, task)), {"updates": updates, "seed": seed, "save_dir": save_dir}
    return compose.fairseq_train(data, flags, cfg, **run, **launch)


def fine_tune(folder, cfg, task, pretrained, rows, seed, launch, settings):
    """All learning rates of one task and seed, and the evaluation of the best."""
    with locked(folder) as lock:
        check_same(folder, settings)
        if (folder / "evaluation.json").exists():
            print(f"finished before: {folder}")
            return
        write_whole(folder / "run.json", json.dumps(settings, indent=2) + "\n")
        tried = {}
        for rate in cfg.learning_rates:
            part = folder / f"lr-{rate:g}"
            tried[part] = one_rate(part, cfg, task, pretrained, rate, rows, seed, launch, lock)
            done = {"kind": "fine-tuned", "num_updates": len(tried) * updates_of(cfg, rows)}
            write_whole(folder / "log.jsonl", json.dumps(done) + "\n")
        scores = {part: tried[part]["splits"][next(iter(task.splits))]["score"] for part in tried}
        best = max(scores, key=lambda part: -math.inf if math.isnan(scores[part]) else scores[part])
        for part in tried:
            if part != best:
                shutil.rmtree(part / "checkpoints", ignore_errors=True)
        evaluation = {
            **tried[best],
            "tried": {part.name: result["splits"] for part, result in tried.items()},
            "checkpoint": f"{best.name}/checkpoints/checkpoint_best.pt",
            "finished": now(),
        }
        write_whole(folder / "evaluation.json", json.dumps(evaluation, indent=2) + "\n")
        for split, measured in evaluation["splits"].items():
            print(f"{split}: {task.measure} {measured['score']:.2f} with {best.name}")
        print(f"finished: {folder}")


def one_rate(folder, cfg, task, pretrained, rate, rows, seed, launch, lock):
    """{"learning_rate", "splits"} of one fine-tuning, trained and evaluated unless that is done."""
    if (folder / "evaluation.json").exists():
        return json.loads((folder / "evaluation.json").read_text())
    folder.mkdir(parents=True, exist_ok=True)
    checkpoints = folder / "checkpoints"
    updates = updates_of(cfg, rows)
    command = command_of(cfg, task, pretrained, rate, seed, updates, launch, readable(checkpoints))
    write_whole(folder / "command.sh", f"cd {shlex.quote(str(REPOSITORY))}\n{shlex.join(command)}\n")
    mend(checkpoints)
    train(folder, updates, command, Log(folder), lock)
    files = {split: folder / f"predictions-{name}.tsv" for name, split in task.splits.items()}
    predict(checkpoints / "checkpoint_best.pt", cfg, task, files, folder / "predict.log", launch["cpu"])
    result = {
        "learning_rate": rate,
        "splits": {name: glue.measure(task, files[split]) for name, split in task.splits.items()},
    }
    (checkpoints / "checkpoint_last.pt").unlink(missing_ok=True)
    write_whole(folder / "evaluation.json", json.dumps(result, indent=2) + "\n")
    return result


def updates_of(cfg, rows):
    return cfg.epochs * math.ceil(rows["train"] / cfg.batch.total)


def predict(checkpoint, cfg, task, files, log, cpu):
    """Write what the checkpoint predicts: {split: file}."""
    log.unlink(missing_ok=True)
    run_command(
        [
            *("python", "-m", "fairseq_lrpe.experiments.predict", str(checkpoint)),
            str(data_of(cfg, task)),
            *(f"{split}={path}" for split, path in files.items()),
            *(["--cpu"] if cpu else []),
        ],
        log,
        cwd=REPOSITORY,
    )


def main(arguments=None):
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    overrides = [a for a in arguments if OVERRIDE.match(a)]
    args = parse([a for a in arguments if not OVERRIDE.match(a)])
    try:
        glue.check_tasks(args.tasks)
        cfg = compose.load(args.experiment, overrides)
        check_settings(cfg, args.experiment)
        launch = choose_launch(args)
        del launch["nodes"]
        pretrained = read_pretrained(args.checkpoint)
        tasks = {
            name: (glue.TASKS[name], read_rows(cfg, glue.TASKS[name], pretrained)) for name in args.tasks
        }
        compose.update_freq(cfg, launch["gpus"])
        for seed in args.seeds or cfg.seeds:
            for name, (task, rows) in tasks.items():
                folder = args.results / args.experiment / pretrained.method / f"seed-{seed}" / name
                settings = describe(args, cfg, task, pretrained, rows, seed, launch, overrides)
                if args.dry_run:
                    for rate in cfg.learning_rates:
                        save_dir = readable(folder / f"lr-{rate:g}" / "checkpoints")
                        print(
                            shlex.join(
                                command_of(
                                    cfg, task, pretrained, rate, seed, updates_of(cfg, rows), launch, save_dir
                                )
                            )
                        )
                    continue
                with ending_signals():
                    fine_tune(folder, cfg, task, pretrained, rows, seed, launch, settings)
    except (ValueError, CommandFailed) as error:
        sys.exit(f"finetune: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def describe(args, cfg, task, pretrained, rows, seed, launch, overrides):
    """run.json."""
    config = OmegaConf.to_container(cfg, resolve=True)
    del config["tasks"]
    return {
        "experiment": args.experiment,
        "family": cfg.family,
        "task": task.name,
        "seed": seed,
        "arch": pretrained.arch,
        "updates": len(cfg.learning_rates) * updates_of(cfg, rows),
        **launch,
        "overrides": overrides,
        "config": config,
        "checkpoint": {"path": str(readable(pretrained.path)), "sha256": pretrained.sha256},
        "data": rows,
        "versions": versions(),
        "git": git(),
        "started": now(),
    }


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="finetune_glue.sh",
        description=__doc__,
        usage="%(prog)s CHECKPOINT TASK [TASK ...] [options] [KEY=VALUE ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", type=Path, help="of a pretrained RoBERTa, such as checkpoint_best.pt")
    parser.add_argument("tasks", nargs="+", metavar="TASK", help=", ".join(glue.TASKS))
    parser.add_argument(
        "--experiment", default="glue/wikibook", help=f"{', '.join(experiments())} (default: %(default)s)"
    )
    parser.add_argument("--seeds", nargs="+", type=at_least(1), help="default: the experiment's")
    add_machine_flags(parser)
    args = parser.parse_args(arguments)
    args.nodes, args.rendezvous = 1, None
    args.checkpoint, args.results = args.checkpoint.absolute(), args.results.absolute()
    return args


if __name__ == "__main__":
    main()
