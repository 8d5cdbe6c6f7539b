"""A cell of a table: its published number, and the runs that measure it."""

from dataclasses import dataclass, field

from fairseq_lrpe.experiments.definition.kinds import Kind
from fairseq_lrpe.experiments.definition.run import Run


@dataclass
class Cell:
    """A cell of a table.

    With ``choose_by: mean``, the runs of the trial with the best mean score measure the cell.
    """

    attention: str
    row: str
    column: str
    method: str | None = None
    published: tuple[float, float | None] | None = None  # mean and standard deviation in the paper
    change_values: list = field(default_factory=list)  # of the row, such as [8] for ``train.shaw_k: 8``
    tuned: dict = field(default_factory=dict)  # changes that a search has found best for the row
    better: str = "lower"  # or "higher"
    experiment: str | None = None
    kind: Kind | None = None
    evaluation: str | None = None
    metric: str | None = None
    runs: list[Run] = field(default_factory=list)  # the runs that measure the cell
    parts: list["Cell"] = field(default_factory=list)  # cells of which this one is the average ...
    is_best: bool = False  # ... or the best
    drop_worst: bool = False  # whether the worst of three or more seeds is excluded
    trials: list[list[Run]] = field(default_factory=list)  # with ``choose_by: mean``; one run per seed
    score: tuple[str, str] | None = None  # (evaluation, metric) by which a trial is chosen
