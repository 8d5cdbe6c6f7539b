"""The exception for what a user can correct."""


class UserError(ValueError):
    """Raised for an invalid option, an invalid YAML file or missing data.

    The command line prints it as one line. Other exceptions are bugs and keep their traceback.
    """
