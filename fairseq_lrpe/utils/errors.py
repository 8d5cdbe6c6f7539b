"""The exception for errors that a user can correct."""

from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager


class UserError(ValueError, ArgumentTypeError):
    """Raised for an invalid option, an invalid YAML file or missing data.

    The command line prints it without a traceback, also if the type of an argument raises it. Unexpected
    exceptions are bugs and keep their traceback.
    """


@contextmanager
def user_errors() -> Iterator[None]:
    """Converts a ValueError of the block to a UserError; used where only a user's input can cause one."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from None
