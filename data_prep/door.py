"""What is asked of a preparation, and what an earlier one left, checked before any work."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from data_prep.progress import AFTER
from fairseq_lrpe.files import whole_folder

NOTE = "source.txt"


def check_text(path: Path, needed: str = "text is needed") -> int:
    """Returns how many lines ``path`` has; ValueError unless it is UTF-8 text, to its end, and not blank.

    ``needed`` says what would do if there is no such file.
    """
    if not path.is_file():
        raise ValueError(f"{path} is missing: {needed}")
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            lines = tqdm(file, f"checking {path.name}", unit="lines", disable=None, delay=AFTER, leave=False)
            kinds = Counter(None if "\0" in line else bool(line.strip()) for line in lines)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}): convert it first") from None
    if kinds[None]:  # what is of UTF-16 without a mark at its beginning is UTF-8, too
        raise ValueError(f"{path} has zero bytes, as UTF-16 has: convert it to UTF-8 first")
    if not kinds[True]:
        raise ValueError(f"{path} is empty: text is needed")
    return kinds.total()


def check_out(out: Path, source: str) -> None:
    """Raises ValueError if ``out`` has something of another source."""
    for product in (out / "text", *sorted(out.glob("bin*"))):
        held = read_note(product)
        if held not in ("", source):
            raise ValueError(
                f"{product} was made from {held}: give that to --from, remove {out}, or change --out"
            )
        if not held and product.name in ("text", "bin") and product.exists():
            raise ValueError(f"{product} is of no preparation: remove it, or change --out")


@contextlib.contextmanager
def noted_folder(folder: Path, source: str) -> Iterator[Path]:
    """Yields a folder to fill that takes the name ``folder`` at the end, with a note of its source."""
    print(f"Preparing {folder}", flush=True)
    with whole_folder(folder) as part:
        yield part
        leave_note(part, source)


def leave_note(product: Path, source: str) -> None:
    """Leaves in the folder ``product`` what it was made from."""
    (product / NOTE).write_text(f"{source}\n")


def read_note(product: Path) -> str:
    """Returns what the folder ``product`` was made from, and nothing if it is not there or does not say."""
    note = product / NOTE
    return note.read_text(errors="replace").strip() if note.is_file() else ""
