"""A table: the paper's rows, what its columns are measured by, and the runs that this takes."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf

from fairseq_lrpe.experiments.spec import experiment as experiments
from fairseq_lrpe.experiments.spec.experiment import Experiment, checked, own, read_yaml
from fairseq_lrpe.experiments.spec.kinds import Kind
from fairseq_lrpe.experiments.spec.run import Run, as_text
from fairseq_lrpe.methods import ATTENTIONS, METHODS, canonical, check_method
from fairseq_lrpe.utils.files import display_path
from fairseq_lrpe.utils.suggest import choices, did_you_mean
from fairseq_lrpe.utils.yaml_loader import parse

SCALES = ("full", "mini")


@dataclass
class Column:
    """What measures a column: an ``evaluation`` of an experiment, or of its small form ``mini``.

    ``changes`` are those of the column's runs, such as a task; ``attention`` is that of the rows it is for,
    if not for all. One that is an ``average`` of others, or of each seed the ``best`` of others, has no runs
    of its own. Where nothing is said, the table's own ``experiment``, ``mini`` and ``metric`` hold.
    """

    experiment: str | None = None
    mini: str | None = None
    evaluation: str | None = None
    metric: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    attention: str | None = None
    average: list[str] = field(default_factory=list)
    best: list[str] = field(default_factory=list)


@dataclass
class PaperRow:
    """A row of a published table: ``values`` {column: number, its mean and std, or null for a dash}.

    What the paper has a dash for is not run.
    """

    row: str = MISSING
    attention: str | None = None
    method: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = MISSING


@dataclass
class Row(PaperRow):
    """A row of our own, of all columns or of those named, without values."""

    attention: str = MISSING
    method: str = MISSING
    columns: list[str] | None = None
    values: dict[str, Any] = field(default_factory=dict)


@dataclass
class TableSettings:
    """The keys of a table's YAML; ``seeds`` and ``mini_seeds`` replace the experiments' own."""

    title: str = MISSING
    paper: str | None = None  # the file in configs/paper
    table: str | None = None  # the table in it, whose rows come first
    baseline: str | None = None  # the method that others of the same attention are compared with
    experiment: str | None = None
    mini: str | None = None
    metric: str | None = None
    columns: dict[str, Column] = MISSING
    rows: list[Row] = field(default_factory=list)
    seeds: list[int] | None = None
    mini_seeds: list[int] | None = None
    drop_worst: bool = False  # of three or more seeds the worst does not count


@dataclass
class PaperColumn:
    metric: str = MISSING
    better: str = MISSING


@dataclass
class PaperTable:
    shows: str = ""
    note: str | None = None
    columns: dict[str, PaperColumn] = field(default_factory=dict)
    rows: list[PaperRow] = field(default_factory=list)


@dataclass
class Paper:
    """A file of configs/paper."""

    source: str = MISSING
    tables: dict[str, PaperTable] = MISSING


@dataclass
class Cell:
    """A row and column of a table: (mean, deviation or None) of the paper, and the runs that measure it.

    ``parts`` are the cells that this one is the average of, or the best of them if it ``is_best``.
    """

    attention: str
    row: str
    column: str
    method: str | None = None
    published: tuple[float, float | None] | None = None
    better: str = "lower"
    experiment: str | None = None
    kind: Kind | None = None
    evaluation: str | None = None
    metric: str | None = None
    runs: list[Run] = field(default_factory=list)
    parts: list["Cell"] = field(default_factory=list)
    is_best: bool = False
    drop_worst: bool = False


def others(column: DictConfig) -> list[str]:
    """Returns the columns that this one is made of; none of one with runs of its own."""
    return list(column.average or column.best)


def tables() -> list[str]:
    """Returns the names of all tables."""
    return sorted(path.stem for path in (experiments.CONFIGS / "tables").glob("*.yaml") if path.is_file())


def outline(name: str) -> tuple[str, dict[str, list[tuple]]]:
    """Returns a table's title and {scale: its cells}, from its YAML alone: to load experiments takes seconds.

    A cell is ((experiment, attention, method), changes); no cells mean that there is no such scale.

    Raises:
        ValueError: the YAML is wrong.
    """
    path, cells = experiments.CONFIGS / "tables" / f"{name}.yaml", {}
    settings, known = OmegaConf.to_container(_settings(path)), experiments.experiments()
    try:
        rows = settings["rows"]
        if settings["table"]:
            paper = experiments.CONFIGS / "paper" / f"{settings['paper']}.yaml"
            rows = parse(paper.read_text())["tables"][settings["table"]]["rows"] + rows
        for scale, key in zip(SCALES, ("experiment", "mini"), strict=True):
            cells[scale] = []
            for column, about in settings["columns"].items():
                if about["average"] or about["best"] or about[key] is None:
                    continue
                if about[key] not in known:
                    raise KeyError
                for row in rows:
                    if row["method"] not in (*METHODS, "fairseq", None):
                        raise KeyError
                    attention, values = row.get("attention"), row.get("values", {})
                    is_shown = column in (row.get("columns") or (column,)) and row["method"] and attention
                    is_dash = column in values and values[column] is None
                    if is_shown and not is_dash and about["attention"] in (None, attention):
                        changes = {**about["changes"], **row.get("changes", {})}
                        texts = {change: as_text(value) for change, value in changes.items()}
                        cells[scale].append(((about[key], attention, canonical(row["method"])), texts))
    except (KeyError, TypeError, AttributeError, OSError):
        Table(name, "full" if settings["experiment"] else "mini")  # raises the error that names the key
        raise ValueError(f"{display_path(path)} is no table") from None
    return settings["title"], cells


class Table:
    """A table of configs/tables, at the paper's scale or in its small form, with KEY=VALUEs for all runs."""

    def __init__(self, name: str, scale: str = "full", overrides: tuple | list = ()):
        if name not in tables():
            listing = "`bash scripts/table.sh` lists the tables"
            raise ValueError(f"unknown table {name!r}{choices(name, tables(), listing)}")
        self.name, self.scale, self.overrides = name, scale, list(overrides)
        self.path = experiments.CONFIGS / "tables" / f"{name}.yaml"
        self.settings = _settings(self.path)
        self.source, published = self._published()
        self._check(published)
        self.columns = {}
        for column, about in self.settings.columns.items():
            if not (others(about) or about.experiment or about.mini):
                what = "is missing: say whose runs the column shows, such as lm/mini, here or for all columns"
                raise self._wrong(f"columns.{column}.experiment", what)
            if others(about) or self._experiment(column, about):
                self.columns[column] = about
        if all(others(about) for about in self.columns.values()):
            if scale == "full":
                raise self._wrong("experiment", "is missing: the table has a small form alone, --scale mini")
            raise ValueError(f"the table {name!r} has no small form: leave --scale mini out")
        names = {column: self._experiment(column, x) for column, x in self.columns.items() if not others(x)}
        owned = {one: own(one, overrides) for one in dict.fromkeys(names.values())}
        # What no experiment has is new to all, such as an evaluation, or refused.
        new = [text for text in overrides if not any(text in texts for texts in owned.values())]
        self.experiments = {
            one: Experiment.load(one, [*texts, *new], overrides) for one, texts in owned.items()
        }
        for column, one in names.items():
            self._check_measured(column, self.experiments[one])
        self.cells = self._cells(published)

    def _wrong(self, key, what):
        """The error of a key of the table's YAML."""
        return ValueError(f"{display_path(self.path)}, key {key} {what}")

    def _check(self, published):
        """Raises ValueError for what no run, column or row can meet."""
        columns, rows = self.settings.columns, self.settings.rows
        if not columns:
            raise self._wrong("columns", "is empty: give a name and what measures it, {evaluation: test}")
        if self.settings.table and not self.settings.paper:
            raise self._wrong("table", "needs the key paper: the file in configs/paper that has it")
        if not rows and not published.rows:
            raise self._wrong("rows", "is missing: give rows, or a paper and its table")
        measured = [name for name, about in columns.items() if not others(about)]
        for name, about in columns.items():
            if unknown := [part for part in others(about) if part not in measured]:
                key = f"columns.{name}.{'average' if about.average else 'best'}"
                raise self._wrong(key, f"names {unknown[0]!r}{choices(unknown[0], measured)}")
            if about.attention not in (None, *ATTENTIONS):
                is_ = f"is {about.attention!r}{choices(about.attention, ATTENTIONS)}"
                raise self._wrong(f"columns.{name}.attention", is_)
        for i, row in enumerate(rows):
            if unknown := [column for column in row.columns or () if column not in columns]:
                raise self._wrong(f"rows[{i}].columns", f"names {unknown[0]!r}{choices(unknown[0], columns)}")
            if row["values"]:
                raise self._wrong(f"rows[{i}].values", "is for published rows, which configs/paper has")
        names = [(row.attention, row.row) for row in (*published.rows, *rows)]
        if twice := [name for i, name in enumerate(names) if name in names[:i]]:
            raise self._wrong(
                "rows", f"has {' '.join(map(str, twice[0]))} twice: give each a name of its own"
            )
        methods = dict.fromkeys(row.method for row in (*published.rows, *rows) if row.method)
        base = self.settings.baseline
        if base is not None and base not in methods:
            raise self._wrong("baseline", f"is {base!r}, the method of no row{choices(base, methods)}")

    def _check_measured(self, column, experiment):
        """Raises ValueError where an experiment does not measure what a column shows."""
        about, kind = self.columns[column], experiment.kind
        known = [*experiment.cfg.evaluations, "training"]
        if about.evaluation not in known:
            close = did_you_mean(about.evaluation, known)
            is_ = "is missing" if about.evaluation is None else f"is {about.evaluation!r}{close}"
            has = f"{experiment.name} has {', '.join(known)}"
            raise self._wrong(f"columns.{column}.evaluation", f"{is_}: {has}")
        metrics = ["tokens_per_second"] if about.evaluation == "training" else list(kind.metrics)
        if about.metric is not None and about.metric not in metrics:
            has = f"{about.evaluation} of {experiment.name} measures {', '.join(metrics)}"
            close = did_you_mean(about.metric, metrics)
            raise self._wrong(self._said(column, "metric"), f"is {about.metric!r}{close}: {has}")
        try:
            experiment.check_changes(about.changes)
        except ValueError as error:
            raise self._wrong(f"columns.{column}.changes", f"cannot be: {error}") from None

    def _said(self, column, key):
        """The key of the YAML that says something of a column: its own, or the table's."""
        return f"columns.{column}.{key}" if key in read_yaml(self.path).columns[column] else key

    def _experiment(self, column, about):
        """The experiment of a column at this scale, or None."""
        key = "mini" if self.scale == "mini" else "experiment"
        name = about[key]
        if name is not None and name not in experiments.experiments():
            known = choices(name, experiments.experiments(), experiments.LISTING)
            raise self._wrong(self._said(column, key), f"is {name!r}, no experiment{known}")
        return name

    def _published(self):
        """(the paper, its table), as far as there are any."""
        if self.settings.paper is None:
            return None, PaperTable()
        path = experiments.CONFIGS / "paper" / f"{self.settings.paper}.yaml"
        if not path.is_file():
            known = [paper.stem for paper in path.parent.glob("*.yaml")]
            close = did_you_mean(self.settings.paper, known)
            raise ValueError(f"{display_path(self.path)}, key paper: there is no {display_path(path)}{close}")
        paper = _paper(path, path.stat().st_mtime_ns)
        if self.settings.table is None:
            return paper.source, PaperTable()
        if self.settings.table not in paper.tables:
            lacks = f"{display_path(path)} has no {self.settings.table!r}"
            known = choices(self.settings.table, paper.tables)
            raise ValueError(f"{display_path(self.path)}, key table: {lacks}{known}")
        return paper.source, paper.tables[self.settings.table]

    def _cells(self, published):
        theirs, found = published.columns if self.scale == "full" else (), {}
        for row in (*published.rows, *self.settings.rows):
            for column in dict.fromkeys([*theirs, *self.columns]):
                only = self.columns[column].attention if column in self.columns else None
                if column not in (row.get("columns") or (column,)) or only not in (None, row.attention):
                    continue
                value = self._value(row, column)
                cell = Cell(row.attention or "", row.row, column, row.method, value)
                if column in published.columns:
                    cell.better = published.columns[column].better
                cell.drop_worst = self.settings.drop_worst
                is_dash = column in row["values"] and value is None
                if column in self.columns and row.method and row.attention and not is_dash:
                    self._plan(cell, row, self.columns[column])
                found[cell.attention, cell.row, column] = cell
        for (attention, row, column), cell in found.items():
            if column in self.columns and others(self.columns[column]):
                parts = [found.get((attention, row, part)) for part in others(self.columns[column])]
                if all(part and part.runs for part in parts):
                    cell.parts, cell.is_best = parts, bool(self.columns[column].best)
        measured = {cell.column for cell in found.values() if cell.runs or cell.parts}
        return [cell for cell in found.values() if self.scale == "full" or cell.column in measured]

    def _value(self, row, column):
        """The (mean, deviation or None) of a published row, or None."""
        value = row["values"].get(column)
        if value is None or isinstance(value, int | float):
            return value if value is None else (value, None)
        pair = (value.get("mean"), value.get("std")) if isinstance(value, DictConfig) else ()
        if not pair or not all(isinstance(x, int | float) for x in pair):
            path = experiments.CONFIGS / "paper" / f"{self.settings.paper}.yaml"
            where = f"{display_path(path)}, key tables.{self.settings.table}, row {row.row}, {column}"
            raise ValueError(f"{where}: a number or {{mean, std}} is needed, not {value!r}")
        return pair

    def _plan(self, cell, row, column):
        """The runs of a cell; none where the grid of the small form has not the column's task."""
        if others(column):
            return
        try:
            check_method(row.method, row.attention)
            experiment = self.experiments[self._experiment(cell.column, column)]
            experiment.check_changes(row.changes)
            changes = {**column.changes, **row.changes}
            grid = experiment.cfg.grid
            if any(key in grid and value not in grid[key] for key, value in changes.items()):
                return
            seeds = self.settings[{"full": "seeds", "mini": "mini_seeds"}[self.scale]]
            if not seeds or any(text.startswith("seeds=") for text in self.overrides):
                seeds = experiment.cfg.seeds
            cell.runs = experiment.runs(row.attention, canonical(row.method), seeds, changes)
        except ValueError as error:
            rows = list(self.settings.rows)
            if row in rows:
                raise self._wrong(f"rows[{rows.index(row)}]", f"cannot be: {error}") from None
            raise self._wrong("table", f"has the row {row.row}: {error}") from None
        cell.experiment, cell.kind, cell.evaluation = experiment.name, experiment.kind, column.evaluation
        cell.metric = column.metric or next(iter(experiment.kind.metrics))
        if not self.settings.paper or cell.published is None:
            cell.better = experiment.kind.metrics.get(cell.metric, "higher")

    def baseline(self, cell: Cell) -> Cell | None:
        """Returns the cell that this one is compared with; None of the baseline itself."""
        found = (c for c in self.cells if (c.attention, c.column) == (cell.attention, cell.column))
        base = next((c for c in found if c.method is not None and c.method == self.settings.baseline), None)
        return None if base is None or cell.method == self.settings.baseline else base

    def runs(self, only: tuple | list = ()) -> list[Run]:
        """Returns all runs, of the methods ``only`` if there are any, each once and after those it needs.

        What others start from comes first, then all methods of the first seed.
        """
        pairs = ((cell.method, canonical(cell.method)) for cell in self.cells if cell.runs)
        methods = dict.fromkeys(method for pair in pairs for method in pair)
        for name in only:
            if name not in methods:
                raise ValueError(f"the table has no method {name!r}{choices(name, methods)}")
        wanted = [run for cell in self.cells for run in cell.runs]
        wanted = [run for run in wanted if not only or run.method in map(canonical, only)]
        found, first = {}, set()

        def add(run):
            if run not in found:
                for before in self.experiment_of(run).needs(run):
                    add(before)
                    if before.experiment != run.experiment:
                        first.add(before)
                found[run] = None

        for run in wanted:
            add(run)
        return sorted(found, key=lambda run: (run not in first, run.seed))

    def experiment_of(self, run: Run) -> Experiment:
        """Returns the experiment of one of the table's runs, or of a run that one of them starts from."""
        if run.experiment not in self.experiments:
            self.experiments[run.experiment] = next(iter(self.experiments.values())).other(run.experiment)
        return self.experiments[run.experiment]


@cache  # many tables are of the same paper, and reading one takes a second
def _paper(path, changed):
    return _read(path, Paper)


def _settings(path):
    """The settings of a table, in which a column has what the table says for all of them."""
    settings, given = _read(path, TableSettings), read_yaml(path)
    for column, about in settings.columns.items():
        for key in ("experiment", "mini", "metric"):
            if about[key] is None and key not in given.columns[column]:
                about[key] = settings[key]
    return settings


def _read(path, settings):
    merged = checked(path, read_yaml(path), settings)
    if missing := sorted(OmegaConf.missing_keys(merged)):
        raise ValueError(f"{display_path(path)} lacks the key {missing[0]}")
    return merged
