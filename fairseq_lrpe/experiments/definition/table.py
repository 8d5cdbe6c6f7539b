"""A table of a paper: its rows and columns, and the runs that measure its cells."""

from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from fairseq_lrpe.experiments.definition.cell import Cell
from fairseq_lrpe.experiments.definition.config_files import experiments
from fairseq_lrpe.experiments.definition.experiment import Experiment, applicable_overrides
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.table_settings import (
    EXPERIMENTS,
    SEEDS,
    Column,
)
from fairseq_lrpe.experiments.definition.table_spec import TableSpec
from fairseq_lrpe.methods import ATTENTIONS, canonical, check_method
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.suggest import choices


class Table(TableSpec):
    """A table, its experiments and its cells at one scale.

    Args:
        name: name of a file in configs/tables.
        scale: one of ``SCALES``.
        overrides: texts KEY=VALUE. Each changes the experiments that have KEY, or all if none has KEY.

    Raises:
        UserError: if the table is unknown, has no experiment at this scale, or has invalid settings.
    """

    def __init__(self, name: str, scale: str = "full", overrides: Iterable[str] = ()):
        super().__init__(name)
        self.scale = scale
        self.overrides = list(overrides)
        if scale not in self.scales:
            known = " or ".join(f"--scale {other}" for other in self.scales)
            message = f"missing: the table has no experiment at --scale {scale}; use {known}"
            raise self._error(EXPERIMENTS[scale], message)
        if scale == "mini":
            self._tune_rows()
        self.columns: dict[str, Column] = {}
        for name, column in self.settings.columns.items():
            if column.parts or column.experiment_at(scale):
                self.columns[name] = column
        self.experiments = self._load_experiments()
        for name, column in self._measured_columns():
            experiment = self.experiments[column.experiment_at(scale)]
            self._check_column(f"columns.{name}", column, experiment)
        self.cells = self._make_cells()

    def _tune_rows(self):
        """Adds the changes in ``mini_tuned`` to the rows that they name."""
        numbers = {(row.attention, row.row): number for number, row in enumerate(self.rows)}
        for tuned in self.settings.mini_tuned:
            for attention in ATTENTIONS:
                for name in getattr(tuned, attention):
                    known = [row for other, row in numbers if other == attention]
                    self._check("mini_tuned", f"row in {attention} attention", name, known)
                    number = numbers[attention, name]
                    changes = {**self.rows[number].tuned, **tuned.changes}
                    self.rows[number] = self.rows[number].model_copy(update={"tuned": changes})

    def _measured_columns(self) -> Iterator[tuple[str, Column]]:
        for name, column in self.columns.items():
            if not column.parts:
                yield name, column

    def _load_experiments(self):
        """Returns {name: experiment} with the overrides that apply to it."""
        applicable = {}
        for column_name, column in self._measured_columns():
            name = column.experiment_at(self.scale)
            key = f"columns.{column_name}.{EXPERIMENTS[self.scale]}"
            self._check(key, "experiment", name, experiments())
            applicable[name] = None
        for name in applicable:
            applicable[name] = applicable_overrides(name, self.overrides)
        # Overrides with keys that no experiment has may add keys, such as evaluations, to all of them.
        known = set().union(*applicable.values())
        new = [text for text in self.overrides if text not in known]
        loaded = {}
        for name, texts in applicable.items():
            loaded[name] = Experiment.load(name, [*texts, *new], self.overrides)
        return loaded

    def _check_column(self, key, column, experiment):
        known = [*experiment.cfg.evaluations, "training"]
        self._check(f"{key}.evaluation", "evaluation", column.evaluation, known)
        if column.metric is not None:
            known = experiment.kind.metrics
            if column.evaluation == "training":
                known = experiment.kind.training_metrics
            self._check(f"{key}.metric", "metric", column.metric, known)
        if column.changes:
            with self._context(f"{key}.changes"):
                experiment.check(column.changes)

    def _make_cells(self):
        cells: dict[tuple[str, str, str], Cell] = {}
        for row in self.rows:
            for name in self._column_names():
                column = self.columns.get(name, Column())
                if row.shows(name, column):
                    cell = self._make_cell(row, name, column)
                    cells[cell.attention, cell.row, name] = cell
        for (attention, row, name), cell in cells.items():
            column = self.columns.get(name, Column())
            parts = [cells.get((attention, row, part)) for part in column.parts]
            if parts and all(part and part.runs for part in parts):
                cell.parts = parts
                cell.is_best = bool(column.best)
        if self.scale == "full":
            return list(cells.values())
        measured = {cell.column for cell in cells.values() if cell.runs or cell.parts}
        return [cell for cell in cells.values() if cell.column in measured]

    def _column_names(self):
        """Returns the names of the columns in the YAML file, after the published ones at --scale full."""
        published = self.published.columns if self.scale == "full" else ()
        return dict.fromkeys([*published, *self.columns])

    def _make_cell(self, row, name, column):
        cell = Cell(row.attention or "", row.row, name, row.method, row.published(name))
        cell.change_values = list(row.changes.values())
        cell.tuned = row.tuned
        cell.drop_worst = self.settings.drop_worst
        if name in self.published.columns:
            cell.better = self.published.columns[name].better
        if name in self.columns and row.has_runs(name, column):
            with self._context(f"row {row.row}"):
                self._plan(cell, row, column)
        return cell

    def _plan(self, cell, row, column):
        """Sets the runs, experiment and metric of a cell.

        Leaves the cell unchanged if a change sets a key of the experiment's grid to a value outside the grid.
        """
        experiment = self.experiments[column.experiment_at(self.scale)]
        kind = experiment.kind
        changes = {**column.changes, **row.changes, **row.tuned}
        check_method(row.method, row.attention)
        if row.changes or row.tuned:
            experiment.check({**row.changes, **row.tuned})
        grid = experiment.cfg.grid
        if any(key in grid and value not in grid[key] for key, value in changes.items()):
            return
        seeds = self._seeds(experiment)
        cell.runs = experiment.runs(row.attention, canonical(row.method), seeds, changes)
        if self.settings.choose_by == "mean":
            self._plan_trials(cell, experiment)
        cell.experiment = experiment.name
        cell.kind = kind
        cell.evaluation = column.evaluation
        cell.metric = column.metric or next(iter(kind.metrics))
        if not self.settings.paper or cell.published is None:
            cell.better = kind.better(cell.metric)

    def _seeds(self, experiment):
        """Returns the seeds that an override, the table for this scale, or else the experiment sets."""
        is_overridden = any(text.startswith("seeds=") for text in self.overrides)
        if self.scale not in SEEDS or is_overridden:
            return experiment.cfg.seeds
        return getattr(self.settings, SEEDS[self.scale]) or experiment.cfg.seeds

    def _plan_trials(self, cell, experiment):
        """Replaces a cell's runs that choose among trials by the trials, and sets the deciding metric."""
        by_seed = [experiment.trials(run) for run in cell.runs]
        cell.trials = [list(runs) for runs in zip(*by_seed, strict=True)]
        if not cell.trials:
            return
        cell.runs = list(chain(*cell.trials))
        evaluation = next(iter(experiment.kind.evaluations(experiment.settings(cell.runs[0]))))
        cell.score = (evaluation, next(iter(experiment.kind.metrics)))

    def baseline(self, cell: Cell) -> Cell | None:
        """Returns the baseline's cell with the attention and column of ``cell``, or None.

        Of several, it has the same values of changes, such as k, or else none. A row of the baseline's method
        with changes, such as token positions, is compared with the one without.
        """
        method = self.settings.baseline
        baselines = []
        for other in self.cells:
            if (other.attention, other.column, other.method) == (cell.attention, cell.column, method):
                baselines.append(other)
        if len(baselines) > 1:
            unchanged = [other for other in baselines if not other.change_values]
            same = [other for other in baselines if other.change_values == cell.change_values]
            baselines = unchanged if cell.method == method else same or unchanged
        if not baselines or baselines[0] is cell:
            return None
        return baselines[0]

    def runs(self, methods: Collection[str] = ()) -> list[Run]:
        """Returns the runs of all methods, or of ``methods``, and the runs that these need, in order.

        Needed runs of other experiments come first, and the others are sorted by seed, so that the methods
        can be compared early.
        """
        self.check_methods(methods)
        wanted = set(map(canonical, methods))
        ordered: dict[Run, None] = {}
        first = set()

        def add(run):
            if run in ordered:
                return
            for needed in self.experiment_of(run).needs(run):
                add(needed)
                if needed.experiment != run.experiment:
                    first.add(needed)
            ordered[run] = None

        for cell in self.cells:
            for run in cell.runs:
                if not methods or run.method in wanted:
                    add(run)
        return sorted(ordered, key=lambda run: (run not in first, run.seed))

    def set_baseline(self, method: str) -> None:
        """Makes a method the one with which the others of the same attention are compared."""
        self.check_methods([method])
        methods = {canonical(row.method): row.method for row in self.rows if row.method}
        self.settings.baseline = methods[canonical(method)]

    def check_methods(self, methods: Collection[str]) -> None:
        """Raises UserError if no row with runs has one of the methods."""
        known = {}
        for cell in self.cells:
            if cell.runs:
                known |= {cell.method: None, canonical(cell.method): None}
        for name in methods:
            if name not in known:
                raise UserError(f"the table has no method {name!r}{choices(name, known)}")

    def experiment_of(self, run: Run) -> Experiment:
        """Returns the experiment of a run of the table, or of a run that the table's runs need."""
        if run.experiment in self.experiments:
            return self.experiments[run.experiment]
        return next(iter(self.experiments.values())).other(run.experiment)
