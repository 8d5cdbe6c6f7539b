"""The exception for errors that a user can correct."""

from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager


class UserError(ValueError, ArgumentTypeError):
    """Exception for errors that a user can correct, such as an invalid option or YAML file, or missing data.

    The command line prints the message without a traceback, also if the type of an argument raises this
    exception. Unexpected exceptions are bugs and keep their traceback.
    """


@contextmanager
def user_errors() -> Iterator[None]:
    """Converts a ValueError that the block raises to a UserError, where only a user's input can cause it."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from None
