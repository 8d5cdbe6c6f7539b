"""Suggestions for error messages about unknown names."""

from collections.abc import Iterable
from difflib import get_close_matches

SHORT = 12  # maximum number of names that a message lists


def choices(name: object, known: Iterable[str], listing: str = "", prefix: str = "") -> str:
    """Returns the end of an error message about an unknown name: the closest known name and a list of all.

    If there are more than ``SHORT`` known names, ``listing`` replaces the list, such as "`lrpe --help` lists
    the commands". ``prefix`` is put before the closest name.
    """
    known = list(known)
    close = get_close_matches(str(name), known, n=1)
    question = f" (did you mean {prefix + close[0]!r}?)" if close else ""
    where = listing if listing and len(known) > SHORT else f"choose from {', '.join(known)}"
    return f"{question}: {where}"
