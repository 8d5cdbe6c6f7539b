"""Makes fairseq's evaluation commands use the task of a checkpoint, with its settings.

By default, most of these commands read both from the command line only, so a model trained by ``memory_lm``
would be evaluated by ``language_modeling``, without its memory.
"""

import os
from argparse import ArgumentParser, Namespace
from dataclasses import fields
from pathlib import Path

from fairseq.checkpoint_utils import get_maybe_sharded_checkpoint_filename
from fairseq.tasks import TASK_DATACLASS_REGISTRY

from fairseq_lrpe.fairseq_ext.checkpoint import read_checkpoint
from fairseq_lrpe.tasks import FAMILIES
from fairseq_lrpe.utils.errors import UserError


def restore_task(parser: ArgumentParser, words: list[str] | None) -> None:
    """Makes the task in the checkpoints of ``--path`` the default of a parser of ``words``.

    Only this plugin's tasks are restored, except in ``fairseq-validate``, which has no default task. fairseq
    calls this function again when the parser has the task's flags, whose defaults then become the settings
    in the checkpoints of this plugin's tasks. Explicit flags take precedence.

    Raises:
        UserError: if a checkpoint cannot be read or its task and ``--task`` are of different families,
            or if the checkpoints differ in the task or in settings to restore.
    """
    args, _ = parser.parse_known_args(words, Namespace(task=None))
    if not getattr(args, "path", None):
        return
    shard = getattr(args, "checkpoint_suffix", ""), 0, getattr(args, "checkpoint_shard_count", 1)
    paths = [get_maybe_sharded_checkpoint_filename(path, *shard) for path in args.path.split(os.pathsep)]
    remedy = "pass one that fairseq-train wrote"
    tasks = [read_checkpoint(Path(path), remedy)["cfg"]["task"] for path in paths]
    names = sorted({str(task.get("_name")) for task in tasks})
    for path, task in zip(paths, tasks, strict=True):
        family = FAMILIES.get(args.task)
        if family and FAMILIES.get(task.get("_name"), family) != family:
            raise UserError(
                f"the checkpoint {path} is of the task {task['_name']}, not of {args.task}: "
                f"pass --task {task['_name']} and data for this task"
            )
    if args.task is None and (parser.get_default("task") is None or any(map(_is_ours, names))):
        if len(names) > 1:
            raise UserError(f"the checkpoints are of different tasks ({', '.join(names)}): pass --task")
        [args.task] = names
        parser.set_defaults(task=args.task)
    if _is_ours(args.task) and args.task in names:
        _restore_settings(parser, words, args, [task for task in tasks if task["_name"] == args.task])


def _is_ours(task):
    return getattr(TASK_DATACLASS_REGISTRY.get(task), "__module__", "").startswith("fairseq_lrpe.")


def _restore_settings(parser, words, args, tasks):
    """Makes the settings of ``tasks`` defaults, except those that explicit flags replace."""
    known = vars(parser.parse_known_args(words)[0])
    flags = {
        f.name
        for f in fields(TASK_DATACLASS_REGISTRY[args.task])
        if f.name in known and f.name not in ("_name", "data") and not str(f.default).startswith("${")
    }
    explicit = vars(parser.parse_known_args(words, Namespace(**dict.fromkeys(flags)))[0])
    explicit = {name: explicit[name] for name in flags if explicit[name] is not None}
    restored = []
    for task in tasks:
        names = flags & task.keys() - explicit.keys()
        if args.task == "memory_lm":
            names -= _replaced_settings(task, explicit)
        restored.append({name: task[name] for name in names})
    for name in sorted(flags):
        if any(settings.get(name) != restored[0].get(name) for settings in restored):
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"the checkpoints differ in {flag}: pass {flag}")
    if "sample_break_mode" in restored[0] and args.task == "memory_lm" and hasattr(args, "beam"):
        restored[0]["sample_break_mode"] = "eos"  # the only mode in which it can generate
    parser.set_defaults(**restored[0])


def _replaced_settings(saved, explicit):
    """Returns the names of a checkpoint's memory settings that explicit flags exclude."""
    if explicit.get("memory", saved["memory"]) != saved["memory"]:
        return {"memory_length", "clamp_length", "same_length"}
    if saved["memory"] == "state" and explicit.get("memory_length"):
        return {"memory"}
    return {"clamp_length", "same_length"} if explicit.get("memory_length") == 0 else set()
