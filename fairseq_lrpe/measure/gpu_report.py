"""Writes a report of several parts, whole after each, as Markdown to read and as JSON to compute with."""

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fairseq_lrpe.files import write_whole


class Deadline:
    """Says how many seconds are left."""

    def __init__(self, seconds: float):
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        return max(0.0, self.end - time.monotonic())

    def share(self, part: float) -> "Deadline":
        """Returns the deadline of what may use this part of the time that is left."""
        return Deadline(part * self.left())

    def rounds(self, most: int, least: int) -> Iterator[int]:
        """Yields 0, 1, .., ``most`` - 1, but no more once the time is up and there were ``least``."""
        for number in range(most):
            if number >= least and not self.left():
                return
            yield number


@dataclass
class Table:
    """Holds rows {column with its unit: value}, all with the same columns."""

    title: str
    caption: str
    rows: list[dict] = field(default_factory=list)

    def markdown(self) -> str:
        columns = [name for name in self.rows[0] if any(row[name] is not None for row in self.rows)]
        words = {column for column in columns if any(isinstance(row[column], str) for row in self.rows)}
        lines = [columns, [":--" if column in words else "--:" for column in columns]]
        lines += [[cell(row[column]) for column in columns] for row in self.rows]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        title = self.title and f"**{self.title}**"
        return "\n\n".join(text for text in (title, table, self.caption) if text)


@dataclass
class Part:
    """Holds the tables of one heading, and sentences on what is left out or strikes the eye."""

    heading: str
    minutes: float = 0.0  # that it took
    tables: list[Table] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def table(self, title: str = "", caption: str = "") -> list[dict]:
        """Adds a table and returns its rows, to be filled."""
        self.tables.append(Table(title, caption))
        return self.tables[-1].rows

    def remark(self, sentence: str) -> None:
        self.remarks.append(" ".join(sentence.split()))

    def markdown(self) -> str:
        tables = (table.markdown() for table in self.tables if table.rows)
        remarks = "\n".join(f"- {sentence}" for sentence in self.remarks)
        return "\n\n".join(text for text in (f"## {self.heading}", *tables, remarks) if text)


@dataclass
class Report:
    """Holds what is said first, the parts so far, and the headings of those that are still to come."""

    title: str
    device: str
    opening: str
    missing: list[str]
    parts: list[Part] = field(default_factory=list)

    def markdown(self) -> str:
        unfinished = (
            f"**Incomplete: it is still being measured or was cut short before: {', '.join(self.missing)}.**"
        )
        took = ", ".join(f"{part.heading} {part.minutes:.1f}" for part in self.parts)
        said = [f"# {self.title}", self.opening, unfinished if self.missing else f"Minutes: {took}."]
        return "\n\n".join([*said, *(part.markdown() for part in self.parts)]) + "\n"

    def write(self, folder: Path) -> None:
        """Writes ``gpu_check.md`` and ``gpu_check.json``."""
        write_whole(folder / "gpu_check.md", self.markdown())
        content = {"complete": not self.missing, **asdict(self)}
        write_whole(folder / "gpu_check.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def cell(value: object) -> str:
    """Returns a value for people: numbers with three digits and thousands separators, None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value).replace("|", r"\|")
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.01 else f"{value:.1e}"
