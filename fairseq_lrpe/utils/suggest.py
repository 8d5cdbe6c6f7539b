"""Messages for unknown names."""

from collections.abc import Iterable
from difflib import get_close_matches

SHORT = 12


def did_you_mean(name: object, known: Iterable[str], prefix: str = "") -> str:
    """Returns ``" (did you mean 'rope'?)"`` for the known name closest to ``name``, or an empty string.

    ``prefix`` is shown before the name.
    """
    close = get_close_matches(str(name), list(known), n=1)
    return f" (did you mean {prefix + close[0]!r}?)" if close else ""


def choices(name: object, known: Iterable[str], listing: str = "", prefix: str = "") -> str:
    """Returns what follows an unknown name in an error message: the closest match, then where to choose from.

    That is the known names if they are few, or else ``listing``, a command or file that lists them.
    """
    known = list(known)
    where = listing if listing and len(known) > SHORT else f"choose from {', '.join(known)}"
    return f"{did_you_mean(name, known, prefix)}: {where}"
