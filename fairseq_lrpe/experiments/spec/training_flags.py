"""The flags of fairseq-train."""

from argparse import ArgumentParser
from functools import cache

from fairseq import options
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY

import fairseq_lrpe.models  # noqa: F401  (registers architectures and tasks)


@cache
def training_flags(task: str, arch: str, choices: tuple[tuple[str, str], ...]) -> list[str]:
    """Returns the flags of fairseq-train, with underscores, for a task, an architecture and components.

    ``choices`` are names of components, such as ("criterion", "label_smoothed_cross_entropy"), which may be
    several of one kind.
    """
    parser = options.get_training_parser(task)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    TASK_REGISTRY[task].add_args(parser)
    found = set(names_of(parser)) - {"help"}
    defaults = ((kind, parser.get_default(kind)) for kind in REGISTRIES)
    for kind, name in (*defaults, *choices):
        found.update(flags_of(REGISTRIES[kind]["registry"].get(name)))
    return sorted(found)


def components_with(flag: str) -> list[str]:
    """Returns the components that have a flag, such as "criterion=label_smoothed_cross_entropy"."""
    classes = ((kind, one) for kind, registry in REGISTRIES.items() for one in registry["registry"].items())
    return [f"{kind}={name}" for kind, (name, cls) in classes if flag in flags_of(cls)]


def flags_of(cls: type | None) -> list[str]:
    """Returns the flags of a component, with underscores."""
    parser = ArgumentParser(add_help=False)
    if hasattr(cls, "add_args"):
        cls.add_args(parser)
    elif hasattr(cls, "__dataclass"):
        gen_parser_from_dataclass(parser, getattr(cls, "__dataclass")())
    return names_of(parser)


def names_of(parser: ArgumentParser) -> list[str]:
    """Returns the names of a parser's options, with underscores."""
    names = (name for action in parser._actions for name in action.option_strings)
    return [name[2:].replace("-", "_") for name in names if name.startswith("--")]
