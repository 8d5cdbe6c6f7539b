"""The exception for what a user can correct."""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """Raised for an invalid option, an invalid YAML file or missing data.

    The command line prints it as one line. Other exceptions are bugs and keep their traceback.
    """


@contextmanager
def user_errors() -> Iterator[None]:
    """Makes a ValueError a UserError, where the modules that import torch only get a user's flags."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from None
