"""Suggestions for error messages about unknown names."""

from collections.abc import Iterable
from difflib import get_close_matches

from fairseq_lrpe.utils.errors import UserError

SHORT = 12  # maximum number of names that a message lists


def choices(name: object, known: Iterable[str], listing: str = "", prefix: str = "") -> str:
    """Returns the end of an error message about an unknown name: the closest known name and a list of all.

    If there are more than ``SHORT`` known names, the text ``listing`` replaces the list, such as "`lrpe
    --help` lists the commands". ``prefix`` is put before the closest name.
    """
    known = list(known)
    close = get_close_matches(str(name), known, n=1)
    question = f" (did you mean {prefix + close[0]!r}?)" if close else ""
    where = listing if listing and len(known) > SHORT else f"choose from {', '.join(known)}"
    return f"{question}: {where}"


def check_choice(what: str, value: object, known: Iterable[str], listing: str = "") -> None:
    """Raises a ValueError if the value is not one of the known names; ``listing`` as in :func:`choices`."""
    if value not in known:
        raise ValueError(f"unknown {what} {value!r}{choices(value, known, listing)}")


def check_flag(what: str, value: object, known: Iterable[str]) -> None:
    """Raises a UserError if the value of a flag is not one of the known names."""
    if value not in known:
        listing = "`lrpe methods --flags` lists them"
        raise UserError(f"unknown {what} {value!r}{choices(value, known, listing)}")
