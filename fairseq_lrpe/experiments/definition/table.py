"""A table of a paper: its rows and columns, and the runs that measure its cells."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, model_validator

from fairseq_lrpe.experiments.definition import experiment as experiments
from fairseq_lrpe.experiments.definition.experiment import Experiment, applicable_overrides, read_yaml
from fairseq_lrpe.experiments.definition.kinds import Kind
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.schema import Model, validate
from fairseq_lrpe.methods import ATTENTIONS, canonical, check_method
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import display_path
from fairseq_lrpe.utils.suggest import choices

EXPERIMENTS = {"full": "experiment", "small": "small", "mini": "mini"}
"""{scale of a table: key of a column that names the experiment at this scale}"""
SEEDS = {"full": "seeds", "small": "small_seeds"}
"""{scale of a table: key of the table that can replace the experiments' seeds at this scale}"""
SCALES = tuple(EXPERIMENTS)
SCALE_HELP = "configuration: the paper's (full, default), for one GPU (small) or for CPUs (mini)"
Attention = Literal[ATTENTIONS]


class ColumnDefaults(Model):
    """Settings of a column; those of the table are the defaults of all its columns."""

    experiment: str | None = None
    small: str | None = None  # the experiment at --scale small
    mini: str | None = None  # the experiment at --scale mini
    metric: str | None = None  # the default is the first metric of the experiment's kind


class Column(ColumnDefaults):
    evaluation: str | None = None  # "training" has the training speed
    changes: dict[str, Any] = {}  # changed settings of the column's runs, such as the task
    attention: Attention | None = None  # restricts the column to rows of this attention
    average: list[str] = []  # columns of which this one is the average
    best: list[str] = []  # columns of which this one is the best for each seed

    @property
    def parts(self) -> list[str]:
        return self.average or self.best

    def experiment_at(self, scale: str) -> str | None:
        return getattr(self, EXPERIMENTS[scale])


class Number(Model):
    mean: FiniteFloat
    std: FiniteFloat | None = None

    @model_validator(mode="before")
    @classmethod
    def from_number(cls, content: object) -> object:
        return {"mean": content} if isinstance(content, int | float) else content


class Row(Model):
    """A row of a table; a row without a method or an attention has only published numbers."""

    row: str
    attention: Attention | None = None
    method: str | None = None
    changes: dict[str, Any] = {}
    columns: list[str] | None = None  # the columns of the row (default: all)
    values: dict[str, Number | None] = {}  # published numbers; null is a dash, which is not measured

    def published(self, column: str) -> tuple[float, float | None] | None:
        number = self.values.get(column)
        return number and (number.mean, number.std)

    def shows(self, name: str, column: Column) -> bool:
        return name in (self.columns or (name,)) and column.attention in (None, self.attention)

    def has_runs(self, name: str, column: Column) -> bool:
        is_dash = self.values.get(name, 0) is None
        return bool(self.method and self.attention and not column.parts and not is_dash)


class TableSettings(ColumnDefaults):
    title: str
    paper: str | None = None  # a file in configs/paper
    table: str | None = None  # a table in that file, whose rows come first
    baseline: str | None = None  # the method that others of the same attention are compared with
    columns: Annotated[dict[str, Column], Field(min_length=1)]
    rows: list[Row] = []
    rows_of: str | None = None  # another table, whose rows come before ``rows``, with all columns
    seeds: list[int] | None = None  # seeds at --scale full; default: those of the experiments
    small_seeds: list[int] | None = None  # seeds at --scale small
    drop_worst: bool = False  # excludes the worst of three or more seeds
    choose_once: bool = False  # ``choose`` selects one trial for all seeds, by its mean over them

    @model_validator(mode="after")
    def complete(self) -> "TableSettings":
        measured = [name for name, column in self.columns.items() if not column.parts]
        for name, column in self.columns.items():
            for key in ColumnDefaults.model_fields.keys() - column.model_fields_set:
                setattr(column, key, getattr(self, key))
            for part in column.parts:
                if part not in measured:
                    raise UserError(f"columns.{name}: unknown column {part!r}{choices(part, measured)}")
        for row in self.rows:
            if not (row.attention and row.method):
                raise UserError(f"row {row.row}: attention and method are required")
            for name in row.columns or ():
                if name not in self.columns:
                    raise UserError(f"row {row.row}: unknown column {name!r}{choices(name, self.columns)}")
        return self


class PaperColumn(Model):
    metric: str
    better: Literal["higher", "lower"]


class PaperTable(Model):
    shows: str = ""  # description of the table
    note: str | None = None  # remark on doubtful values
    columns: dict[str, PaperColumn] = {}
    rows: list[Row] = []


class Paper(Model):
    source: str
    tables: dict[str, PaperTable]


@dataclass
class Cell:
    """A cell of a table; with ``choose_once``, the trial with the best mean score measures it."""

    attention: str
    row: str
    column: str
    method: str | None = None
    published: tuple[float, float | None] | None = None  # mean and standard deviation in the paper
    change_values: list = field(default_factory=list)  # of the row, such as [8] for ``train.shaw_k: 8``
    better: str = "lower"  # or "higher"
    experiment: str | None = None
    kind: Kind | None = None
    evaluation: str | None = None
    metric: str | None = None
    runs: list[Run] = field(default_factory=list)  # the runs that measure the cell
    parts: list["Cell"] = field(default_factory=list)  # cells of which this one is the average ...
    is_best: bool = False  # ... or the best
    drop_worst: bool = False  # whether the worst of three or more seeds is excluded
    trials: list[list[Run]] = field(default_factory=list)  # with ``choose_once``: of each trial, one per seed
    score: tuple[str, str] | None = None  # (evaluation, metric) by which a trial is chosen


def tables() -> list[str]:
    return sorted(path.stem for path in (experiments.CONFIGS / "tables").glob("[!.]*.yaml") if path.is_file())


def read_model(path: Path, model: type[Model]) -> Model:
    try:
        return validate(model, read_yaml(path))
    except UserError as error:
        raise UserError(f"{display_path(path)}: {error}") from None


class TableSpec:
    """The YAML file of a table and its published table."""

    def __init__(self, name: str):
        if name not in tables():
            listing = "`bash scripts/table.sh` lists the tables"
            raise UserError(f"unknown table {name!r}{choices(name, tables(), listing)}")
        self.name = name
        self.path = experiments.CONFIGS / "tables" / f"{name}.yaml"
        self.settings = read_model(self.path, TableSettings)
        self.source, self.published = self._read_published()
        self.rows = [*self.published.rows, *self._rows_of_other(), *self.settings.rows]
        names = [(row.attention, row.row) for row in self.rows]
        if duplicate := next((name for i, name in enumerate(names) if name in names[:i]), None):
            raise self._error("rows", f"{' '.join(map(str, duplicate))} is not unique: rename a row")
        if self.settings.baseline is not None:
            methods = dict.fromkeys(row.method for row in self.rows if row.method)
            self._check("baseline", "method", self.settings.baseline, methods)

    def _error(self, key, message):
        return UserError(f"{display_path(self.path)}: {key}: {message}")

    def _check(self, key, what, name, known):
        if name not in known:
            raise self._error(key, f"unknown {what} {name!r}{choices(name, known, experiments.LISTING)}")

    @contextmanager
    def _context(self, key):
        try:
            yield
        except UserError as error:
            raise self._error(key, error) from None

    def _read_published(self):
        if self.settings.paper is None:
            return None, PaperTable()
        paper = read_model(experiments.CONFIGS / "paper" / f"{self.settings.paper}.yaml", Paper)
        if self.settings.table is not None:
            self._check("table", "table", self.settings.table, paper.tables)
        return paper.source, paper.tables.get(self.settings.table, PaperTable())

    def _rows_of_other(self):
        if (other := self.settings.rows_of) is None:
            return []
        self._check("rows_of", "table", other, [name for name in tables() if name != self.name])
        if read_model(self.path.with_name(f"{other}.yaml"), TableSettings).rows_of:
            raise self._error("rows_of", f"{other} has the rows of another table: name that table")
        return [row.model_copy(update={"columns": None, "values": {}}) for row in TableSpec(other).rows]

    @property
    def scales(self) -> list[str]:
        columns = self.settings.columns.values()
        return [scale for scale in SCALES if any(column.experiment_at(scale) for column in columns)]


class Table(TableSpec):
    """A table, its experiments and its cells at one scale.

    Args:
        name: name of a file in configs/tables.
        scale: one of ``SCALES``.
        overrides: texts KEY=VALUE. Each changes the experiments that have KEY, or all if none has it.

    Raises:
        UserError: for an unknown table, a scale that it does not have, or invalid settings.
    """

    def __init__(self, name: str, scale: str = "full", overrides: tuple | list = ()):
        super().__init__(name)
        self.scale, self.overrides = scale, list(overrides)
        if scale not in self.scales:
            known = " or ".join(f"--scale {other}" for other in self.scales)
            message = f"missing: the table has no experiment at --scale {scale}; use {known}"
            raise self._error(EXPERIMENTS[scale], message)
        columns = self.settings.columns
        names = {x: about.experiment_at(scale) for x, about in columns.items()}
        self.columns = {x: about for x, about in columns.items() if about.parts or names[x]}
        measured = {x: names[x] for x, about in self.columns.items() if not about.parts}
        for column, name in measured.items():
            key = f"columns.{column}.{EXPERIMENTS[scale]}"
            self._check(key, "experiment", name, experiments.experiments())
        own = {name: applicable_overrides(name, overrides) for name in dict.fromkeys(measured.values())}
        # Overrides with keys that no experiment has may add keys, such as evaluations, to all of them.
        new = [text for text in overrides if not any(text in texts for texts in own.values())]
        self.experiments = {x: Experiment.load(x, [*texts, *new], overrides) for x, texts in own.items()}
        for column, name in measured.items():
            self._check_column(f"columns.{column}", self.columns[column], self.experiments[name])
        self.cells = self._make_cells()

    def _check_column(self, key, column, experiment):
        known = [*experiment.cfg.evaluations, "training"]
        self._check(f"{key}.evaluation", "evaluation", column.evaluation, known)
        if column.metric is not None:
            known = ["tokens_per_second"] if column.evaluation == "training" else experiment.kind.metrics
            self._check(f"{key}.metric", "metric", column.metric, known)
        if column.changes:
            with self._context(f"{key}.changes"):
                experiment.check(column.changes)

    def _make_cells(self):
        published, found = self.published.columns, {}
        for row in self.rows:
            for name in dict.fromkeys([*(published if self.scale == "full" else ()), *self.columns]):
                column = self.columns.get(name, Column())
                if not row.shows(name, column):
                    continue
                cell = Cell(row.attention or "", row.row, name, row.method, row.published(name))
                cell.change_values, cell.drop_worst = list(row.changes.values()), self.settings.drop_worst
                if name in published:
                    cell.better = published[name].better
                if name in self.columns and row.has_runs(name, column):
                    with self._context(f"row {row.row}"):
                        self._plan(cell, row, column)
                found[cell.attention, cell.row, name] = cell
        for (attention, row, name), cell in found.items():
            column = self.columns.get(name, Column())
            parts = [found.get((attention, row, part)) for part in column.parts]
            if parts and all(part and part.runs for part in parts):
                cell.parts, cell.is_best = parts, bool(column.best)
        measured = {cell.column for cell in found.values() if cell.runs or cell.parts}
        return [cell for cell in found.values() if self.scale == "full" or cell.column in measured]

    def _plan(self, cell, row, column):
        """Sets the runs, experiment and metric of a cell.

        Leaves the cell unchanged if a change sets a key of the experiment's grid to a value outside the grid.
        """
        experiment = self.experiments[column.experiment_at(self.scale)]
        kind, grid, changes = experiment.kind, experiment.cfg.grid, {**column.changes, **row.changes}
        check_method(row.method, row.attention)
        if row.changes:
            experiment.check(row.changes)
        if any(key in grid and value not in grid[key] for key, value in changes.items()):
            return
        seeds = getattr(self.settings, SEEDS[self.scale]) if self.scale in SEEDS else None
        if not seeds or any(text.startswith("seeds=") for text in self.overrides):
            seeds = experiment.cfg.seeds
        cell.runs = experiment.runs(row.attention, canonical(row.method), seeds, changes)
        by_seed = [experiment.trials(run) for run in cell.runs] if self.settings.choose_once else []
        cell.trials = [list(runs) for runs in zip(*by_seed, strict=True)]
        if cell.trials:
            cell.runs = [run for runs in cell.trials for run in runs]
            first = next(iter(kind.evaluations(experiment.settings(cell.runs[0]))))
            cell.score = first, next(iter(kind.metrics))
        cell.experiment, cell.kind, cell.evaluation = experiment.name, kind, column.evaluation
        cell.metric = column.metric or next(iter(kind.metrics))
        if not self.settings.paper or cell.published is None:
            cell.better = kind.metrics.get(cell.metric, "higher")

    def baseline(self, cell: Cell) -> Cell | None:
        """Returns the baseline's cell with this attention and column; None without one, or for itself.

        If several rows have the baseline's method, that with the same values of changes, such as k, counts.
        """
        base = self.settings.baseline
        if base is None or cell.method == base:
            return None
        place = cell.attention, cell.column, base
        found = [c for c in self.cells if (c.attention, c.column, c.method) == place]
        if len(found) != 1:
            found = [c for c in found if c.change_values == cell.change_values]
        return found[0] if found else None

    def runs(self, only: tuple | list = ()) -> list[Run]:
        """Returns the runs of all methods, or of those in ``only``, and the runs that they need, in order.

        Needed runs of other experiments come first, and the others are sorted by seed, so that the methods
        can be compared early.
        """
        pairs = [(cell.method, canonical(cell.method)) for cell in self.cells if cell.runs]
        methods = dict.fromkeys(method for pair in pairs for method in pair)
        for name in only:
            if name not in methods:
                raise UserError(f"the table has no method {name!r}{choices(name, methods)}")
        found, first = {}, set()

        def add(run):
            if run not in found:
                for needed in self.experiment_of(run).needs(run):
                    add(needed)
                    if needed.experiment != run.experiment:
                        first.add(needed)
                found[run] = None

        for run in (run for cell in self.cells for run in cell.runs):
            if not only or run.method in map(canonical, only):
                add(run)
        return sorted(found, key=lambda run: (run not in first, run.seed))

    def experiment_of(self, run: Run) -> Experiment:
        one = next(iter(self.experiments.values()))
        return self.experiments.get(run.experiment) or one.other(run.experiment)
