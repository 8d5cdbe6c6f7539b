"""Makes fairseq's evaluation commands use the task of a checkpoint, with its settings.

By default, most of these commands read the task and its settings from the command line only, so that a model
trained by ``memory_lm`` would be evaluated by ``language_modeling``, without its memory.
"""

import os
from argparse import ArgumentParser, Namespace
from dataclasses import fields
from pathlib import Path

from fairseq.checkpoint_utils import get_maybe_sharded_checkpoint_filename
from fairseq.tasks import TASK_DATACLASS_REGISTRY

from fairseq_lrpe.fairseq_ext.architecture import check_registered
from fairseq_lrpe.fairseq_ext.checkpoint import read_checkpoint
from fairseq_lrpe.tasks import FAMILIES
from fairseq_lrpe.utils.errors import UserError


def restore_task(parser: ArgumentParser, words: list[str] | None) -> None:
    """Makes the task of the first checkpoint of ``--path`` in ``words`` the default of ``parser``.

    Only this plugin's tasks are restored, except in ``fairseq-validate``, which has no default task. fairseq
    calls this function again when the parser has the task's flags, whose defaults then become the settings
    in the checkpoint of this plugin's task. Explicit flags take precedence.

    Raises:
        UserError: if the checkpoint cannot be read, its method is not registered, or its task and ``--task``
            are of different families.
    """
    args, _ = parser.parse_known_args(words, Namespace(task=None))
    if not getattr(args, "path", None):
        return
    shard = getattr(args, "checkpoint_suffix", ""), 0, getattr(args, "checkpoint_shard_count", 1)
    path = get_maybe_sharded_checkpoint_filename(args.path.split(os.pathsep)[0], *shard)
    settings = read_checkpoint(Path(path), "pass one that fairseq-train wrote")["cfg"]
    check_registered(Path(path), settings["model"])
    task = settings["task"]
    name = task.get("_name")
    family = FAMILIES.get(args.task)
    if family and FAMILIES.get(name, family) != family:
        raise UserError(
            f"the checkpoint {path} is of the task {name}, not of {args.task}: "
            f"pass --task {name} and data for this task"
        )
    if args.task is None and (parser.get_default("task") is None or _is_ours(name)):
        args.task = name
        parser.set_defaults(task=name)
    if _is_ours(name) and args.task == name:
        _restore_settings(parser, words, args, task)


def _is_ours(task):
    return getattr(TASK_DATACLASS_REGISTRY.get(task), "__module__", "").startswith("fairseq_lrpe.")


def _restore_settings(parser, words, args, task):
    """Makes the settings of a checkpoint's task defaults, except those that explicit flags replace."""
    known = vars(parser.parse_known_args(words)[0])
    flags = set()
    for f in fields(TASK_DATACLASS_REGISTRY[args.task]):
        copies_another = str(f.default).startswith("${")
        if f.name in known and f.name not in ("_name", "data") and not copies_another:
            flags.add(f.name)
    # argparse does not set the default of what the namespace already has: only given flags are not None.
    parsed = vars(parser.parse_known_args(words, Namespace(**dict.fromkeys(flags)))[0])
    explicit = {name: parsed[name] for name in flags if parsed[name] is not None}
    names = flags & task.keys() - explicit.keys()
    if args.task == "memory_lm":
        names -= _replaced_settings(task, explicit)
    restored = {name: task[name] for name in names}
    if "sample_break_mode" in restored and args.task == "memory_lm" and hasattr(args, "beam"):
        restored["sample_break_mode"] = "eos"  # the only mode in which it can generate
    parser.set_defaults(**restored)


def _replaced_settings(saved, explicit):
    """Returns the names of a checkpoint's memory settings that explicit flags exclude."""
    if explicit.get("memory", saved["memory"]) != saved["memory"]:
        return {"memory_length", "clamp_length", "same_length"}
    if saved["memory"] == "state" and explicit.get("memory_length"):
        return {"memory"}
    return {"clamp_length", "same_length"} if explicit.get("memory_length") == 0 else set()
