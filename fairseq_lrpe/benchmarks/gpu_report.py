"""The report of the GPU check, which is written as Markdown and as JSON after each of its parts.

A later call reads the JSON file and continues with the parts that are missing.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fairseq_lrpe.benchmarks.shared import Table
from fairseq_lrpe.utils.files import write_atomic


class Deadline:
    """A point in time, ``seconds`` from its creation."""

    def __init__(self, seconds: float):
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        """Returns the remaining seconds, at least 0."""
        return max(0.0, self.end - time.monotonic())

    def share(self, fraction: float) -> "Deadline":
        """Returns the deadline after a fraction of the remaining time."""
        return Deadline(fraction * self.left())

    def rounds(self, most: int, least: int) -> Iterator[int]:
        """Yields 0, 1, .., ``most`` - 1, and stops early at the deadline after at least ``least`` numbers."""
        for number in range(most):
            if number >= least and not self.left():
                return
            yield number


@dataclass
class Part:
    """A section of the report with tables, and with remarks on failures and skipped measurements.

    ``complete`` is False if a later call should repeat the part.
    """

    heading: str
    minutes: float = 0.0
    complete: bool = True
    tables: list[Table] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def table(self, title: str = "", caption: str = "") -> list[dict]:
        """Adds an empty table and returns its list of rows, to which rows can be appended."""
        self.tables.append(Table(title, caption))
        return self.tables[-1].rows

    def remark(self, sentence: str) -> None:
        """Adds a remark."""
        self.remarks.append(" ".join(sentence.split()))

    def skip(self, sentence: str) -> None:
        """Adds a remark on measurements that failed or are missing; a later call repeats the part."""
        self.remark(sentence)
        self.complete = False

    def markdown(self) -> str:
        tables = (table.markdown() for table in self.tables if table.rows)
        remarks = "\n".join(f"- {sentence}" for sentence in self.remarks)
        return "\n\n".join(text for text in (f"## {self.heading}", *tables, remarks) if text)


@dataclass
class Report:
    """A report with the ``headings`` of all parts, and the ``parts`` measured so far."""

    title: str
    device: str
    introduction: str
    headings: list[str]
    parts: list[Part] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        """The headings of the parts that are not complete."""
        complete = [part.heading for part in self.parts if part.complete]
        return [heading for heading in self.headings if heading not in complete]

    def add(self, part: Part) -> None:
        """Adds a part in the order of the headings; replaces an earlier one with the same heading."""
        parts = {earlier.heading: earlier for earlier in self.parts} | {part.heading: part}
        self.parts = [parts[heading] for heading in self.headings if heading in parts]

    def read(self, folder: Path) -> None:
        """Takes over the parts that an earlier call wrote to a folder.

        Raises:
            ValueError: If the file is damaged, or is the report of another machine.
        """
        path = folder / "gpu_check.json"
        if not path.exists():
            return
        try:
            content = json.loads(path.read_text())
            title = content["title"]
            parts = [
                Part(**{**part, "tables": [Table(**table) for table in part["tables"]]})
                for part in content["parts"]
            ]
        except (ValueError, LookupError, TypeError):
            raise ValueError(f"{path} is damaged: remove it") from None
        if title != self.title:
            raise ValueError(f"{folder} has another report, {title!r}: choose another folder with --out")
        for part in parts:
            self.add(part)

    def markdown(self) -> str:
        status = "Minutes: " + ", ".join(f"{part.heading} {part.minutes:.1f}" for part in self.parts) + "."
        if self.missing:
            missing = f"Missing parts: {', '.join(self.missing)}"
            status = f"**Incomplete. {missing}. The same command continues with them.** {status}"
        texts = f"# {self.title}", self.introduction, status, *(part.markdown() for part in self.parts)
        return "\n\n".join(texts) + "\n"

    def write(self, folder: Path) -> None:
        """Writes ``gpu_check.md`` and ``gpu_check.json`` to a folder."""
        write_atomic(folder / "gpu_check.md", self.markdown())
        content = {"complete": not self.missing, "missing": self.missing, **asdict(self)}
        write_atomic(folder / "gpu_check.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
