"""Ends fairseq's commands with one line after a :class:`UserError`, which models and tasks raise."""

import sys
from collections.abc import Callable
from functools import partial

from fairseq_lrpe.utils.cli import is_fairseq_command
from fairseq_lrpe.utils.errors import UserError


def run(function: Callable, *args, **kwargs):
    """Returns ``function(*args, **kwargs)``; in a command, prints a UserError without a traceback and exits.

    The UserError can also be the cause of another exception, as fairseq's if a checkpoint does not fit the
    model.
    """
    if not is_fairseq_command():
        return function(*args, **kwargs)
    try:
        return function(*args, **kwargs)
    except Exception as error:
        cause = error
        while not isinstance(cause, UserError):
            cause = cause.__cause__ or cause.__context__
            if cause is None:
                raise
        sys.exit(f"fairseq_lrpe: {cause}")


def call_main(original: Callable, cfg, main: Callable, **kwargs):
    """Replaces fairseq's ``call_main``, which may call ``main`` in processes of its own."""
    return original(cfg, partial(run, main), **kwargs)
