"""The report of the GPU check, which is written as Markdown and as JSON after each of its parts."""

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
    """A section of the report with tables, and with remarks on failures and skipped measurements."""

    heading: str
    minutes: float = 0.0
    tables: list[Table] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def table(self, title: str = "", caption: str = "") -> list[dict]:
        """Adds an empty table and returns its list of rows, to which rows can be appended."""
        self.tables.append(Table(title, caption))
        return self.tables[-1].rows

    def remark(self, sentence: str) -> None:
        """Adds a remark."""
        self.remarks.append(" ".join(sentence.split()))

    def markdown(self) -> str:
        tables = (table.markdown() for table in self.tables if table.rows)
        remarks = "\n".join(f"- {sentence}" for sentence in self.remarks)
        return "\n\n".join(text for text in (f"## {self.heading}", *tables, remarks) if text)


@dataclass
class Report:
    """A report with the parts measured so far, and the headings of the ``missing`` parts."""

    title: str
    device: str
    introduction: str
    missing: list[str]
    parts: list[Part] = field(default_factory=list)

    def markdown(self) -> str:
        status = "Minutes: " + ", ".join(f"{part.heading} {part.minutes:.1f}" for part in self.parts) + "."
        if self.missing:
            status = (
                f"**Incomplete, still running or interrupted. Missing parts: {', '.join(self.missing)}.**"
            )
        texts = f"# {self.title}", self.introduction, status, *(part.markdown() for part in self.parts)
        return "\n\n".join(texts) + "\n"

    def write(self, folder: Path) -> None:
        """Writes ``gpu_check.md`` and ``gpu_check.json`` to a folder."""
        write_atomic(folder / "gpu_check.md", self.markdown())
        content = {"complete": not self.missing, **asdict(self)}
        write_atomic(folder / "gpu_check.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
