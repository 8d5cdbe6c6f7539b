"""Suggestions for error messages about unknown names."""

from collections.abc import Iterable
from difflib import get_close_matches

SHORT = 12  # maximum number of names that a message lists


def did_you_mean(name: object, known: Iterable[str], prefix: str = "") -> str:
    """Returns ``" (did you mean 'rope'?)"`` for the known name closest to ``name``, or an empty string.

    ``prefix`` is put before the known name.
    """
    close = get_close_matches(str(name), list(known), n=1)
    return f" (did you mean {prefix + close[0]!r}?)" if close else ""


def choices(name: object, known: Iterable[str], listing: str = "", prefix: str = "") -> str:
    """Returns the end of an error message about an unknown name: the closest known name and a list of all.

    If there are more than ``SHORT`` known names, ``listing`` replaces the list, such as "`lrpe --help` lists
    the commands". ``prefix`` is put before the closest name.
    """
    known = list(known)
    where = listing if listing and len(known) > SHORT else f"choose from {', '.join(known)}"
    return f"{did_you_mean(name, known, prefix)}: {where}"
